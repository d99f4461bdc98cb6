"""A task's annotations say what it does with its arguments; calls bind as those of the function."""

from __future__ import annotations

import functools
import inspect
import subprocess
import sys
from typing import Annotated, Any, Union

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import simpler_ref.calls.signatures as sr
from simpler_ref.calls.signatures import MISSING, In, InOut, Out, Signature


def modes(function) -> dict[str, str]:
    return {one.name: one.mode.name for one in Signature.of(function).parameters}


def with_modes(**annotations):
    """Return a function with some parameters, annotated with objects, not strings."""
    names = globals().copy()
    exec(f"def function({', '.join(annotations)}): pass", names)
    names["function"].__annotations__ = annotations
    return names["function"]


# ---------------------------------------------------------------- modes
def test_annotations_say_what_a_task_does_with_an_argument():
    def axpy(a: float, x: In, y: InOut, z: sr.Out, n=3): ...

    assert modes(axpy) == {"a": "VALUE", "x": "IN", "y": "INOUT", "z": "OUT", "n": "VALUE"}


MARKS = [In, In[np.float64], In["np.float64"], Annotated[np.ndarray, In], Annotated[Any, "doc", In]]
MARKS += [Union[In, None], Union[None, In], In | None, Annotated[In, "doc"]]
MARKS += [Annotated[Union[In, None], 1], "In", "sr.In", "In[np.float64]", "'In'"]
MARKS += ["Annotated[np.ndarray, In]", "In | None"]
MISPLACED = [list[In], dict[str, Out], Union[In, Out], Annotated[np.ndarray, In, InOut]]
MISPLACED += [Annotated[list[In], 1]]


@pytest.mark.parametrize("annotation", MARKS, ids=str)
def test_a_mode_may_stand_in_many_forms(annotation):
    assert modes(with_modes(x=annotation)) == {"x": "IN"}


def test_what_is_no_annotation_or_has_no_signature_is_refused():
    for annotation in MISPLACED:
        with pytest.raises(TypeError, match=r"parameter 'x' of function is annotated .*one array"):
            Signature.of(with_modes(x=annotation))
    for text in ("Missing", "sr.Missing", "In[", "1 / 0"):
        with pytest.raises(TypeError, match=r"annotation .* 'x' of function cannot be resolved"):
            Signature.of(with_modes(x=text))
    with pytest.raises(TypeError, match=r"the parameters of .* cannot be read"):
        Signature.of(iter)


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
        (functools.wraps(Model.plain)(lambda *args, **kwargs: None), {"z": "INOUT"}),
        (functools.partial(Model.method, Model()), {"x": "IN"}),
        (lambda a, b: a, {"a": "VALUE", "b": "VALUE"}),
        (abs, {"x": "VALUE"}),
    ],
)
def test_all_kinds_of_callables_have_signatures(function, expected):
    assert modes(function) == expected


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
    left_out = set(expected.signature.parameters) - set(expected.arguments)
    expected.apply_defaults()
    several = {"args", "kwargs"} & left_out  # which are empty
    assert signature.bind(args, kwargs) == tuple(
        MISSING if name in left_out - several else value
        for name, value in expected.arguments.items()
    )


PROGRAM = """
from __future__ import annotations
import numpy as np
import numpy.typing as npt
from typing import Annotated
from simpler_ref.calls.signatures import In, InOut, Out

Floats = npt.NDArray[np.float64]
Many = Annotated[Floats, Out]

def axpy(a: float, x: In, y: InOut[np.float64], z: Many, w: Out | None = None) -> None:
    y += a * x
    z[0] = x.sum()
    if w is not None:
        w[:] = y[1]

axpy(2.0, np.ones(3), np.ones(3), np.empty(1))
axpy(2.0, np.ones(3), 5, np.empty(1))
"""


@pytest.mark.long  # mypy reads numpy
def test_type_checkers_take_a_marked_parameter_for_an_array(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    options = ["--strict", "--follow-imports=silent", "--config-file=", f"--cache-dir={tmp_path}"]
    command = [sys.executable, "-m", "mypy", *options, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    wrong = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 1, done.stdout
    assert 'Argument 3 to "axpy" has incompatible type "int"' in wrong[0]
