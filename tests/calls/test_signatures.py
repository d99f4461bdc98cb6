"""A task's annotations say what it does with its arguments; calls bind as those of the function."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
import typing
from typing import Annotated, Any, Union

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpler_ref.calls.signatures as sr
from simpler_ref.calls.signatures import In, InOut, Mode, Out, Signature


def modes(function, **names) -> dict[str, str]:
    return {one.name: one.mode.name for one in Signature.of(function, names).parameters}


def with_modes(**annotations):
    """Return a function with some parameters, annotated with objects, not strings."""
    names: dict = {}
    exec(f"def function({', '.join(annotations)}): pass", names)
    names["function"].__annotations__ = annotations
    return names["function"]


# ---------------------------------------------------------------- modes
def test_annotations_say_what_a_task_does_with_an_argument():
    def axpy(a: float, x: In, y: InOut, z: sr.Out, n=3): ...

    expected = {"a": "VALUE", "x": "IN", "y": "INOUT", "z": "OUT", "n": "VALUE"}
    assert modes(axpy) == expected
    assert modes(with_modes(a=float, x=In, y=InOut, z=Out, n=int)) == expected


@pytest.mark.parametrize(
    "annotation",
    [
        *(
            In,
            In[np.float64],
            In["np.float64"],
            Annotated[np.ndarray, In],
            Annotated[Any, "doc", In],
        ),
        *(
            Union[In, None],
            Union[None, In],
            In | None,
            Annotated[In, "doc"],
            Annotated[Union[In, None], 1],
        ),
        *("In", "sr.In", "In[np.float64]", "'In'", "Annotated[np.ndarray, In]", "In | None"),
    ],
    ids=str,
)
def test_a_mode_may_stand_in_many_forms(annotation):
    names = {"In": In, "sr": sr, "np": np, "Annotated": Annotated}
    assert modes(with_modes(x=annotation), **names) == {"x": "IN"}


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        "int",
        np.ndarray,
        list[int],
        Union[int, None],
        Annotated[int, "doc"],
        None,
        Any,
        "None",
        3,
    ],
    ids=str,
)
def test_other_annotations_are_of_values(annotation):
    assert modes(with_modes(x=annotation)) == {"x": "VALUE"}


@pytest.mark.parametrize(
    "annotation",
    [
        list[In],
        dict[str, Out],
        Union[In, Out],
        Annotated[np.ndarray, In, InOut],
        Annotated[list[In], 1],
    ],
    ids=str,
)
def test_a_mode_in_the_wrong_place_is_refused(annotation):
    with pytest.raises(
        TypeError, match=r"parameter 'x' of function is annotated .*marks one array"
    ):
        Signature.of(with_modes(x=annotation))


@pytest.mark.parametrize("text", ["Missing", "sr.Missing", "In[", "1 / 0"])
def test_an_annotation_that_cannot_be_resolved_is_refused(text):
    with pytest.raises(
        TypeError, match=r"annotation .* of parameter 'x' of function cannot be resolved"
    ):
        Signature.of(with_modes(x=text), {"sr": sr})


def test_annotations_use_the_names_around_the_function():
    own = Out

    def closure(x: own):
        return own

    def local(x: here): ...  # noqa: F821

    assert modes(closure) == modes(decorated(closure)) == {"x": "OUT"}
    assert modes(local, here=In) == {"x": "IN"}


def test_the_annotation_of_the_result_is_not_looked_at():
    def task(x: In) -> does_not_exist: ...  # noqa: F821

    assert modes(task) == {"x": "IN"}


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Model:
    def method(self, x: In): ...

    @classmethod
    def make(cls, y: Out): ...

    @staticmethod
    def plain(z: InOut): ...

    def __call__(self, w: In): ...


@pytest.mark.parametrize(
    "function, expected",
    [
        (Model().method, {"x": "IN"}),
        (Model.method, {"self": "VALUE", "x": "IN"}),
        (Model.make, {"y": "OUT"}),
        (Model.plain, {"z": "INOUT"}),
        (Model(), {"w": "IN"}),
        (decorated(Model.plain), {"z": "INOUT"}),
        (functools.partial(Model.method, Model()), {"x": "IN"}),
        (lambda a, b: a, {"a": "VALUE", "b": "VALUE"}),
        (abs, {"x": "VALUE"}),
    ],
)
def test_all_kinds_of_callables_have_signatures(function, expected):
    assert modes(function) == expected


def test_a_callable_without_a_signature_is_refused():
    with pytest.raises(TypeError, match=r"the parameters of .* cannot be read"):
        Signature.of(iter)


def test_parameters_have_name_kind_and_mode():
    def task(a: In, /, b: Out, *rest: In, c: InOut, **more: Out): ...

    kinds = inspect.Parameter
    assert Signature.of(task).parameters == (
        ("a", kinds.POSITIONAL_ONLY, Mode.IN),
        ("b", kinds.POSITIONAL_OR_KEYWORD, Mode.OUT),
        ("rest", kinds.VAR_POSITIONAL, Mode.IN),
        ("c", kinds.KEYWORD_ONLY, Mode.INOUT),
        ("more", kinds.VAR_KEYWORD, Mode.OUT),
    )


# ---------------------------------------------------------------- calls
def nothing(): ...
def two(x, y): ...
def default(x, y=1, *, z=2): ...
def only(x, /, y, *, z): ...
def many(x, *args, y=0, **kwargs): ...
def clash(x, /, **kwargs): ...


class Arguments:
    """Parameters whose names could be confused with those of a program that binds."""

    def names(self, args, kwargs, bind, return_=1, *, made=2): ...


FUNCTIONS = [nothing, two, default, only, many, clash, Arguments().names]
NAMES = st.sampled_from(["x", "y", "z", "self", "args", "kwargs", "bind", "made"])


@given(
    function=st.sampled_from(FUNCTIONS),
    args=st.lists(st.integers(), max_size=5).map(tuple),
    kwargs=st.dictionaries(NAMES, st.integers(), max_size=4),
)
def test_calls_bind_as_python_binds_them(function, args, kwargs):
    signature = Signature.of(function)
    try:
        function(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(TypeError) as caught:
            signature.bind(args, kwargs)
        if not inspect.ismethod(function):  # which counts its self
            assert str(caught.value) == str(error)
        return
    expected = inspect.signature(function).bind(*args, **kwargs)
    expected.apply_defaults()
    assert signature.bind(args, kwargs) == tuple(expected.arguments.values())


def test_defaults_are_the_functions_own_objects():
    array = np.zeros(3)

    def task(x, y=array, *, z=array): ...

    assert all(
        a is b for a, b in zip(Signature.of(task).bind((array,), {}), [array] * 3, strict=True)
    )


def test_a_wrong_call_is_refused_in_pythons_words():
    with pytest.raises(TypeError, match=r"^two\(\) missing 1 required positional argument: 'y'$"):
        Signature.of(two).bind((1,), {})
    with pytest.raises(TypeError, match=r"^two\(\) got multiple values for argument 'x'$"):
        Signature.of(two).bind((1, 2), {"x": 3})


# ---------------------------------------------------------------- types
PROGRAM = """
from __future__ import annotations
import numpy as np
import numpy.typing as npt
from typing import Annotated
from simpler_ref.calls.signatures import In, InOut, Out

Floats = npt.NDArray[np.float64]

def axpy(
    a: float, x: In, y: InOut[np.float64], z: Annotated[Floats, Out], w: Out | None = None
) -> None:
    y += a * x
    z[0] = x.sum()
    if w is not None:
        w[:] = y[1]

axpy(2.0, np.ones(3), np.ones(3), np.empty(1))
axpy(2.0, np.ones(3), 5, np.empty(1))
"""


def test_type_checkers_take_a_marked_parameter_for_an_array(tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    options = ["--config-file=", f"--cache-dir={tmp_path}"]
    done = subprocess.run(
        [*command, *options, str(path)], capture_output=True, text=True, check=False, timeout=110
    )
    wrong = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 1 and 'Argument 3 to "axpy" has incompatible type "int"' in wrong[0], (
        done.stdout
    )


def test_hints_of_marked_functions_can_be_read():
    def task(x: In, y: Out | None = None): ...

    assert typing.get_type_hints(task)["x"] is In
