"""What workers get of a function: its name, or all of it as it is now, in a block of memory.

- *By name* goes what a worker finds under that name, and is the same object there: functions and classes
  of modules, and those of the script as it was when the workers were forked. What such a function reads
  is the worker's own.
- *By content* goes everything else: methods of objects, objects that can be called, closures, lambdas,
  functions that were defined or redefined later. It is pickled at each submit and each map, as it is
  then, and each call gets a copy of its own.

A function by content is not pickled again as long as all that it refers to is what it was, and cannot
change (`Guards`); and one whose calls cannot change it need not be copied for each.

Equal ones have one block, in which workers find them. Those that workers may keep for good have theirs
for good, and all others until they were not sent for long; then their blocks are given back as soon as no
call needs them.

Rule     CALL-LIMIT-1, CALL-SENT-1, CALL-SENT-2, CALL-WORKER-4
"""

from __future__ import annotations

import dis
import functools
import importlib
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntFlag
from hashlib import blake2b
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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from cloudpickle import cloudpickle

from ..callables.pickling import (
    MOST_WHY,
    ByAddress,
    find_imported,
    is_in_main,
    module_with,
    pickled,
)
from ..callables.runnable import require_runnable
from ..engine.view.blocks import Blocks, set_retries
from ..jit import layout as L
from ..model.enums import DataType
from ..model.tensor import ContinuousTensor
from ..model.wire import TAG_AT, with_tag
from ..system.types import Array
from ..workers.session import Session
from .packing import CallPlan
from .signatures import Signature
from .tasks import Task, known

if TYPE_CHECKING:
    from .compiled import Code

MOST_LASTING = 4096
MOST, MOST_PART, MOST_BYTES = 256, 4, 1 << 28
"""Other functions that are kept, and the part of the memory for values, or the bytes, that they take."""
_MOST_GUARDED = 1024
"""Functions that are known to be what they were; a call of another one forgets the oldest."""
_FUNCTIONS = {FunctionType, BuiltinFunctionType, type, np.ufunc, type(functools.cache(len))}
"""Types of functions that are the same only if they are identical."""
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

    def to_bytes(self) -> bytes:
        """Return it with a number of its own: workers know by it what they have."""
        return _HEAD.pack(next(_numbers), self.serial, self.how) + self.body

    @classmethod
    def from_bytes(cls, raw: bytes | memoryview) -> Payload:
        _, serial, how = _HEAD.unpack_from(raw)
        return cls(How(how), serial, bytes(raw[_HEAD.size :]))


def number_in(raw: bytes | memoryview) -> int:
    number: int = _HEAD.unpack_from(raw)[0]
    return number


def payload_of(
    task: Task,
    inherited: Mapping[str, Any] | None,
    *,
    to_threads: bool = False,
    to_endpoints: bool = False,
) -> tuple[Payload, Guards | None]:
    """Return what workers make a task from, and what must hold for this to stay right.

    `inherited` is what they have of `__main__`, None: all of it. Workers that are threads of this process
    call the very function; those at endpoints may be on other machines.
    """
    if to_threads:
        return Payload(How.KEPT | How.INHERITED, task.serial, b""), None if task.is_passing else []
    guards = guards_of_task(task, inherited)
    how = How(0) if guards is None else How.KEPT
    if named := name_of(task, inherited) or name_of(task.py_func, inherited):
        how |= How.NAMED
    elif task.code is not None:
        how |= How.INHERITED
    about = task.timeout, task._options, named or task.py_func
    arrays = _arrays_read_by(task.py_func) if named and not to_endpoints else ()
    try:
        return Payload(
            how, task.serial, *content_of(about, inherited, to_endpoints, arrays)
        ), guards
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:MOST_WHY]
        if task.is_passing:
            raise TypeError(f"{task!r} cannot be pickled: {why}") from error
        return Payload(How.KEPT | How.INHERITED, task.serial, why.encode(errors="replace")), []


class Received(NamedTuple):
    """A function as a worker gets it."""

    function: Callable[..., Any]
    timeout: float | None
    code: Code | None


def received(payload: Payload) -> Received:
    """Return the function of a payload, in a worker."""
    mine = known.get(payload.serial) if payload.how & How.INHERITED else None
    if mine is not None:
        return Received(mine.run, mine.timeout, mine.code)
    try:
        timeout, options, target = pickle.loads(payload.body)
    except Exception:
        if not payload.how & How.INHERITED:
            raise
        why = payload.body.rstrip(b"\0").decode(errors="replace")  # a block has some behind it
        raise TypeError(
            f"this function refers to something that cannot be pickled ({why}), and this worker does not "
            "have it: put it into a module, or let it refer to nothing of that kind; or, for workers "
            'that are forked (start_method="fork"), make it before the first call'
        ) from None
    if payload.how & How.NAMED:
        module, name = target
        target = find_imported(module, name)
        if target is None:
            importlib.import_module(module)
            target = find_imported(module, name)
        if target is None:
            raise AttributeError(f"module {module!r} of this worker has no {name!r}")
    if isinstance(target, Task):
        return Received(target.run, timeout, target.code)
    if options is None:
        return Received(target, timeout, None)
    from .compiled import Code

    code = Code(target, options)
    return Received(code.run, timeout, code)


# ---------------------------------------------------------------- by name
def name_of(target: Any, inherited: Mapping[str, Any] | None) -> tuple[str, str] | None:
    """Return module and name under which workers find the same object; None if there are none."""
    if isinstance(target, BuiltinFunctionType | MethodType):
        if module := module_with(target):  # of a global generator of random numbers
            return module.__name__, target.__name__
        if isinstance(target, MethodType) and not isinstance(target.__self__, type):
            return None
    module = getattr(target, "__module__", None)
    if isinstance(target, MethodDescriptorType | WrapperDescriptorType):
        module = target.__objclass__.__module__
    name = getattr(target, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    for one in cloudpickle.list_registry_pickle_by_value():  # what cloudpickle was told to pickle
        if module == one or module.startswith(one + "."):
            return None
    if module == "__main__":
        return (module, name) if is_in_main(target, inherited) else None
    found = find_imported(module, name)
    is_same = found == target if isinstance(target, MethodType) else found is target
    return (module, name) if is_same else None


# ---------------------------------------------------------------- by content
def content_of(
    target: Any,
    inherited: Mapping[str, Any] | None,
    to_endpoints: bool,
    arrays: Iterable[Array] = (),
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return something as bytes, and tensors of the shared arrays that it refers to, which go by address.

    `arrays` are others that it reads, if they are shared. Of many, one tensor covers all.
    """
    by_address = ByAddress(to_endpoints=to_endpoints)
    data = pickled(target, by_address, inherited)
    for one in arrays:
        by_address(one)
    spans = sorted(set(by_address.shared))
    if len(spans) > _MOST_TENSORS:
        first = spans[0][0]
        spans = [(first, max(start + nbytes for start, nbytes in spans) - first)]
    reads: list[bytes] = []
    for start, nbytes in spans:
        shape = (nbytes,) if nbytes <= _PIECE else (-(-nbytes // _PIECE), _PIECE)
        tensor = ContinuousTensor(start, shape, DataType.UINT8)
        reads += tensor._wire[:TAG_AT], with_tag(b"", L.INPUT)
    return data, tuple(reads)


def _arrays_read_by(function: Any) -> list[Array]:
    """Return the arrays among the globals of a function, which workers find by name."""
    if type(function) is not FunctionType:
        return []
    names = _names_in(function.__code__) or ()
    found = [function.__globals__.get(name) for name in names]
    return [one for one in found if type(one) is np.ndarray]


# ---------------------------------------------------------------- what stays as it was
Guards: TypeAlias = list[tuple[Callable[[], Any], Any]]
"""All that a function refers to, if none of it can change and no call of the function changes it.

Names of modules, and cells of closures, may mean something else later: each is looked up, and compared
with what it was.
"""


def hold(guards: Guards) -> bool:
    return all(look() is found for look, found in guards)


def guards_of_task(task: Task, inherited: Mapping[str, Any] | None) -> Guards | None:
    """Return what must hold for workers to have the function as it is; None: it can change."""
    is_named = name_of(task, inherited) or name_of(task.py_func, inherited)
    if is_named or task.code is not None or isinstance(task.py_func, Unchanging):
        return []
    found: Guards = []
    return found if _guard(task.py_func, inherited, found, set()) else None


def _guard(target: Any, inherited: Mapping[str, Any] | None, found: Guards, seen: set[int]) -> bool:
    """Add what a value refers to; return whether it cannot change."""
    if _is_constant(target) or id(target) in seen:
        return True
    seen.add(id(target))
    if isinstance(target, ModuleType) or name_of(target, inherited) is not None:
        return True
    if type(target) is not FunctionType or vars(target) or len(found) > _MOST_GUARDS:
        return False
    names = _names_in(target.__code__)
    defaults = *(target.__defaults__ or ()), *(target.__kwdefaults__ or {}).values()
    if names is None or target.__kwdefaults__ or not all(map(_is_constant, defaults)):
        return False
    if defaults:
        found.append((functools.partial(getattr, target, "__defaults__"), target.__defaults__))
    looks: list[Callable[[], Any]] = [
        functools.partial(_contents, cell) for cell in target.__closure__ or ()
    ]
    looks += [functools.partial(target.__globals__.get, name, _ABSENT) for name in names]
    for look in looks:
        value = look()
        found.append((look, value))
        if value is not _ABSENT and not _guard(value, inherited, found, seen):
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
    codes = [code]  # and all that is defined in it
    for one in codes:
        codes += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
        for step in dis.get_instructions(one):
            if step.opname in _CHANGES and step.argval not in one.co_cellvars:
                return None
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                names.add(step.argval)
    return frozenset(names)


# ---------------------------------------------------------------- in blocks
class SentFunctions:
    """The functions that a stream has sent; `tasks` are those of plain functions."""

    def __init__(self, stream: Any, blocks: Blocks, tasks: dict[Any, Task]) -> None:
        self._stream = stream
        self._session: Session = stream._session
        self._engine = self._session.engine
        self._blocks, self._tasks = blocks, tasks
        self._plans: dict[Task, tuple[CallPlan, Guards]] = {}
        self._lasting: dict[Any, CallPlan] = {}
        self._others: OrderedDict[Any, CallPlan] = OrderedDict()
        """Those sent last at the end."""
        self._nbytes = 0

    # ------------------------------------------------------------ of a task
    def task_of(self, function: Any, workers: tuple[int, ...] = ()) -> Task:
        """Return the task of a plain function, the same one for as long as that stays what it is."""
        is_function = type(function) in _FUNCTIONS and not workers
        found = self._tasks.get(function) if is_function else None
        if found is None:
            found = Task(function, signature_of(function), workers=workers)
            if is_function:
                self._tasks[function] = found
            else:
                found.is_passing = True
        return found

    def plan_of(self, task: Task) -> CallPlan:
        """Return what is known of a task's calls, with its function as it is now."""
        before = self._plans.get(task)
        if before is not None and hold(before[1]):
            return before[0]
        payload, guards = self._stream.sent(task)
        plan = self.plan(task, payload, lasts=guards is not None and not guards)
        with self._stream.mutex.queue, self._stream.mutex.lock:
            if guards is None:
                self._forget_task(task)
            else:
                self._plans[task] = plan, guards
                if plan.lease is None and not guards:
                    self._stream._quick.know(task, plan)
                if len(self._plans) > _MOST_GUARDED:
                    oldest = next((one for one, (_, guards) in self._plans.items() if guards), None)
                    if oldest is not None:
                        self._forget_task(oldest)
        return plan

    def plan(self, task: Task, payload: Payload, *, lasts: bool) -> CallPlan:
        """Put a function into a block, unless an equal one has been sent: workers find it by the offset.

        `lasts`: the block is never given back, if there are not too many such ones. MemoryError: there is
        no room, until calls have ended.
        """
        workers = self._stream.require_workers(task)
        if task.timeout is not None and self._session.in_threads:
            raise ValueError(
                f"{task!r} has a time limit, and this Worker's workers are threads, which cannot be "
                'ended: leave out timeout=, or use child_mode="process"'
            )
        name = task.__qualname__
        body = payload.body if len(payload.body) < 64 else blake2b(payload.body).digest()
        serial = payload.serial if payload.how & How.INHERITED else 0
        about = name, task.timeout, task.retries, task.workers, task.signature.parameters
        key = payload.how, serial, body, about
        with self._stream.mutex.queue, self._stream.mutex.lock:
            found = self._lasting.get(key) or self._others.get(key)
            if found is None:
                found = self._make(task, payload, workers, lasts)
                (self._others if found.lease else self._lasting)[key] = found
                most = min(self._blocks.nbytes // MOST_PART, MOST_BYTES)
                while len(self._others) > 1 and (len(self._others) > MOST or self._nbytes > most):
                    if not self._may_forget():
                        break
                    self._drop(next(iter(self._others)))  # what was not sent for long
            elif found.lease:
                self._others.move_to_end(key)
        return found

    def _make(
        self, task: Task, payload: Payload, workers: tuple[int, ...], lasts: bool
    ) -> CallPlan:
        lasts = lasts and len(self._lasting) < MOST_LASTING
        if lasts:
            payload = payload._replace(how=payload.how | How.LASTING)
        raw = payload.to_bytes()
        try:
            block = self._blocks.take(len(raw))
        except MemoryError:
            self.forget()
            block = self._blocks.take(len(raw))
        block.data[:] = raw
        offset, name = block.offset, task.__qualname__
        names, limits = self._session.call_names, self._stream.errors.limits
        set_retries(self._engine.mem, offset, task.retries)
        about = names.get(offset, name), limits.get(offset)
        if about != (name, task.timeout):  # errors of calls that have ended tell those
            self._stream.keep_values()
        names[offset] = name
        limits.pop(offset, None)
        if task.timeout is not None:
            limits[offset] = task.timeout
        lease = None
        if not lasts:
            self._nbytes += len(raw)
            lease = self._stream.leases.begin(offset)
            self._engine.kernels.hold_block(self._engine.mem, offset, -1)
        is_inherited = bool(payload.how & How.INHERITED)
        return CallPlan(task, offset, workers, lease, len(raw), payload.reads, is_inherited)

    # ------------------------------------------------------------ to forget
    def begin_anew(self) -> None:
        """Send all functions again: there are other workers."""
        self._plans.clear()
        self._tasks.clear()
        self._lasting.clear()
        self.forget()

    def _forget_task(self, task: Task) -> None:
        """Look at a function anew when it is called again."""
        self._plans.pop(task, None)
        if type(task.py_func) in _FUNCTIONS and self._tasks.get(task.py_func) is task:
            del self._tasks[task.py_func]

    def forget(self) -> None:
        """Forget all that is not for good."""
        while self._others and self._may_forget():
            self._drop(next(iter(self._others)))
        self._stream.leases.look()

    def _may_forget(self) -> bool:
        """Say whether blocks of functions may be given back.

        A trace needs their names, and threads the functions themselves until their calls have ended.
        """
        view = self._engine.view
        is_idle = view.ended == view.next_task_id
        return not view.is_traced and (is_idle or not self._session.in_threads)

    def _drop(self, key: Any) -> None:
        plan = self._others.pop(key)
        self._nbytes -= plan.nbytes
        for task in [task for task, (one, _) in self._plans.items() if one is plan]:
            self._forget_task(task)


def signature_of(function: Any) -> Signature:
    """Return the signature of a plain function; its arguments are values where it has none to be read."""
    if not callable(function):
        raise TypeError(f"a call needs a function, got {type(function).__name__}: {function!r:.60}")
    require_runnable("submit", function)
    if isinstance(function, FunctionType):
        with suppress(TypeError):
            return Signature.of(function)
    return Signature.any()
