"""A scheduler for dask: the tasks of its graphs as calls of a Worker.

    a graph       in an order in which dependencies come first, and soon before what needs them
                  (depth first, from the keys that are wanted)
    blocks        pieces of that order, each of which should take a few milliseconds: one call
    a call        `_run`: the steps of its block, and the futures of the blocks whose values they need
    its value     what other blocks need, or the program: a list, unless it is one

The engine sees the futures and has a block wait for those that it needs. The program refers to a future
as long as blocks that need it are to be submitted; the engine does, until these have ended. So values
stay in shared memory, and are dropped as soon as no task needs them.

Workers note how long the tasks of each kind take, and how large their values are, in an array that all of
them share. A kind is a function, with the beginning of the keys. As long as nothing is known of a kind,
and if it takes long or returns much, a task is a block of its own.

If dask's callbacks want to know of tasks, as its progress bar does, or there is a cache, dask's own loop
walks through the graph, with the workers in the place of its threads.

Rule     CALL-DASK-1
"""

from __future__ import annotations

import mmap
import os
import pickle
import sys
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from dask import config
from dask._task_spec import Alias, DataNode, GraphNode, Task, TaskRef, convert_legacy_graph
from dask.callbacks import Callback
from dask.core import flatten
from dask.local import get_async, get_sync, nested_get

from ..callables.pickling import SharedArrays
from ..calls.futures import Future
from ..calls.tasks import here
from ..engine.memory import PARK_NS
from ..model.tensor import view_memory
from ..system.types import address_of

_SHARED_FROM = 1 << 16
"""In bytes: larger arrays of a graph are shared, not pickled."""
_BLOCK_S, _MOST_STEPS = 2e-3, 512
"""How long a block should take, and how many steps it has at most."""
_SECONDS_OF_A_BYTE = 1e-8
"""What a byte of a value counts as: large ones should not wait for others of their block."""
_UNDER_WAY = 32
"""How many blocks for each worker are submitted ahead."""
_MOST_KINDS = 4096
_ALONE = -1
"""In the place of a value's number in the list of a block: it has no other one."""
_MOST_FUTURES = 48
"""How many futures a block has as its arguments; of more blocks the program asks for the values."""


# ---------------------------------------------------------------- in a worker
def _run(data: bytes, more: bytes | None, *inputs: Any) -> Any:
    """Do the steps of a block, and return the values that others need; one as it is, without a list."""
    values, sources, steps, outputs, (address, shape) = pickle.loads(data)
    if more is not None:
        values.update(pickle.loads(more))
    for numbers, found in zip(sources, inputs, strict=True):
        for place, number in numbers:
            values[number] = _taken(found, place)
    noted: dict[int, list[float]] = {}
    for number, kind, function, args, refs in steps:
        start = time.perf_counter()
        if args is None:
            value = function({key: values[one] for key, one in refs})
        else:
            filled = list(args)
            for place, one in refs:
                filled[place] = values[one]
            value = function(*filled)
        values[number] = value
        if kind >= 0:
            row = noted.setdefault(kind, [0.0, 0.0, 0.0])
            row[0] += 1
            row[1] += time.perf_counter() - start
            row[2] += _size(value)
    table = view_memory(address, shape, np.dtype(float))[here.mailbox.worker]
    for kind, row in noted.items():
        table[kind] += row
    found = [values.pop(number) for number in outputs]
    return found[0] if len(found) == 1 else found


def _taken(found: Any, place: int) -> Any:
    return found if place == _ALONE else found[place]


def _size(value: Any) -> int:
    if type(value) in (int, float, bool, type(None)):
        return 0
    try:
        nbytes = getattr(value, "nbytes", None)
        return nbytes if isinstance(nbytes, int) else sys.getsizeof(value, 0)
    except Exception:  # of some class that tells it in a way of its own
        return 0


def _run_batch(graph: bytes, made: bytes) -> Any:
    """Do what dask's own loop asks for: some tasks, with the values that they need."""
    function, tasks = pickle.loads(graph)
    found = pickle.loads(made)
    return function(
        [
            (key, (task, {**data, **values}), *rest)
            for (key, task, data, *rest), values in zip(tasks, found, strict=True)
        ]
    )


def _read_only(shape: tuple[int, ...], dtype: Any, content: bytes) -> Any:
    """Return an array that nothing can write: it is the content itself."""
    return np.ndarray(shape, dtype, content)


# ---------------------------------------------------------------- arrays of a graph
class _ArraysOfGraph(SharedArrays):
    """Arrays that tasks get from the graph itself: written if the program has shared or mapped them.

    What a task would write into another one, as `store` does, would be lost.
    """

    def reduce(self, array: Any) -> Any:
        file = array if isinstance(array, np.memmap) else None
        while file is not None and not isinstance(file.base, mmap.mmap):
            file = file.base if isinstance(file.base, np.memmap) else None
        if (
            file is None
            or file.filename is None
            or file.mode == "c"
            or not array.flags.c_contiguous
        ):
            return super().reduce(array)
        offset = file.offset + address_of(array) - address_of(file)
        mode = "r+" if array.flags.writeable else "r"
        return np.memmap, (file.filename, array.dtype, mode, offset, array.shape)

    def mode_of_shared(self, array: Any) -> str:
        return "r+" if array.flags.writeable else "r"

    def reduce_small(self, array: Any) -> Any:
        return _read_only, (array.shape, array.dtype, array.tobytes())


def _arrays_made(stream: Any) -> SharedArrays:
    """Return how arrays travel that tasks have made: each task gets a copy of its own."""
    return SharedArrays(stream, _SHARED_FROM, "c", of_shared="c")


# ---------------------------------------------------------------- kinds of tasks
class _Kinds:
    """What is known of tasks, by their functions and the beginning of their keys."""

    def __init__(self, stream: Any) -> None:
        self._numbers: dict[Any, int] = {}
        shape = stream._engine.view.workers, _MOST_KINDS, 3
        self._table = stream._session.arena.zeros(shape, float)
        self.place = self._table.ctypes.data, shape
        self.costs: dict[int, float] = {-1: 0.0}
        """How long a task of a kind takes, with what its value counts, as far as that is known."""

    def number(self, node: GraphNode) -> int:
        """Return the number of a task's kind; -1: it takes no time, -2: there are too many."""
        if type(node) is Alias:
            return -1
        key = node.key
        about = id(node.func), key[0] if isinstance(key, tuple) else None
        found = self._numbers.get(about)
        if found is None:
            if len(self._numbers) == _MOST_KINDS:
                return -2
            found = self._numbers[about] = len(self._numbers)
        return found

    def look(self) -> None:
        rows = self._table[:, : len(self._numbers)].sum(axis=0)
        for kind in np.flatnonzero(rows[:, 0]).tolist():
            count, seconds, nbytes = rows[kind].tolist()
            self.costs[kind] = (seconds + nbytes * _SECONDS_OF_A_BYTE) / count


# ---------------------------------------------------------------- a graph
def _in_order(graph: Mapping[Hashable, GraphNode], wanted: Iterable[Any]) -> Iterator[Any]:
    """Yield the keys that are needed for some, each behind those that it needs."""
    opened: set[Any] = set()
    done: set[Any] = set()
    for one in wanted:
        stack = [one]
        while stack:
            key = stack[-1]
            if key in done:
                stack.pop()
            elif key in opened:
                stack.pop()
                done.add(key)
                yield key
            else:
                opened.add(key)
                try:
                    needs = [each for each in graph[key].dependencies if each not in done]
                except KeyError:
                    users = {each for each, node in graph.items() if key in node.dependencies}
                    if not users:
                        raise
                    raise ValueError(f"Missing dependency {key} for dependents {users}") from None
                if any(each in opened for each in needs):
                    raise RuntimeError(f"Cycle detected in Dask: {key!r} needs itself")
                stack.extend(needs)


class _Run:
    """The tasks of one graph."""

    def __init__(
        self, stream: Any, workers: int, graph: Mapping[Any, GraphNode], wanted: Collection[Any]
    ):
        self._stream, self._workers = stream, workers
        self._graph, self._wanted = graph, wanted
        self._task = stream.task_of(_run)
        self._arrays = _ArraysOfGraph(stream, _SHARED_FROM)
        self._arrays_made = _arrays_made(stream)
        self._kinds = _Kinds(stream)
        self._under_way: list[Future] = []
        """Blocks that have not ended, as far as that is known."""
        self._seen = stream.ended
        """How many calls had ended when that was looked at."""
        self._made: dict[Any, tuple[Future, int]] = {}
        """Which block has the value of a key that somebody will need, and its place there."""
        self._needs: dict[Any, int] = {}
        """How many tasks that are not submitted need the value of a key."""
        self._unneeded: list[Any] = []
        """Keys that only the block which is being made has needed."""

    def values(self) -> dict[Any, Any]:
        graph = self._graph
        order = [key for key in _in_order(graph, self._wanted) if type(graph[key]) is not DataNode]
        for key in order:
            for one in graph[key].dependencies:
                self._needs[one] = self._needs.get(one, 0) + 1
        try:
            self._submit_all(order)
            while self._under_way:
                self._wait()
            return {key: self._value(key) for key in self._wanted}
        except BaseException:
            for future in self._under_way:
                if not future.cancel():
                    future.be_silent()
            raise

    def _value(self, key: Any) -> Any:
        node = self._graph[key]
        if type(node) is DataNode:
            return node.value
        block, place = self._made[key]
        return _taken(block.result(), place)

    # ------------------------------------------------------------ blocks
    def _submit_all(self, order: list[Any]) -> None:
        part: list[tuple[Any, int]] = []
        cost, most = 0.0, self._most(len(order))
        for at, key in enumerate(order):
            kind = self._kinds.number(self._graph[key])
            each = self._kinds.costs.get(kind)
            if part and (each is None or cost + each > _BLOCK_S or len(part) >= most):
                self._submit(part)
                part, cost, most = [], 0.0, self._most(len(order) - at)
                each = self._kinds.costs.get(kind)
            part.append((key, kind))
            if each is None:
                self._submit(part)
                part = []
            else:
                cost += each
        if part:
            self._submit(part)

    def _most(self, left: int) -> int:
        """Return how many steps the next block has at most: all workers should have one at the end."""
        return max(1, min(_MOST_STEPS, left // (2 * self._workers)))

    def _submit(self, part: list[tuple[Any, int]]) -> None:
        """Submit a block, once there are not too many."""
        self._look()
        while len(self._under_way) >= _UNDER_WAY * self._workers:
            self._wait()
        numbers = {key: number for number, (key, _) in enumerate(part)}
        values: dict[int, Any] = {}
        taken: dict[Future, list[tuple[int, int]]] = {}
        steps = [self._step(key, kind, numbers, values, taken) for key, kind in part]
        made: dict[int, Any] = {}
        while len(taken) > _MOST_FUTURES:
            block, places = taken.popitem()
            found = block.result()
            made.update({number: _taken(found, place) for place, number in places})
        outputs = [
            number
            for number, (key, _) in enumerate(part)
            if self._needs.get(key) or key in self._wanted
        ]
        content = values, list(taken.values()), steps, outputs, self._kinds.place
        data = self._arrays.pickle(content)
        more = self._arrays_made.pickle(made) if made else None
        block = self._stream.submit(self._task, (data, more, *taken), {})
        self._under_way.append(block)
        for place, number in enumerate(outputs):
            self._made[part[number][0]] = block, place if len(outputs) > 1 else _ALONE
        self._forget()

    def _step(
        self,
        key: Any,
        kind: int,
        numbers: dict[Any, int],
        values: dict[int, Any],
        taken: dict[Future, list[tuple[int, int]]],
    ) -> tuple[Any, ...]:
        """Return a task as workers get it; note what it takes from elsewhere."""
        node = self._graph[key]
        refs = []
        for one in node.dependencies:
            number = numbers.get(one)
            if number is None:
                number = numbers[one] = len(numbers)
                other = self._graph[one]
                if type(other) is DataNode:
                    values[number] = other.value
                else:
                    block, place = self._made[one]
                    taken.setdefault(block, []).append((place, number))
            refs.append((one, number))
            self._needs[one] -= 1
            if not self._needs[one]:
                self._unneeded.append(one)
        if type(node) is Task and not node.kwargs:
            args = node.args
            if not any(isinstance(one, GraphNode) for one in args):
                places = [at for at, one in enumerate(args) if type(one) is TaskRef]
                given = [None if type(one) is TaskRef else one for one in args]
                at_places = [(at, numbers[args[at].key]) for at in places]
                return numbers[key], kind, node.func, given, at_places
        return numbers[key], kind, node, None, refs

    def _forget(self) -> None:
        """Drop the values that no task needs which is still to be submitted."""
        for key in self._unneeded:
            if key not in self._wanted:
                self._made.pop(key, None)
        self._unneeded.clear()

    def _wait(self) -> None:
        """Wait until a call has ended, and look which it was."""
        self._stream.wait_for_end(self._seen, PARK_NS)
        self._look()

    def _look(self) -> None:
        """Look which blocks have ended, and drop them: others may still refer to their futures.

        It raises what a task has raised.
        """
        ended = self._stream.ended
        if ended == self._seen:
            return
        self._seen, view = ended, self._stream._engine.view
        left = []
        for future in self._under_way:
            slot = future._slot
            if not future.done():
                left.append(future)
            elif view.outcome(slot)[0] if slot else future._error is not None:
                future.result()
        self._under_way = left
        self._stream.drop_forgotten()
        self._kinds.look()


# ---------------------------------------------------------------- what Worker has
def get(worker: Any, dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Return the values of keys of a graph; see `Worker.dask_get`."""
    if here.nested is not None:
        return get_sync(dsk, keys, **kwargs)
    stream = worker._stream()
    if not worker._life.subs:
        raise RuntimeError("dask's tasks run in sub workers of this machine: give num_sub_workers")
    workers = len(worker._life.subs)
    callbacks = kwargs.get("callbacks")
    again = kwargs.get("rerun_exceptions_locally")
    if again is None:
        again = config.get("rerun_exceptions_locally", False)
    has_cache = kwargs.get("cache") is not None or config.get("cache", None) is not None
    graph = convert_legacy_graph(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__())
    if again or has_cache or (Callback.active if callbacks is None else callbacks):
        return _get_by_dask(stream, workers, graph, keys, kwargs, again)
    wanted = dict.fromkeys(flatten(keys) if isinstance(keys, list) else [keys])
    found = _Run(stream, workers, graph, wanted).values()
    return nested_get(keys, found)


def _get_by_dask(
    stream: Any, workers: int, graph: Any, keys: Any, kwargs: dict[str, Any], again: bool
) -> Any:
    """Return the values of keys, with dask's own loop, which calls callbacks."""
    arrays = _ArraysOfGraph(stream, _SHARED_FROM)
    made = _arrays_made(stream)
    call = stream.task_of(_run_batch)

    def submit(function: Any, batch: Any) -> Future:
        tasks, found = [], []
        for key, (task, values), *rest in batch:
            given = {one for one in values if type(graph.get(one)) is DataNode}
            tasks.append((key, task, {one: values[one] for one in given}, *rest))
            found.append({one: value for one, value in values.items() if one not in given})
        args = arrays.pickle((function, tasks)), made.pickle(found)
        future: Future = stream.submit(call, args, {})
        return future

    # with such an error dask's loop runs the task again
    how = {"pack_exception": lambda error, dumps: dumps((error, None))} if again else {}
    return get_async(submit, workers, graph, keys, get_id=os.getpid, **how, **kwargs)
