"""Random programs, submitted in each way there is: the graph is that of the reference model.

No worker answers here, so all that was submitted stays to be looked at. `test_random_graphs.py` has the
steps of passes and workers, `test_random_runs.py` and tests/preemption compare what tasks compute.
"""

import ctypes
import mmap
import random
import struct

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from simpler_ref import ContinuousTensor, DataType, Rows
from simpler_ref import TensorArgType as T
from simpler_ref.check.model import SUB, ModelTensor
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.task_interface import make_tensor

from ..by_hand import ByHand
from ..support import Driver, make_args
from .reference import Reference

pytestmark = pytest.mark.kernels

MEMORY = np.frombuffer(mmap.mmap(-1, 1 << 17), np.uint8).reshape(128, 1024)
"""Shared memory that tensors are parts of."""
RECORDED, BOUND, CONSTANT, BLOCKS = MEMORY[:3], MEMORY[3:6], MEMORY[6:8], MEMORY[64:]
"""Those of a recording's arguments, of a replay's, of any task, and those of columns."""
RING_BYTES = 1 << 22
ELEMENTS = [np.uint8, np.int16, np.float16, np.float32, np.int64]
DTYPES = [np.uint8, np.int16, np.uint32, np.int64, np.uint64, np.float32, np.float64, np.bool_]


def tensor(data, nbytes):
    return ContinuousTensor.make(data, (nbytes,), DataType.UINT8)


def tile(whole, part):
    """Return a quarter of a tensor, or all of it."""
    quarter = whole.nbytes() // 4
    return whole if part == 4 or quarter == 0 else tensor(whole.data + part * quarter, quarter)


# ---------------------------------------------------------------- programs as data
def draw(rng, length):
    """Return a random program, as operations and what they are carried out with."""
    kinds = ["submit"] * 4 + ["group", "many", "many", "alloc", "begin", "end"]
    what = {
        "submit": lambda: [draw_task(rng)],
        "group": lambda: [draw_task(rng) for _ in range(rng.randint(1, 2))],
        "many": lambda: draw_columns(rng),
        "alloc": lambda: rng.randint(0, 3000),
    }
    drawn = rng.choices(kinds, k=rng.randint(0, length))
    return [(kind, what.get(kind, lambda: None)()) for kind in drawn]


def draw_task(rng):
    """Return tensors, with what tag, and scalars."""
    tensors = [(draw_tensor(rng), rng.choice(list(T))) for _ in range(rng.randint(0, 5))]
    return tensors, [draw_scalar(rng) for _ in range(rng.randint(0, 3))]


def draw_tensor(rng):
    """Return an output that the runtime provides, or which tensor is taken, and what part of it."""
    if rng.random() < 0.3:
        return tensor(0, rng.choice([0, 100, 1024, rng.randint(0, 20000)]))
    return rng.randrange(100), rng.randint(0, 4)


def draw_scalar(rng):
    """Return a number, or how it follows from the arguments or from a buffer's address."""
    return rng.choice(
        [
            rng.randint(-(1 << 63), (1 << 64) - 1),
            rng.choice([rng.uniform(-1e9, 1e9), float("inf"), -0.0, True, False]),
            np.float32(rng.uniform(-100, 100)),
            ctypes.c_int32(rng.randint(-100, 100)),
            lambda args, buffers: args.scalar(1),
            lambda args, buffers: args.scalar(0) + 17,
            lambda args, buffers: buffers[len(buffers) // 2].data + 3 if buffers else 4,
        ]
    )


def draw_columns(rng):
    """Return columns of tensors, tags and scalars, each also as a list, and how many tasks that is."""
    count = rng.randint(0, 6 if INTERPRETED else 30)
    tensors = [draw_column(rng, count) for _ in range(rng.randint(0, 6))]
    tags = [draw_same_or_each(rng, count, lambda: rng.choice(list(T))) for _ in tensors]
    scalars = [(one, [one] * count) for one in (draw_scalar(rng), draw_scalar(rng))]
    numbers = (np.arange(count) * 3).astype(rng.choice(DTYPES))
    return tensors, tags, [*scalars, (numbers, list(numbers))], count


def draw_same_or_each(rng, count, draw_one):
    if rng.random() < 0.5:
        one = draw_one()
        return one, [one] * count
    several = [draw_one() for _ in range(count)]
    return several, several


def draw_column(rng, count):
    """Return a column of tensors, and the same as a list."""
    kind = rng.choice(["rows", "named", "given", "same", "broadcast"])
    array = BLOCKS.view(rng.choice(ELEMENTS))[rng.randint(0, 4) :][:: rng.choice([1, 2, -1])]
    if kind == "rows":
        return array[:count], [make_tensor(row) for row in array[:count]]
    if kind == "named":
        index = [rng.randrange(len(array)) for _ in range(count)]
        named = np.array(index, rng.choice([np.int64, np.uint8])) if index else index
        return Rows(array, named), [make_tensor(array[i]) for i in index]
    if kind == "broadcast":
        array = as_strided(BLOCKS[rng.randint(0, 4)], (count, 1024), (0, 1))
        return array, [make_tensor(row) for row in array]
    some = [*map(make_tensor, BLOCKS[:6]), tensor(0, 100), tensor(0, 0), tensor(0, 3000)]
    one = rng.choice(some) if kind == "given" else draw_tensor(rng)
    return one, [one] * count


# ---------------------------------------------------------------- and carried out
def play(program, on, args):
    """Carry a program out: `on` says how, `args` are those of its orchestration function."""
    known = [args.tensor(i) for i in range(args.tensor_count())] + [*map(make_tensor, CONSTANT)]
    buffers, opened = [], 0

    def resolve(what):
        """Return a tensor or a number for what was drawn."""
        if callable(what):
            return what(args, buffers)
        if type(what) is tuple:  # and not Rows
            return tile(known[what[0] % len(known)], what[1])
        return [*map(resolve, what)] if isinstance(what, list) else what

    for kind, what in program:
        made = []
        if kind in ("submit", "group"):
            members = [
                ([(resolve(one), tag) for one, tag in tensors], resolve(scalars))
                for tensors, scalars in what
            ]
            made = on.submit(members, kind == "group")
        elif kind == "many":
            tensors, tags, scalars, count = what
            tensors, scalars = ([tuple(map(resolve, c)) for c in p] for p in (tensors, scalars))
            tags = [
                (T.OUTPUT, [T.OUTPUT] * count) if getattr(column, "data", 1) == 0 else pair
                for (column, _), pair in zip(tensors, tags, strict=True)
            ]
            made = on.many(tensors, tags, scalars, count)
        elif kind == "alloc":
            made = [on.alloc(what)]
            buffers += [one for one in made if one.nbytes() > 3]
        elif kind == "begin" and opened < 6:
            opened += 1
            on.begin()
        elif kind == "end" and opened:
            opened -= 1
            on.end()
        known += [one for one in made if one.data]


class OnEngine:
    """Submits to an engine; what can go in bulk does, or row by row."""

    def __init__(self, orch, handle, in_bulk):
        self.orch, self.handle, self.in_bulk = orch, handle, in_bulk
        self.begin, self.end = orch.scope_begin, orch.scope_end

    def alloc(self, nbytes):
        return self.orch.alloc(nbytes, "uint8")

    def submit(self, members, group):
        made = [make_args(*tensors, scalars=scalars) for tensors, scalars in members]
        if group:
            self.orch.submit_sub_group(self.handle, made)
        else:
            self.orch.submit_sub(self.handle, made[0])
        return [args.tensor(i) for args in made for i in range(args.tensor_count())]

    def many(self, tensors, tags, scalars, count):
        if not self.in_bulk:
            return row_by_row(self, tensors, tags, scalars, count)
        columns = ([column for column, _ in part] for part in (tensors, tags, scalars))
        got = self.orch.submit_sub_many(self.handle, *columns, count=count)
        assert got.shape == (count, len(tensors))
        rows = zip(*[rows for _, rows in tensors], strict=True)
        return [
            ContinuousTensor.make(address, one.shapes, one.dtype)
            for row, addresses in zip(rows, got.tolist(), strict=False)
            for one, address in zip(row, addresses, strict=True)
        ]


def row_by_row(on, tensors, tags, scalars, count):
    made = []
    for i in range(count):
        row = [(a[i], b[i]) for (_, a), (_, b) in zip(tensors, tags, strict=True)]
        made += on.submit([(row, [rows[i] for _, rows in scalars])], False)
    return made


class OnReference:
    """Submits to the reference model of an engine, and keeps what each task carries, as bytes."""

    def __init__(self, driver):
        rings = range(int(driver.mem[L.RINGS]))
        self.model = Reference(
            bases=[driver.ring_word(ring, L.R_BASE) for ring in rings],
            ring_bytes=RING_BYTES,
            window=int(driver.mem[L.WINDOW]),
            next_level=0,
            sub=2,
            depth=1,
            track_reads=bool(driver.mem[L.TRACK_READS]),
        )
        self.bodies = {}  # task → its tensors and scalars
        self.begin, self.end = self.model.open_scope, self.model.close_scope

    def alloc(self, nbytes):
        task = self.model.alloc(nbytes)
        return self.remember(task, [tensor(0, nbytes)], [])[0]

    def submit(self, members, group):
        plain = [
            ([ModelTensor(int(tag), one.data, one.nbytes()) for one, tag in tensors], scalars, -1)
            for tensors, scalars in members
        ]
        given = [one for tensors, _ in members for one, _ in tensors]
        numbers = [number for _, scalars in members for number in scalars]
        return self.remember(self.model.submit(plain, group, 0, SUB, 0), given, numbers)

    def remember(self, task, given, numbers):
        made = [
            ContinuousTensor.make(data, one.shapes, one.dtype)
            for one, (data, _, _) in zip(given, task.tensors, strict=True)
        ]
        body = b""
        for one in made:
            shapes = [*one.shapes, 0, 0, 0, 0, 0][:5]
            body += struct.pack("<Q5IIBB6x", one.data, *shapes, one.ndims, one.dtype, 0)
        self.last = task
        self.bodies[task] = body + b"".join(make_args(scalars=numbers)._scalars)
        return made

    def many(self, *columns):
        return row_by_row(self, *columns)


def check_graph(driver, expected, bodies=None):
    """Compare tasks, what they wait for and carry, the TensorMap, rings and scopes."""
    model, mem = expected.model, driver.mem
    words = {
        L.NEXT_TASK_ID: model.ids,
        L.LIVE: len(model.live),
        L.EDGE_COUNT: model.edges,
        L.MAP_COUNT: len(model.map),
        L.SCOPE_DEPTH: len(model.scopes),
    }
    assert {word: int(mem[word]) for word in words} == words
    first = int(mem[L.A_SLOTS])
    used = [first + i * L.SLOT_WORDS for i in range(int(mem[L.SLOTS_USED]))]
    slots = {driver.id(slot): slot for slot in used if mem[slot + L.S_STATE] != L.FREE}
    assert sorted(slots) == sorted(task.id for task in model.live)
    for task in model.live:
        slot = slots[task.id]
        assert driver.view(slot).ring_idx == task.ring
        assert driver.refs(slot) == (task.total, task.released)
        edges = driver.edges(slot)
        for consumer, those in (
            (slot, task.producers),
            (slot | L.ORDER_ONLY, task.after),
            (L.NONE, task.kept),
        ):
            found = [driver.id(edge.producer) for edge in edges if edge.consumer == consumer]
            assert sorted(found) == sorted(one.id for one in those)
        if bodies is not None:
            at, body = 8 * driver._tensors_at(slot), bodies[task]
            assert mem.view(np.uint8)[at : at + len(body)].tobytes() == body
    slabs = {key: slots[task.id] for key, task in model.slabs.items()}
    rows = {key: (slots[task.id], slabs.get(key, L.NONE)) for key, task in model.map.items()}
    assert driver.map_entries() == rows
    for index, ring in enumerate(model.rings):
        assert driver.held(index) == ring.held()
        assert driver.ring_word(index, L.R_CURSOR) == ring.next
        assert driver.ring_word(index, L.R_PEAK) == ring.peak


# ---------------------------------------------------------------- each way there is
def one_by_one(program, hand, bound):
    play(program, OnEngine(hand.orch, hand.sub, in_bulk=False), bound)


def in_bulk(program, hand, bound):
    play(program, OnEngine(hand.orch, hand.sub, in_bulk=True), bound)


def replayed(program, hand, bound):
    recorded = make_args(*((make_tensor(row), T.INOUT) for row in RECORDED), scalars=[5, 7])

    def orch_fn(orch, args, config):
        play(program, OnEngine(orch, hand.sub, in_bulk=True), args)

    graph = hand.worker.record(orch_fn, recorded)
    graph._replay(hand.orch, bound, None)
    assert graph.tasks == hand.mem[L.NEXT_TASK_ID]


@pytest.mark.spec("SPEED-MANY-1", "SPEED-REPLAY-2", "SPEED-REPLAY-3", "WM-GROUP-5")
@pytest.mark.parametrize("track_reads", [False, True])
@pytest.mark.parametrize("way", [one_by_one, in_bulk, replayed])
@settings(max_examples=3 if INTERPRETED else 20, phases=[Phase.generate])
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.slow("the reference model is plain Python")
def test_the_graph_is_that_of_the_reference_model(way, track_reads, seed):
    program = draw(random.Random(seed), 8 if INTERPRETED else 25)
    bound = make_args(*((make_tensor(row), T.INOUT) for row in BOUND), scalars=[5, 1 << 63])
    with ByHand(heap_ring_size=RING_BYTES, task_window=2048, track_reads=track_reads) as hand:
        expected = OnReference(Driver(hand.engine, run=False))
        play(program, expected, bound)
        way(program, hand, bound)
        check_graph(Driver(hand.engine, run=False), expected, bodies=expected.bodies)
