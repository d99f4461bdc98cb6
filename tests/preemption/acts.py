"""What the programs do that are got in the way of: random runs, each with what it must have computed.

An act is a run of a Worker, or some of them, and returns how many tasks they had. It raises `Wrong` if
the arrays do not end as if the tasks had run one after the other, or a failure does not end as it should.
"""

from __future__ import annotations

import random

import numpy as np
from numba import int64, uint64

from simpler_ref import (
    CallableError,
    ControlError,
    Rows,
    TaskError,
    Worker,
    WorkerLostError,
    WorkerStartError,
    leaf,
)
from simpler_ref import TensorArgType as T

from ..property.test_random_runs import FACTOR, MASK, WORDS, Program, mix
from ..support import make_args
from .shapes import LENGTH, RINGS, Shape

ARRAYS = 5
TINY, WIDES = 3000, 1000
CELLS = TINY + WIDES
ROWS = 6
WIDE = 40
"""A task has fewer tensors than this. Beside small ones, slots and bodies soon become other ones."""


class Wrong(AssertionError):
    """Something was computed that should not have been, or was not."""


# ---------------------------------------------------------------- what tasks do
def _mix_leaf(tensors: int):
    """Return `mix` of that many tensors as a compiled leaf."""
    names = [f"t{i}" for i in range(tensors)]
    lines = [f"def mix_{tensors}({', '.join(names)}, read, written, number):"]
    for i, name in enumerate(names):
        lines += [
            f"    if read >> {i} & 1:",
            f"        for value in {name}:",
            f"            number = number * np.uint64({FACTOR}) + value",
        ]
    for i, name in enumerate(names):
        lines += [
            f"    if written >> {i} & 1:",
            f"        for k in range({WORDS}):",
            f"            {name}[k] = number + np.uint64({i * FACTOR & MASK}) + np.uint64(k)",
        ]
    made: dict = {"np": np}
    exec("\n".join(lines), made)
    function = made[f"mix_{tensors}"]
    function.__annotations__ = {
        **dict.fromkeys(names, uint64[:]),
        "read": int,
        "written": int,
        "number": uint64,
    }
    return leaf(function)


@leaf
def count(cells: int64[:], cell: int):
    """Count a task in the cell that is its own."""
    cells[cell] += 1


@leaf
def link(row: uint64[:], number: uint64):
    """Be a link of a chain: whoever comes early, late, twice or never leaves another row."""
    for k in range(row.size):
        row[k] = row[k] * np.uint64(FACTOR) + number


def count_wide(args):
    args.tensor(0).numpy()[args.scalar(0)] += 1


def fail(args):
    raise ValueError(f"planned {args.scalar(0)}")


class Caller:
    """A worker kind of its own, for the next-level pool."""

    def run(self, function, view, config):
        function(view)


# ---------------------------------------------------------------- graphs
class Graph(Program):
    """A random graph on both pools, whose open scopes hold no more than there is room for."""

    def __init__(self, stage, orch, shared, values, rng):
        super().__init__(orch, stage.mix, shared, values, rng, min(5, stage.shape.subs))
        self.stage = stage
        self.tasks, self.slabs = [0], [0]  # of each open scope

    def step(self):
        """Take a step; say whether there is room for another."""
        rng, shape = self.rng, self.stage.shape
        room = shape.room - sum(self.tasks) > 2 and shape.slabs - sum(self.slabs) > self.workers + 2
        depth = len(self.frames)
        if not room and depth == 1:
            return False
        if not room or (depth > 1 and rng.random() < 0.04):
            self.close()
        elif depth < RINGS and ((depth == 1 and shape.is_tight) or rng.random() < 0.1):
            self.orch.scope_begin()
            self.frames.append([])
            self.tasks.append(0)
            self.slabs.append(0)
        elif rng.random() < 0.1:
            self.hold(1, 1)
            self.alloc()
        else:
            self.submit()
        return True

    def hold(self, tasks, slabs):
        self.tasks[-1] += tasks
        self.slabs[-1] += slabs

    def close(self):
        self.frames.pop()
        self.tasks.pop()
        self.slabs.pop()
        self.orch.scope_end()

    def hand_over(self, made, members):
        rng, orch, next_level = self.rng, self.orch, self.stage.shape.next_level
        self.hold(1, len(made))
        if members and members <= next_level and rng.random() < 0.5:
            chosen = rng.sample(range(next_level), members)
            places = [p if rng.random() < 0.5 else -1 for p in chosen]
            orch.submit_next_level_group(self.handle, made, workers=places)
        elif members:
            orch.submit_sub_group(self.handle, made)
        elif next_level and rng.random() < 0.4:
            orch.submit_next_level(self.handle, made[0], worker=rng.randrange(-1, next_level))
        else:
            compiled = self.stage.leaves.get(made[0].tensor_count(), self.handle)
            orch.submit_sub(compiled if rng.random() < 0.7 else self.handle, made[0])


# ---------------------------------------------------------------- acts
class Stage:
    """A Worker, what is registered with it, the arrays it works on, and the acts."""

    def __init__(self, worker: Worker, shape: Shape):
        self.worker, self.shape = worker, shape
        self.tasks = self.lost = 0
        self.mix = worker.register(mix)
        self.fail = worker.register(fail)
        self.wide = worker.register(count_wide)
        uses = set(shape.acts)  # what is compiled takes a while
        self.leaves = {}
        if uses & {"graph", "replay", "failing"}:
            self.leaves = {n: worker.register(_mix_leaf(n)) for n in (2, 3)}
        if uses & {"counting", "recount"}:
            self.count = worker.register(count)
        if "bulk" in uses:
            self.link = worker.register(link)
        self.arrays = [worker.empty(WORDS, np.uint64) for _ in range(ARRAYS)]
        self.rows = worker.empty((ROWS, WORDS), np.uint64)
        self.cells = worker.empty(CELLS, np.int64)
        self.recordings: list = []

    def prepare(self):
        """Start the workers, and make what takes long, before anybody is got in the way of."""
        self.worker.start()
        rng = random.Random(self.shape.seed)
        self.tiny = [make_args((self.cells, T.NO_DEP), scalars=[cell]) for cell in range(TINY)]
        self.wides = [
            make_args(*[(self.cells, T.NO_DEP)] * rng.randrange(1, WIDE), scalars=[cell])
            for cell in range(TINY, CELLS)
        ]
        if "replay" in self.shape.acts:
            self.recordings = [self.record_graph(self.shape.seed + i) for i in range(3)]
        if "recount" in self.shape.acts:
            used: list[int] = []
            made = self.worker.record(lambda orch, *_: used.extend(self.count_on(orch, rng)))
            self.recount_with = made, used

    def record_graph(self, seed):
        values = self.start_values()
        return self.worker.record(lambda orch, *_: self.graph_on(orch, values, seed)), values

    def play(self, act: str, rng: random.Random):
        """Carry an act out; a worker that was killed may end it early."""
        try:
            getattr(self, act)(rng)
        except (WorkerLostError, WorkerStartError, CallableError, ControlError):
            if not self.shape.kills:
                raise
            self.lost += 1
        except TaskError as error:
            raise Wrong(f"{act} failed: {error}") from error

    def run(self, orch_fn):
        self.tasks += self.worker.run(orch_fn).tasks

    # ------------------------------------------------------------ values
    def start_values(self):
        return {name: [name * 100 + k for k in range(WORDS)] for name in range(ARRAYS)}

    def set_arrays(self):
        for name, words in self.start_values().items():
            self.arrays[name][:] = words

    def compare_arrays(self, values, what):
        for name, array in enumerate(self.arrays):
            if array.tolist() != values[name]:
                raise Wrong(f"{what}: array {name} is {array.tolist()}, not {values[name]}")

    def graph_on(self, orch, values, seed):
        rng = random.Random(seed)
        graph = Graph(self, orch, self.arrays, values, rng)
        for _ in range(rng.randint(1, LENGTH)):
            if not graph.step():
                break
        return graph

    def graph(self, rng):
        values, seed = self.start_values(), rng.getrandbits(32)
        self.set_arrays()
        self.run(lambda orch, *_: self.graph_on(orch, values, seed))
        self.compare_arrays(values, f"graph {seed}")

    def replay(self, rng):
        number = rng.randrange(len(self.recordings))
        made, values = self.recordings[number]
        for _ in range(rng.randint(1, 4)):
            self.set_arrays()
            self.tasks += made.run().tasks
            self.compare_arrays(values, f"recording {number}")

    def failing(self, rng):
        values, number = self.start_values(), rng.getrandbits(40)
        self.set_arrays()

        def orch_fn(orch, *_):
            graph = self.graph_on(orch, values, rng.getrandbits(32))
            while len(graph.frames) > 1:
                graph.close()
            tensor = rng.choice(self.arrays)
            orch.submit_sub(self.fail, make_args((tensor, T.INOUT), scalars=[number]))
            self.graph_on(orch, values, rng.getrandbits(32))

        try:
            self.run(orch_fn)
        except WorkerLostError:
            raise
        except TaskError as error:
            if f"ValueError: planned {number}" not in str(error):
                raise Wrong(f"the failure was to be 'planned {number}', not {error}") from error
            return
        raise Wrong("a run with a task that failed ended well")

    def bulk(self, rng):
        """Submit chains of links on some rows in one call."""
        tasks = rng.randint(1, self.shape.bulk)
        index = [rng.randrange(ROWS) for _ in range(tasks)]
        numbers = np.array([rng.getrandbits(64) for _ in index], np.uint64)
        self.rows[:] = np.arange(WORDS)
        rows = [list(range(WORDS)) for _ in range(ROWS)]
        for row, number in zip(index, numbers.tolist(), strict=True):
            rows[row] = [(word * FACTOR + number) & MASK for word in rows[row]]

        def orch_fn(orch, *_):
            orch.submit_sub_many(self.link, [Rows(self.rows, index)], [T.INOUT], [numbers])

        self.run(orch_fn)
        if self.rows.tolist() != rows:
            raise Wrong(f"bulk: the rows are {self.rows.tolist()}, not {rows}")

    def count_on(self, orch, rng):
        """Submit short scopes of groups and wide tasks, each of which counts in a cell of its own.

        Returns the cells that are used.
        """
        shape, tiny, wide = self.shape, iter(self.tiny), iter(self.wides)
        used = [0, 0]
        for _ in range(rng.randint(1, 4 * LENGTH)):
            members = rng.choice([shape.subs, rng.randint(1, shape.subs)])
            many = 0 if shape.is_compiled else rng.randint(0, 5)
            if used[0] + members + 1 > TINY or used[1] + many > WIDES:
                break
            used = [used[0] + members + 1, used[1] + many]
            orch.scope_begin()
            orch.submit_sub(self.count, next(tiny))
            orch.submit_sub_group(self.count, [next(tiny) for _ in range(members)])
            orch.scope_end()
            for _ in range(many):
                orch.scope_begin()
                orch.submit_sub(self.wide, next(wide))
                orch.scope_end()
        return [*range(used[0]), *range(TINY, TINY + used[1])]

    def compare_cells(self, used, each, what):
        expected = np.zeros(CELLS, np.int64)
        expected[used] = each
        wrong = np.flatnonzero(self.cells != expected)
        if wrong.size:
            found = self.cells[wrong].tolist()
            raise Wrong(
                f"{what}: cells {wrong.tolist()} are {found}, not {expected[wrong].tolist()}"
            )

    def counting(self, rng):
        """Use slots and bodies again as fast as possible, for groups and for wide tasks."""
        used: list[int] = []
        self.cells[:] = 0
        self.run(lambda orch, *_: used.extend(self.count_on(orch, rng)))
        self.compare_cells(used, 1, "counting")

    def recount(self, rng):
        """Do the same from a recording, which submits without Python."""
        made, used = self.recount_with
        self.cells[:] = 0
        times = rng.randint(1, 3)
        for _ in range(times):
            self.tasks += made.run().tasks
        self.compare_cells(used, times, "recount")

    def register(self, rng):
        """Have all workers learn a function between two runs, use it, and forget it."""

        number = rng.getrandbits(60)

        def another(args):
            args.tensor(0).numpy()[args.scalar(0)] += number

        handle = self.worker.register(another)
        self.cells[:] = 0
        cells = rng.randint(1, 9)

        def orch_fn(orch, *_):
            for cell in range(cells):
                orch.scope_begin()
                orch.submit_sub(handle, make_args((self.cells, T.NO_DEP), scalars=[cell]))
                orch.scope_end()

        self.run(orch_fn)
        self.worker.unregister(handle)
        self.compare_cells([*range(cells)], number, "register")
