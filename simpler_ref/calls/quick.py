"""The usual calls without Python: what `src/quick.c` does for a stream, and `src/inside.c` for a worker.

They leave what is not usual, and what has to wait, to the stream and to the worker. Interpreted kernels
have no address, and interpreters without the GIL no protection for it: there, and where the library was
not built, these do all.

Rule     CALL-QUICK-3
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import pickle
import struct
import sysconfig
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..callables.pickling import PICKLED, is_plain
from ..engine.view.blocks import HEAD
from ..engine.view.mailbox import CALL_PLACES
from ..jit import entries, kernel
from ..jit import layout as L
from ..model.wire import TAG_AT, TENSOR_BYTES
from . import arguments
from .futures import Future
from .signatures import MISSING, Mode

if TYPE_CHECKING:
    from ..engine.memory import Engine
    from ..engine.view.mailbox import ReceivedArgs
    from ..model.wire import Layout
    from ..workers.session import Session
    from .orch_lock import OrchLock
    from .packing import CallPlan
    from .tasks import Task

LIBRARY = Path(__file__).with_name("_quick.so")
_MOST_DTYPES = 1024
_PLACED = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_TAG_SHIFT = 8 * (TAG_AT % L.WORD)
_WRITEABLE = 0x400
"""Among an array's flags: numpy's NPY_ARRAY_WRITEABLE."""
_KINDS = (
    *(L.VALUE_NONE, L.VALUE_BOOL, L.VALUE_INT, L.VALUE_FLOAT),
    *(L.VALUE_NUMPY_BOOL, L.VALUE_NUMPY_INT64, L.VALUE_NUMPY_FLOAT64, L.VALUE_BLOCK),
)


class Quick:
    """The usual calls of one stream: functions of `src/quick.c`, which says what each does.

    ``call(stream, task, args)`` submits a call, of a task or of a plain function that has one, and
    returns its future, None if that is not usual. `Slow` has the same functions in Python.
    """

    def __init__(
        self, session: Session, mutex: OrchLock, fetching: set[int], tasks: dict[Any, Task]
    ) -> None:
        self._plans: dict[Task, bytes] = {}
        self._dtypes: dict[int, np.dtype[Any]] = {}
        lock = mutex.rlock
        objects = (
            *(lock.acquire, lock.release, (False,), self._plans, fetching, tasks),
            *(Future, np.ndarray, float, int, PICKLED, pickle.loads),
            *(np.bool_, np.int64, np.float64, None, True, False, 0, ()),
        )
        made = _made("quick", _numbers(session), objects)
        self._learn: Callable[[bytes], None]
        self.call, self.take, self.keep, self.enter, self.leave, *rest = made
        self.find, self.futures, self.drop_later, self.drop_all, *rest = rest
        self._learn, self._forget, self.start = rest

    def call_with_values(self, stream: Any, task: Any, args: tuple[Any, ...]) -> Future | None:
        """Submit a call some of whose arguments are texts, or containers of plain values."""
        items = [one for one in args if type(one) in PICKLED]
        if not items or not all(map(is_plain, items)):
            return None
        data = pickle.dumps(((), tuple(items)), 5)
        if len(data) > arguments.INLINE_BYTES:
            return None
        made: Future | None = self.call(stream, task, args, arguments.inline(data))
        return made

    def stop(self) -> None:
        """Refuse all from now on."""
        self.start(0, None)

    def know(self, task: Task, plan: CallPlan) -> None:
        """Know what a task's calls begin with, if they are usual: few parameters, each with a place."""
        named = [one for one in plan.forms if one[2].kind in _PLACED]
        rest = [one for one in plan.forms if one[2].kind is inspect.Parameter.VAR_POSITIONAL]
        most = _sizes("quick").most_arguments
        if (
            plan.workers is not None
            or len(named) + len(rest) < len(plan.forms)
            or len(named) > most
        ):
            return
        defaults = plan.signature.defaults
        first = len(named) - len(defaults)
        filled = [at for at, one in enumerate(defaults, first) if one is not MISSING]
        left_out = [at for at, one in enumerate(defaults, first) if one is MISSING]
        least = max([first, *(at + 1 for at in left_out if filled and at < filled[-1])])
        words = [plan.key, least, len(named), most if rest else len(named)]
        wanted = plan.signature.converted
        for at, (code, tag, parameter) in enumerate((named + most * rest)[:most]):
            flags = _WRITEABLE if code == arguments.ARRAY else 0
            words += code, int.from_bytes(tag, "little") << _TAG_SHIFT, flags
            kind = id(wanted[at]) if at in wanted else 0
            default = id(defaults[at - first]) if at in filled else 0
            words += parameter.mode is Mode.VALUE, kind, default
        self._plans[task] = _words(words).ljust(_sizes("quick").plan, b"\0")

    def know_none(self) -> None:
        self._plans.clear()

    def learn(self, epoch: int, layout: Layout, tensor: bytes, below: int, extent: int) -> None:
        """Know the arrays with a layout, if its epoch, from before it was given a number, is not over.

        `tensor` is that of the arrays after the address, without a tag; `below` and `extent` are the
        bytes before their first elements, and all bytes.
        """
        dtype, shape, strides = layout
        most = _sizes("quick").most_dims
        if len(shape) > most or len(self._dtypes) >= _MOST_DTYPES:
            return
        self._dtypes[id(dtype)] = dtype  # it keeps its address
        unused = (0,) * (most - len(shape))
        words = epoch, id(dtype), len(shape), *shape, *unused, *strides, *unused, below, extent
        self._learn(_words(words) + tensor.ljust(TENSOR_BYTES - L.WORD, b"\0"))

    def forget(self) -> None:
        if self._dtypes:
            self._forget()
            self._dtypes.clear()


class Slow:
    """Does nothing quickly, with the methods of `Quick`."""

    def __init__(self, engine: Engine) -> None:
        self._mem, self._drop = engine.mem, engine.kernels.drop_call
        self._references: dict[int, weakref.ref[Future]] = {}
        self._dropped: deque[int] = deque()

    def call(self, *_: object) -> None:
        """Return nothing."""

    def take(self, _: object) -> bool:
        return False

    def futures(self) -> list[Future]:
        found = [reference() for reference in list(self._references.values())]
        return [future for future in found if future is not None]

    def enter(self, slot: int, future: Future) -> None:
        future._slot = slot
        self._references[slot] = weakref.ref(future)

    def leave(self, slot: int) -> None:
        self._references.pop(slot, None)

    def find(self, slot: int) -> Future | None:
        """Return a call's future, None if that has died."""
        reference = self._references.get(slot)
        return None if reference is None else reference()

    def drop_later(self, future: Future) -> None:
        """Note that a future dies; any thread, at any moment."""
        slot, future._slot = future._slot, 0
        self._dropped.append(slot)

    def drop_all(self) -> None:
        """Drop all calls whose futures have died."""
        while self._dropped:
            slot = self._dropped.popleft()
            self.leave(slot)
            self._drop(self._mem, slot)

    keep = futures
    call_with_values = start = stop = know = know_none = learn = forget = call


def _words(words: Any) -> bytes:
    return struct.pack(f"<{len(words)}q", *words)


def _numbers(session: Session) -> bytes:
    """Return the addresses and numbers that quick.c needs."""
    mem, slots = session.engine.mem, session.engine.view.slots
    addresses = [
        one.address for one in (entries.call_from_c, entries.read_outcome_from_c, entries.drop_call)
    ]
    seen = [address for part in session.own_memory for address in part]
    return _words(
        [
            *(mem.ctypes.data, len(mem), session.engine.layouts.epoch_address),
            *(*addresses, slots.start, slots.step, len(slots), *seen),
            *(L.HALF, L.KEY_BITS, arguments.CODE_BITS, HEAD),
            *(arguments.NONE, arguments.TRUE, arguments.FALSE, arguments.VALUE, arguments.ITEM),
            *(L.SIGNED, L.FLOAT64, L.FUTURE, *_KINDS),
            *(_place_of(Future, name) for name in ("_stream", "_slot", "_value")),
        ]
    )


def _place_of(kind: type, name: str) -> int:
    """Return how many bytes of an object come before one of the `__slots__` of its class."""
    made: Any = object.__new__(kind)
    value = object()
    setattr(made, name, value)
    words = (ctypes.c_size_t * (kind.__basicsize__ // L.WORD)).from_address(id(made))
    place = L.WORD * list(words).index(id(value))
    delattr(made, name)
    return place


# ---------------------------------------------------------------- in a worker
def run_inside(one: Any) -> tuple[Callable[[ReceivedArgs], None], Callable[..., None]]:
    """Return what runs the calls of an `Inside`, and what makes one that is not usual, and answers."""
    if not is_possible():
        return one.run, lambda function, args, names: one._finish(function(*args, **names))
    numbers = [
        *(one._mem.ctypes.data, one._start, *CALL_PLACES),
        *(L.HALF, L.KEY_BITS, arguments.CODE_BITS),
        *(arguments.NONE, arguments.TRUE, arguments.FALSE, arguments.VALUE, arguments.ITEM),
        *(arguments.ARRAY, arguments.READ_ARRAY),
        *(L.SIGNED, L.FLOAT64, L.FETCHED),
        *(L.VALUE_NONE, L.VALUE_BOOL, L.VALUE_INT, L.VALUE_FLOAT, L.VALUE_BLOCK),
        ctypes.addressof(one._origin.here),
    ]
    objects = (
        *(one._plain, one.run, one._finish, one._finish_placed, one._read, pickle.loads),
        *(one._settle, np.ndarray, one._arrays.maker, float, int, None, True, False),
    )
    made: tuple[Callable[[ReceivedArgs], None], Callable[..., None]]
    made = _made("inside", _words(numbers), objects)
    return made


# ---------------------------------------------------------------- the library
class _Sizes(NamedTuple):
    """What one of the sources says about its structures; `numbers` and `plan` are in bytes."""

    numbers: int
    objects: int
    plan: int
    most_dims: int
    most_arguments: int


@functools.cache
def library() -> ctypes.PyDLL:
    return ctypes.PyDLL(str(LIBRARY))


@functools.cache
def _sizes(source: str) -> _Sizes:
    words = (ctypes.c_int64 * len(_Sizes._fields)).in_dll(library(), f"simpler_ref_{source}_sizes")
    return _Sizes(*words)


def _made(source: str, numbers: bytes, objects: tuple[Any, ...]) -> Any:
    """Return what a source makes of numbers and objects."""
    sizes = _sizes(source)
    assert (len(numbers), len(objects)) == (sizes.numbers, sizes.objects)
    make = library()[f"simpler_ref_{source}"]
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.py_object] * 2
    return make(numbers, objects)


@functools.cache
def is_possible() -> bool:
    """Say whether native code can do all that."""
    has_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return has_gil and not kernel.INTERPRETED and LIBRARY.exists()
