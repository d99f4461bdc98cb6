"""Parameters of a task: which arrays it reads and writes, and which value of a call belongs to which.

Rule     CALL-SENT-5
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, Union


class Mode(enum.IntEnum):
    """What a task does with an argument."""

    VALUE = 0
    """A copy, or an array in shared memory that it reads."""
    IN = 1
    """It reads the array."""
    OUT = 2
    """It writes the array, without reading what was in it."""
    INOUT = 3
    """It reads and writes the array."""


class _Marker:
    """A parameter's mode, as an annotation."""

    mode: Mode

    def __class_getitem__(cls, _: object) -> type[_Marker]:
        """Allow an element type, for readers: `In[np.float64]`."""
        return cls


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from typing_extensions import TypeVar

    _Element = TypeVar("_Element", bound=np.generic, default=Any)
    In: TypeAlias = Annotated[npt.NDArray[_Element], Mode.IN]
    Out: TypeAlias = Annotated[npt.NDArray[_Element], Mode.OUT]
    InOut: TypeAlias = Annotated[npt.NDArray[_Element], Mode.INOUT]
else:

    class In(_Marker):
        """The task reads this array."""

        mode = Mode.IN

    class Out(_Marker):
        """The task writes this array, and does not read what was in it."""

        mode = Mode.OUT

    class InOut(_Marker):
        """The task reads and writes this array."""

        mode = Mode.INOUT


class _Missing(enum.Enum):
    MISSING = 0


MISSING = _Missing.MISSING
"""In the place of a value that a call leaves to the function's default."""


class Parameter(NamedTuple):
    """One parameter of a task."""

    name: str
    kind: inspect._ParameterKind
    mode: Mode
    """Of ``*args`` and ``**kwargs``: of each value in them."""


class Signature:
    """The parameters of a function, in its order."""

    __slots__ = ("_bind", "_convert", "converted", "parameters", "taken_as_given")

    def __init__(self, parameters: tuple[Parameter, ...], bind: Callable[..., tuple[Any, ...]]):
        self.parameters = parameters
        self._bind = bind
        self._convert: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
        self.converted: dict[int, type] = {}
        """The types that `bind` converts numbers to, by the places of their parameters."""
        self.taken_as_given = len(parameters) if self.is_plain else -1
        """How many arguments by position `bind` returns as they are; -1: none."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, fills_in: bool = False) -> Signature:
        """Read the signature of a function, whose `bind` fills in all defaults, or only those of arrays.

        TypeError: there is none, or an annotation cannot be resolved or has a mode in the wrong place.
        """
        name = getattr(function, "__qualname__", type(function).__qualname__)
        try:
            signature = _own_signature(function)
            passes_on = tuple(one.kind for one in signature.parameters.values()) == _PASSED_ON
            wrapped = inspect.signature(function) if passes_on else signature
        except (TypeError, ValueError, NameError) as error:
            raise TypeError(f"the parameters of {name} cannot be read: {error}") from error
        known = _names_of(function)
        parameters = _parameters_of(name, wrapped, known)
        if any(one.mode is not Mode.VALUE for one in parameters):
            signature = wrapped
        else:  # a wrapper may take other arguments than what it wraps
            parameters = _parameters_of(name, signature, known)
        left_out = set() if fills_in else {one.name for one in parameters if one.mode is Mode.VALUE}
        return cls(parameters, _binder(name, signature, left_out))

    @classmethod
    def any(cls) -> Signature:
        """Return the signature of a function of which nothing is known: all arguments are values."""
        positional, named = _PASSED_ON
        both = Parameter("args", positional, Mode.VALUE), Parameter("kwargs", named, Mode.VALUE)
        return cls(both, lambda *args, **kwargs: (args, kwargs))

    @classmethod
    @functools.lru_cache(maxsize=256)
    def like(cls, parameters: tuple[Parameter, ...]) -> Signature:
        """Return the signature with some parameters, of calls that were bound to them before."""
        given = [
            inspect.Parameter(one.name, one.kind)
            if one.kind in _PASSED_ON
            else inspect.Parameter(one.name, one.kind, default=MISSING)
            for one in parameters
        ]
        return cls(parameters, _binder("call", inspect.Signature(given)))

    def filled_by(self, function: Callable[..., Any]) -> Signature:
        """Return the signature whose `bind` fills in all defaults of a function with these parameters."""
        return Signature(self.parameters, _binder(function.__qualname__, _own_signature(function)))

    @property
    def is_plain(self) -> bool:
        """Whether each argument is a value of its own, by position."""
        return all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in self.parameters)

    def converting(
        self, convert: Callable[[tuple[Any, ...]], tuple[Any, ...]], wanted: dict[int, type]
    ) -> Signature:
        """Return the signature of a function whose numbers `bind` converts, to the types in `wanted`."""
        made = Signature(self.parameters, self._bind)
        made._convert, made.converted, made.taken_as_given = convert, wanted, -1
        return made

    @property
    def defaults(self) -> tuple[Any, ...]:
        """What `bind` has in the place of parameters that a call leaves out."""
        bind: Any = self._bind
        return (*(bind.__defaults__ or ()), *(bind.__kwdefaults__ or {}).values())

    def flatten(
        self, bound: tuple[Any, ...]
    ) -> tuple[list[tuple[Parameter, Any]], tuple[str, ...]]:
        """Return each value that a call gives, with its parameter, and the names of the last ones.

        Behind one that is left out, those that can have names do.
        """
        positional: list[tuple[Parameter, Any]] = []
        named: dict[str, tuple[Parameter, Any]] = {}
        is_left_out = False
        for parameter, value in zip(self.parameters, bound, strict=True):
            if value is MISSING:
                is_left_out = True
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                positional += [(parameter, one) for one in value]
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                named |= {name: (parameter, one) for name, one in value.items()}
            elif is_left_out or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                named[parameter.name] = parameter, value
            else:
                positional.append((parameter, value))
        return [*positional, *named.values()], tuple(named)

    def require(self, count: int) -> None:
        """Refuse, as itself would, a function that does not take as many arguments by position."""
        self._bind(*(None,) * count)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the values of a call in the order of the parameters, or refuse as the function would.

        What it leaves out is `MISSING`, so that the function has its own default, or the default of an
        array that the function is given.
        """
        bound = self._bind(*args, **kwargs)
        return bound if self._convert is None else self._convert(bound)


def _own_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a function, not those of what it wraps, unless it has none of its own."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return inspect.signature(function)


def _parameters_of(
    name: str, signature: inspect.Signature, known: dict[str, Any]
) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(one.name, one.kind, _mode(name, one, known))
        for one in signature.parameters.values()
    )


_PASSED_ON = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of the parameters of a wrapper that passes on whatever it is given."""


def _binder(
    name: str, signature: inspect.Signature, left_out: Collection[str] = ()
) -> Callable[..., tuple[Any, ...]]:
    """Return a function with some signature that returns the tuple of its arguments.

    The parameters of `left_out` are `MISSING` in a call that does not give them.
    """
    empty = inspect.Parameter.empty
    all_of = list(signature.parameters.values())
    bare = inspect.Signature([one.replace(default=empty, annotation=empty) for one in all_of])
    made: dict[str, Any] = {}
    exec(f"def bind{bare}: return ({''.join(f'{one.name}, ' for one in all_of)})", made)
    bind = made["bind"]
    given = [one for one in all_of if one.default is not empty]
    value_of = {one.name: MISSING if one.name in left_out else one.default for one in given}
    bind.__defaults__ = tuple(
        value_of[one.name] for one in given if one.kind is not one.KEYWORD_ONLY
    )
    bind.__kwdefaults__ = {
        one.name: value_of[one.name] for one in given if one.kind is one.KEYWORD_ONLY
    }
    bind.__name__ = bind.__qualname__ = name
    return bind  # type: ignore[no-any-return]


# ---------------------------------------------------------------- annotations
def _names_of(function: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function can use."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):  # an object that can be called
        function = type(function).__call__
    function = getattr(function, "__func__", function)  # of a method
    if isinstance(function, types.FunctionType):
        return function.__globals__ | dict(inspect.getclosurevars(function).nonlocals)
    return {}


def _mode(name: str, parameter: inspect.Parameter, names: dict[str, Any]) -> Mode:
    annotation = parameter.annotation
    try:
        while isinstance(annotation, str):  # ``from __future__ import annotations`` quotes twice
            annotation = eval(annotation, names)
    except Exception as error:
        raise TypeError(
            f"the annotation {parameter.annotation!r} of parameter {parameter.name!r} of {name} "
            f"cannot be resolved ({type(error).__name__}: {error}); it may use names of the "
            "function's module that exist when the task is defined"
        ) from error
    found = _modes(annotation)
    if len(found) > 1 or (not found and _mentions(annotation)):
        raise TypeError(
            f"parameter {parameter.name!r} of {name} is annotated {annotation!r}; a mode marks one array "
            "and stands alone, as in `x: In`, or beside a type, as in `x: Annotated[np.ndarray, In]`"
        )
    return found.pop() if found else Mode.VALUE


def _is_marker(annotation: object) -> bool:
    """Say whether an annotation is a marker, or an instance of one: ``x: In()`` is meant as ``x: In``."""
    kind = annotation if isinstance(annotation, type) else type(annotation)
    return issubclass(kind, _Marker)


def _modes(annotation: Any) -> set[Mode]:
    """Return the modes in an annotation: itself, beside a type, or in a choice such as ``In | None``."""
    if _is_marker(annotation):
        return {annotation.mode}
    origin = typing.get_origin(annotation)
    parts: tuple[Any, ...] = ()
    if origin is Annotated:
        parts = (annotation.__origin__, *annotation.__metadata__)
    elif origin is Union or origin is types.UnionType:
        parts = typing.get_args(annotation)
    return {mode for part in parts for mode in _modes(part)}


def _mentions(annotation: Any) -> bool:
    """Say whether a marker is anywhere in an annotation."""
    return _is_marker(annotation) or any(_mentions(part) for part in typing.get_args(annotation))
