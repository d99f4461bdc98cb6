"""An exception of a task is raised in the program as it was; its cause says where."""

import builtins
import dataclasses
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpler_ref
from simpler_ref.calls import outcomes
from simpler_ref.calls.outcomes import decode_error, encode_error, write
from simpler_ref.errors import HazardError, RemoteTraceback, TaskError, WorkerLostError

WHERE = "level 3 sub worker 0, task 5 (scale)"
LOCK = threading.Lock()
DETAILS = {"task": 5, "callable_name": "scale", "worker": 0, "pid": 77}


def block_of(exception: BaseException) -> memoryview:
    outcome = encode_error(exception)
    assert outcome.kind == outcomes.ERROR
    block = memoryview(bytearray(outcome.nbytes))
    write(outcome.parts, block)
    return block


def raised_by(fail) -> BaseException:
    try:
        fail()
    except BaseException as exception:
        return exception
    raise AssertionError("nothing was raised")


def through(exception: BaseException, where=WHERE, **details) -> Exception:
    """Return what the program gets if a task raises an exception."""

    def task():
        raise exception

    block = block_of(raised_by(task))
    error = decode_error(block, where, **(details or DETAILS))
    block[:] = bytes(len(block))
    for one in (error, error.__cause__) if type(error) is TaskError else (error.__cause__,):
        assert {name: getattr(one, name) for name in details or DETAILS} == (details or DETAILS)
    assert isinstance(error.__cause__, RemoteTraceback)
    return error


def assert_plain(error: BaseException, text: str) -> None:
    assert type(error) is TaskError
    assert str(error) == f"{WHERE}: {text}"
    assert text.split("\n")[0] in error.remote_traceback == error.__cause__.text


# ---------------------------------------------------------------- exceptions of Python
ENDS_LOOPS = (StopIteration, StopAsyncIteration)


def all_builtin() -> list[type[Exception]]:
    found = {kind for name, kind in vars(builtins).items() if type(kind) is type and name[0] != "_"}
    wanted = (kind for kind in found if issubclass(kind, Exception) and kind not in ENDS_LOOPS)
    return sorted(wanted, key=lambda kind: kind.__name__)


NEEDED = {
    "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, "invalid"),
    "UnicodeEncodeError": ("ascii", "\xe9", 0, 1, "invalid"),
    "UnicodeTranslateError": ("\xe9", 0, 1, "invalid"),
    "SyntaxError": ("invalid", ("file.py", 1, 2, "a b")),
    "IndentationError": ("unexpected", ("file.py", 1, 2, " a")),
    "TabError": ("inconsistent", ("file.py", 1, 2, "\ta")),
    "ExceptionGroup": ("several", [ValueError(1), OSError(2, "none")]),
}


@pytest.mark.parametrize("kind", all_builtin())
def test_every_exception_of_python_comes_back_as_it_was(kind):
    original = kind(*NEEDED.get(kind.__name__, ("some text", 5)))
    error = through(original)
    assert type(error) is kind
    assert (str(error), repr(error.args)) == (str(original), repr(original.args))
    assert error.__cause__.where == WHERE


FAILURES = {
    "file": lambda: os.stat("/does/not/exist"),
    "two files": lambda: os.rename("/does/not/exist", "/neither"),
    "directory": lambda: os.open("/", os.O_WRONLY),
    "no errno": lambda: exec('raise OSError("text")'),
    "one number": lambda: exec("raise OSError(2)"),
    "blocking": lambda: exec('raise BlockingIOError(11, "again", 7)'),
    "decode": lambda: b"ab\xff".decode(),
    "encode": lambda: "\xe9".encode("ascii"),
    "syntax": lambda: compile("a b", "some.py", "exec"),
    "import": lambda: exec("import does_not_exist"),
    "name": lambda: exec("does_not_exist"),
    "attribute": lambda: os.does_not_exist,
    "key": lambda: {}[1, "a"],
    "json": lambda: json.loads("{"),
    "command": lambda: subprocess.run(["false"], check=True),
    "linear algebra": lambda: np.linalg.inv(np.zeros((2, 2))),
}
FIELDS = "errno strerror filename filename2 characters_written encoding object start end reason name path"
FIELDS += " lineno offset text msg doc pos colno returncode cmd output"


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_errors_keep_their_fields(fail):
    original = raised_by(fail)
    error = through(original)
    assert type(error) is type(original) and error.args == original.args
    for name in FIELDS.split():
        assert getattr(error, name, "unset") == getattr(original, name, "unset")
    assert getattr(error, "obj", None) is None, "a missing attribute does not bring its object"
    assert str(error) == str(original)


@pytest.mark.parametrize(
    "kind",
    [SystemExit, KeyboardInterrupt, GeneratorExit, type("Own", (BaseException,), {}), *ENDS_LOOPS],
)
def test_what_ends_programs_or_loops_comes_back_as_a_plain_task_error(kind):
    assert_plain(through(kind(3)), f"{kind.__name__}: 3")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups came with Python 3.11")
def test_groups_keep_their_members():
    inner = builtins.ExceptionGroup("in", [KeyError("k")])
    group = through(builtins.ExceptionGroup("two", [Coded(5, text="x"), inner]))
    assert isinstance(group, builtins.ExceptionGroup) and group.message == "two"
    first, second = group.exceptions
    assert type(first) is Coded and (first.code, str(first)) == (5, "x")
    assert second.exceptions[0].args == ("k",)
    matching, rest = group.split(KeyError)
    assert len(rest.exceptions) == 1 and matching.exceptions[0].exceptions[0].args == ("k",)
    group = builtins.BaseExceptionGroup("two", [ValueError(1), SystemExit(2)])
    assert_plain(through(group), f"BaseExceptionGroup: {group}")


class Coded(Exception):
    def __init__(self, code, *, text):
        super().__init__(text)
        self.code = code


class Sloted(Exception):
    __slots__ = ("__hidden", "empty", "place")

    def __init__(self, place):
        self.place = place
        self.__hidden = [place]

    def hidden(self):
        return self.__hidden


class Deeper(OSError):
    __slots__ = ("empty", "more")

    def __init__(self, place):
        super().__init__(2, "gone", place)
        self.more = 1
        self.free = 2


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OfRuntime(RuntimeError):
    """Derives from the same class as `TaskError`, and has an `__init__` of its own."""

    def __init__(self, first, second):
        super().__init__(first, second)
        self.first = first


class Made(Exception):
    def __new__(cls, first, second):
        return super().__new__(cls, first)

    def __init__(self, first, second):
        self.second = second


class Strict(type):
    def __new__(mcs, name, bases, space):
        if len(bases) > 1:
            raise TypeError("one base only")
        return super().__new__(mcs, name, bases, space)

    def __call__(cls, *args):
        raise TypeError("use make()")


class OfStrict(Exception, metaclass=Strict):
    pass


class Own(Exception):
    """Knows how to be pickled, and has something that cannot be."""

    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code, self.lock = code, threading.Lock()

    def __reduce__(self):
        return Own, (self.code,)


class Overlapping(Exception):
    def __init__(self):
        super().__init__("text")
        self.task, self.worker, self.pid, self.story, self.message = "mine", 1, 2, 3, 4


class Computed(Exception):
    @property
    def message(self):
        return self.args[0].upper()

    def __str__(self):
        return "shown as " + self.message


@pytest.mark.parametrize(
    "original, state",
    [
        (Coded(5, text="bad"), {"code": 5}),
        (Sloted("here"), {"place": "here"}),
        (Deeper("file"), {"more": 1, "free": 2, "errno": 2, "filename": "file"}),
        (Frozen(4), {"code": 4}),
        (type.__call__(OfStrict, "strict"), {}),
        (Overlapping(), {"task": "mine", "worker": 1, "pid": 2, "story": 3, "message": 4}),
        (Made(1, 2), {"second": 2}),
        (Own(6), {"code": 6}),
        (Computed("loud"), {"message": "LOUD"}),
        (OfRuntime(1, 2), {"first": 1}),
        (HazardError("it races", kind="write", tasks=(3,)), {"kind": "write", "tasks": (3,)}),
        (WorkerLostError("killed", status=-9, task=1), {"status": -9, "task": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_of_users_keep_type_args_and_attributes(original, state):
    error = through(original)
    for one in error, through(error, where="outer"):
        assert (type(one), str(one), one.args) == (type(original), str(original), original.args)
        assert {name: getattr(one, name) for name in state} == state


# ---------------------------------------------------------------- what cannot come back
class Lost(Exception):
    """Cannot be rebuilt."""

    def __reduce__(self):
        return fail_to_load, (self.args[0],)


def fail_to_load(kind):
    raise kind("not here")


class NotAnException(Exception):
    def __reduce__(self):
        return int, (3,)


class Broken(Exception):
    def __reduce_ex__(self, protocol):
        raise SystemExit(1)


@pytest.mark.parametrize(
    "original", [Lost(ValueError), Lost(SystemExit), Lost(RecursionError), NotAnException("int")]
)
def test_what_cannot_be_rebuilt_is_a_plain_task_error_with_its_text(original):
    assert_plain(through(original), f"{type(original).__name__}: {original}")


@pytest.mark.spec("CALL-FAIL-3")
@pytest.mark.parametrize(
    ("kind", "args", "value", "names"),
    [
        (ValueError, (LOCK,), 1, ["args[0] (cannot pickle '_thread.lock' object)"]),
        (ValueError, ("text", 5), LOCK, ["extra (cannot pickle '_thread.lock' object)"]),
        (ValueError, ("text",), b"x" * outcomes.EXCEPTION_LIMIT, ["extra (", "bytes are too many"]),
        (KeyError, ("text",), np.zeros(10**7, np.uint8), ["extra (", "bytes are too many"]),
        (ValueError, ("e" * 5_000_000,), 1, ["args[0] (", "bytes are too many"]),
        (Sloted, (LOCK,), 1, ["args[0] (", "place (", "_Sloted__hidden ("]),
        (Broken, ("b",), 1, []),
    ],
    ids=["argument", "attribute", "long attribute", "array", "long text", "slot", "own pickle"],
)
def test_what_cannot_be_sent_of_an_exception_is_left_out_and_said(kind, args, value, names):
    original = kind(*args)
    original.extra, original.more = value, "more"
    error = through(original)
    assert type(error) is kind and error.more == "more"
    assert hasattr(error, "extra") == (type(value) is int)
    assert all(a == b or str(b)[:9] in str(a) for a, b in zip(error.args, args, strict=True))
    note = error.__cause__.text.splitlines()[-1]
    assert all(name in note for name in names)
    assert note.startswith("left out, since the program cannot get it: ") == bool(names)
    limit = outcomes.TEXT_LIMIT + outcomes.TRACE_LIMIT + outcomes.EXCEPTION_LIMIT + 4096
    assert encode_error(original).nbytes < limit


def test_the_traceback_of_an_error_of_a_level_below_names_all_places():
    inner = through(ValueError("boom"), where="level 3 sub worker 1, task 2 (f)", task=2, pid=4)
    outer = through(inner)
    assert (type(outer), outer.args) == (ValueError, ("boom",))
    assert f"{inner.__cause__.where}\n" in outer.__cause__.text
    assert inner.__cause__.text.strip() in outer.__cause__.text


# ---------------------------------------------------------------- tracebacks
def deep(n):
    if n:
        deep(n - 1)
    raise KeyError("first")


def chained():
    try:
        deep(3)
    except KeyError as error:
        raise ValueError("second") from error


def test_the_traceback_has_causes_contexts_and_notes():
    original = raised_by(chained)
    if sys.version_info >= (3, 11):
        original.add_note("look here")
    error = decode_error(block_of(original), WHERE)
    expected = ["in chained", "in deep", "KeyError: 'first'", "direct cause", "ValueError: second"]
    if sys.version_info >= (3, 11):
        expected.append("look here")
        assert error.__notes__ == ["look here"]
    assert all(text in error.__cause__.text for text in expected)


LOOP = """
def run_task(task):
    try:
        call(task)
    except Exception as error:
        return error

def call(task):
    task()
"""


def test_the_traceback_begins_at_the_users_function():
    package = os.path.dirname(simpler_ref.__file__)
    names: dict = {}
    exec(compile(LOOP, os.path.join(package, "workers", "loop.py"), "exec"), names)
    text = decode_error(block_of(names["run_task"](chained)), WHERE).__cause__.text
    assert "in chained" in text and "in run_task" not in text and "in call" not in text
    text = decode_error(block_of(names["run_task"](None)), WHERE).__cause__.text
    assert "in run_task" in text and "in call" in text, "an error of the package itself"


def test_long_texts_and_tracebacks_are_cut():
    error = through(StopIteration("é" * 5_000_000))
    assert len(str(error).encode()) <= outcomes.TEXT_LIMIT + len(WHERE) + 2
    assert len(error.remote_traceback.encode()) <= outcomes.TRACE_LIMIT
    assert "(cut)" in error.remote_traceback and "in task" in error.remote_traceback


@given(st.text(st.characters()) | st.text(st.characters(categories=["Cs"])))
def test_any_text_survives(text):
    assert through(ValueError(text)).args == (text,)
    error = through(StopIteration(text))
    assert str(error) == str(error).encode(errors="replace").decode()
