"""What workers get of a function: its name, or all of it as it is now.

- *By name* goes what a worker finds under that name, and is the same object there: functions and classes
  of modules, and those of the script as it was when the workers were forked. What such a function reads
  is the worker's own.
- *By content* goes everything else: methods of objects, objects that can be called, closures, lambdas,
  functions that were defined or redefined later. It is pickled at each submit and each map, as it is
  then, and each call gets a copy of its own. Equal bytes are sent once; those that were not sent for long
  are forgotten.

A function by content is not pickled again as long as all that it refers to is what it was, and cannot
change (`Guards`); and one whose calls cannot change it need not be copied for each.

Rule     CALL-SENT-2
"""

from __future__ import annotations

import dis
import functools
import io
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import IntFlag
from struct import Struct
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import numpy as np
from cloudpickle import cloudpickle

from ..callables.pickling import CallablePickler, is_in_main, module_with
from ..jit import layout as L
from ..model.enums import DataType
from ..model.tensor import ContinuousTensor
from ..model.wire import TAG_AT, with_tag

_numbers = itertools.count(1)
_HEAD = Struct("<qqq")
_ABSENT = object()
_CONSTANT = {
    *(type(None), bool, int, float, complex, str, bytes, range, type(...)),
    *(np.bool_, np.int64, np.float64, np.float32, np.int32),
}
_MOST_GUARDS = 64
_MOST_TENSORS = 8
_PIECE = 1 << 20
_CHANGES = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"}


class How(IntFlag):
    """How a worker gets a function, and for how long it may keep it."""

    KEPT = 1
    """No call changes it: the worker may keep it for the calls that follow."""
    LASTING = 2
    """Its block is never given back."""
    INHERITED = 4
    """Workers have the very task, if they were forked after it was made, or are threads."""
    NAMED = 8
    """The payload has its module and its name."""


class Unchanging:
    """A callable of this package that no call changes; programs have none of them."""


class Payload(NamedTuple):
    """What a worker makes a function from."""

    how: How
    serial: int
    """Of the task."""
    body: bytes
    """Its time limit, the options it is compiled with, and the function, or its module and name: pickled.
    Of a function that cannot be pickled: why not, as text."""
    reads: tuple[bytes, ...] = ()
    """Tensors of the shared arrays that it refers to, each with its tag behind it: not for the worker."""

    def to_bytes(self, number: int | None = None) -> bytes:
        """Return it with a number, by default one of its own: workers know by it what they have."""
        if number is None:
            number = next(_numbers)
        return _HEAD.pack(number, self.serial, self.how) + self.body

    @classmethod
    def from_bytes(cls, raw: bytes | memoryview) -> Payload:
        """Return what `to_bytes` was given."""
        _, serial, how = _HEAD.unpack_from(raw)
        return cls(How(how), serial, bytes(raw[_HEAD.size :]))


def number_in(raw: bytes | memoryview) -> int:
    """Return the number of a payload."""
    number: int = _HEAD.unpack_from(raw)[0]
    return number


# ---------------------------------------------------------------- by name
def name_of(target: Any, known: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return module and name under which workers find the same object; None if there are none.

    Parameters
    ----------
    target : Any
        A function, or anything else that can be called.
    known : Mapping or None
        What workers have of `__main__`; None: all.
    """
    if isinstance(target, BuiltinFunctionType | MethodType):
        if module := module_with(target):  # of a global generator of random numbers
            return module.__name__, target.__name__
        if isinstance(target, MethodType) and not isinstance(target.__self__, type):
            return None
    module = getattr(target, "__module__", None)
    if isinstance(target, MethodDescriptorType | WrapperDescriptorType):
        module = target.__objclass__.__module__
    name = getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or _goes_by_value(module):
        return None
    if module == "__main__":
        return (module, name) if is_in_main(target, known) else None
    found = find(module, name) if module in sys.modules else None
    is_same = found == target if isinstance(target, MethodType) else found is target
    return (module, name) if is_same else None


def _goes_by_value(module: str) -> bool:
    """Say whether cloudpickle was told to pickle what a module, or one around it, defines."""
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(module == one or module.startswith(one + ".") for one in registered)


def find(module: str, name: str) -> Any:
    """Return what an imported module has under a name, None if it has nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


# ---------------------------------------------------------------- by content
def content_of(target: Any, known: Mapping[str, Any] | None) -> tuple[bytes, tuple[bytes, ...]]:
    """Return something as bytes, and tensors of the shared arrays that it refers to, which go by address.

    Of many, one tensor covers all.
    """
    buffer = io.BytesIO()
    pickler = CallablePickler(buffer, known)
    pickler.dump(target)
    spans = sorted(set(pickler.shared))
    if len(spans) > _MOST_TENSORS:
        first = spans[0][0]
        spans = [(first, max(start + nbytes for start, nbytes in spans) - first)]
    return buffer.getvalue(), tuple(itertools.chain.from_iterable(map(_as_tensor, spans)))


def _as_tensor(span: tuple[int, int]) -> tuple[bytes, bytes]:
    """Return a tensor of some bytes, and the tag of what is only read."""
    start, nbytes = span
    shape = (nbytes,) if nbytes <= _PIECE else (-(-nbytes // _PIECE), _PIECE)
    wire = ContinuousTensor(start, shape, DataType.UINT8)._wire
    return wire[:TAG_AT], with_tag(b"", L.INPUT)


class _Guard(NamedTuple):
    """That something is still what it was."""

    look: Callable[[], Any]
    found: Any


class Guards:
    """All that a function refers to, if none of it can change and no call of the function changes it.

    Names of modules, and cells of closures, may mean something else later: `hold` looks.
    """

    def __init__(self, guards: list[_Guard]) -> None:
        self._guards = guards

    def __len__(self) -> int:
        return len(self._guards)

    def hold(self) -> bool:
        """Say whether everything is what it was."""
        return all(look() is found for look, found in self._guards)

    @classmethod
    def of(cls, target: Any, known: Mapping[str, Any] | None) -> Guards | None:
        """Return those of a function; None if it refers to what can change."""
        found: list[_Guard] = []
        return cls(found) if _guard(target, known, found, set()) else None


def _guard(
    target: Any, known: Mapping[str, Any] | None, found: list[_Guard], seen: set[int]
) -> bool:
    """Add what a value refers to; return whether it cannot change."""
    if _is_constant(target) or id(target) in seen:
        return True
    seen.add(id(target))
    if isinstance(target, ModuleType) or name_of(target, known) is not None:
        return True
    if type(target) is not FunctionType or vars(target) or len(found) > _MOST_GUARDS:
        return False
    names = _names_in(target.__code__)
    defaults = *(target.__defaults__ or ()), *(target.__kwdefaults__ or {}).values()
    if names is None or target.__kwdefaults__ or not all(map(_is_constant, defaults)):
        return False
    if defaults:
        found.append(
            _Guard(functools.partial(getattr, target, "__defaults__"), target.__defaults__)
        )
    for cell in target.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # it is empty
            return False
        found.append(_Guard(functools.partial(_contents, cell), value))
        if not _guard(value, known, found, seen):
            return False
    for name in names:
        value = target.__globals__.get(name, _ABSENT)
        found.append(_Guard(functools.partial(target.__globals__.get, name, _ABSENT), value))
        if value is not _ABSENT and not _guard(value, known, found, seen):
            return False
    return True


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _is_constant(value: Any) -> bool:
    kind = type(value)
    return kind in _CONSTANT or (kind in (tuple, frozenset) and all(map(_is_constant, value)))


@functools.lru_cache(maxsize=1024)
def _names_in(code: CodeType) -> frozenset[str] | None:
    """Return the global names that some code reads; None if it changes one, or a cell from outside."""
    names: set[str] = set()
    for one in _codes_in(code):
        for step in dis.get_instructions(one):
            if step.opname in _CHANGES and step.argval not in one.co_cellvars:
                return None
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(step.argval)
    return frozenset(names)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """Go through some code and all that is defined in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes_in(one)
