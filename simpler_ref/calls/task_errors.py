"""Exceptions of tasks, rebuilt in the program.

An exception is rebuilt from its state, not by calling its class: `__init__` may have any signature. The
state has three parts: `args`; what its classes keep outside of `__dict__` (the fields of built-in
exceptions such as `OSError.errno`, and `__slots__`); and `__dict__`.

Rule     CALL-FAIL-3
"""

from __future__ import annotations

import reprlib
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

State = tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]
"""Of an exception: `args`, members outside of `__dict__`, `__dict__`."""

_MOST_TEXT = 4096
"""Characters that stay of a text that is too long."""
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


class Remains:
    """What can be sent of an exception; unpickled, it is that exception.

    Attributes
    ----------
    left : list[str]
        What is left out, and why.

    Parameters
    ----------
    exception : BaseException
        Values in it that cannot be sent are left out.
    nbytes_of : Callable
        Returns how many bytes a value takes; raises an exception if it cannot be sent.
    limit : int
        How many bytes all values may take.
    """

    def __init__(
        self, exception: BaseException, nbytes_of: Callable[[object], int], limit: int
    ) -> None:
        self._nbytes_of, self._room = nbytes_of, limit
        self.left: list[str] = []
        args, members, attributes = state_of(exception)
        members = {name: one for name, one in members.items() if self._fits(name, one)}
        args = tuple(
            one if self._fits(f"args[{i}]", one) else _short(one) for i, one in enumerate(args)
        )
        attributes = {name: one for name, one in attributes.items() if self._fits(name, one)}
        self._state = args, members, attributes
        self._kind = type(exception)

    def _fits(self, name: str, value: object) -> bool:
        try:
            nbytes = self._nbytes_of(value)
        except BaseException as error:  # whatever the value does
            self.left.append(f"{name} ({error.__cause__ or error})")
            return False
        if nbytes > self._room:
            self.left.append(f"{name} ({nbytes} bytes are too many)")
            return False
        self._room -= nbytes
        return True

    def __reduce__(self) -> Any:
        return restore, (self._kind, self._state)


def _short(value: object) -> str:
    """Return a text that stands for a value."""
    if isinstance(value, str):
        return value[:_MOST_TEXT]
    try:
        return reprlib.repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
