"""Exceptions of tasks, raised in the program: each is a `TaskError` and also has its own type.

An exception is rebuilt from its state, not by calling its class: `__init__` may have any signature. The
state has three parts: `args`; what its classes keep outside of `__dict__` (the fields of built-in
exceptions such as `OSError.errno`, and `__slots__`); and `__dict__`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..errors import RemoteTraceback, TaskError, tell_in_cause

State = tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Of an exception: `args`, members outside of `__dict__`, `__dict__`."""

_ENDS_LOOPS = (StopIteration, StopAsyncIteration)
_NOT_KEPT = {"__dict__", "__weakref__", "__class__"}


def _is_python(kind: type) -> bool:
    """Say whether a class is defined in Python."""
    return bool(kind.__flags__ & 1 << 9)  # Py_TPFLAGS_HEAPTYPE


def _members(kind: type[BaseException]) -> Iterator[tuple[str, Any]]:
    """Yield name and descriptor of what the instances of a class keep outside of `__dict__`.

    The object of an `AttributeError` is left out, as pickle does: it may be large, or a module.
    """
    for base in kind.__mro__:
        for name, found in vars(base).items():
            if (
                isinstance(found, (types.MemberDescriptorType, types.GetSetDescriptorType))
                and base is not BaseException
                and name not in _NOT_KEPT
                and (base, name) != (AttributeError, "obj")
            ):
                yield name, found


def state_of(exception: BaseException) -> State:
    """Return the state from which `restore` makes an equal exception."""
    members = {}
    for name, member in _members(type(exception)):
        with suppress(AttributeError):  # a slot that is not set
            value = member.__get__(exception)
            # None in a field of a built-in exception: not set
            if value is not None or _is_python(member.__objclass__):
                members[name] = value
    return exception.args, members, dict(exception.__dict__)


def restore(kind: type[BaseException], state: State) -> Any:
    """Return an exception with some state, without calling `__init__` or `__new__` of its class."""
    args, members, attributes = state
    builtin = kind
    while _is_python(builtin):
        builtin = builtin.__base__  # type: ignore[assignment]
    of_group = (members["message"], members["exceptions"]) if "exceptions" in members else ()
    made: Any = builtin.__new__(kind, *of_group)
    for name, member in _members(kind):
        if name in members:
            with suppress(AttributeError, TypeError):  # a read-only one, set by __new__
                member.__set__(made, members[name])
    made.__dict__.update(attributes)
    BaseException.__setattr__(made, "args", args)
    return made


def pickles_itself(kind: type[BaseException]) -> bool:
    """Say whether a class of exceptions has its own way to be pickled."""
    return any(
        not {"__reduce__", "__reduce_ex__"}.isdisjoint(vars(base))
        for base in kind.__mro__
        if _is_python(base)
    )


class _Placed(TaskError):
    """What the combined classes have in common; the first of their bases."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep the exception's own `__init_subclass__` from running for a combined class."""

    def settle(self, original: Exception, message: str, details: dict[str, Any]) -> None:
        """Set the attributes of a `TaskError`."""
        self._describe(**details)  # `__init__` would go on to that of the exception's own class
        self.args = original.args
        self.__message = message
        if not isinstance(original, _Placed):
            self.__original = original

    def __str__(self) -> str:
        return self.__message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the original in its own way, and the attributes that it has not."""
        original, before = self.__original, vars(self.__original)
        others = {k: value for k, value in vars(self).items() if before.get(k, self) is not value}
        del others["_Placed__original"]
        if pickles_itself(type(original)):
            return _place_again, (original, None, others)
        return _place_again, (type(original), state_of(original), others)


@functools.lru_cache(maxsize=256)
def combine(kind: type[Exception]) -> type[_Placed]:
    """Return the class of exceptions that are both of a type and a `TaskError`."""
    name = f"TaskError({kind.__name__})"
    names = {"__module__": TaskError.__module__, "__qualname__": name, "__doc__": kind.__doc__}
    return types.new_class(name, (_Placed, kind), exec_body=lambda space: space.update(names))


def place(original: object, message: str, **details: Any) -> TaskError:
    """Return an exception of a task as the program gets it.

    Parameters
    ----------
    original : object
        The exception; None if only its text is known. A `StopIteration` becomes a `TaskError` alone: it
        would end a loop of the program.
    message : str
        Place and text.
    **details : Any
        Attributes of `TaskError`; they replace attributes of the same name.

    Notes
    -----
    Rule     CALL-FAIL-6
    """
    plain = type(original) is TaskError or isinstance(original, _ENDS_LOOPS)
    if isinstance(original, Exception) and not plain:
        with suppress(Exception, SystemExit):  # its class does not allow a subclass
            kind = type(original)
            if not issubclass(kind, _Placed):
                kind = combine(kind)  # type: ignore[arg-type]
            made: _Placed = restore(kind, state_of(original))
            made.settle(original, message, details)
            return made
    return TaskError(message, **details)


def _place_again(original: Any, state: State | None, attributes: dict[str, Any]) -> TaskError:
    """Rebuild what `place` returned, from an exception or from its type and state."""
    if state is not None:
        original = restore(original, state)
    made = place(original, attributes["_Placed__message"])
    made.__dict__.update(attributes)
    if made.remote_traceback:
        made.__cause__ = RemoteTraceback(made.remote_traceback)
    tell_in_cause(made)
    return made
