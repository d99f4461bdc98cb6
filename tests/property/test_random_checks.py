"""Random programs under ``check=True``, up to their first hazard: an oracle finds the same one.

The oracle asks the reference model for the edges that a task gets, and compares the bytes of all pairs of
tasks. No task ends here, so the edges are all there are.
"""

import mmap
import random

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from simpler_ref import HazardError
from simpler_ref import TensorArgType as T
from simpler_ref.jit.kernel import INTERPRETED

from ..by_hand import ByHand
from ..support import Driver
from .test_random_programs import RING_BYTES, OnEngine, OnReference, check_graph, tensor

pytestmark = pytest.mark.kernels

MEMORY = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
SHARED = [(0, 64), (0, 32), (32, 64), (16, 48), (64, 96), (96, 128), (128, 128)]
"""Ranges of it that tasks get, some of which overlap."""
APART = [(0, 64), (64, 96), (96, 128), (128, 128)]
WRITES = (T.OUTPUT, T.INOUT, T.OUTPUT_EXISTING)
READS = (T.INPUT, T.INOUT)


class Oracle:
    """What all tasks so far do, byte by byte.

    A member's choices are pairs of ``(where, low, high)`` and a tag; `where` is "new", "shared" or
    the number of a buffer.
    """

    def __init__(self, model):
        self.model = model
        self.reads, self.writes, self.before, self.keeps = {}, {}, {}, {}
        self.scopes = [[]]  # the buffers of each
        self.buffers = []  # the tensor of each, and its task

    @property
    def open(self):
        return [buffer for scope in self.scopes for buffer in scope]

    @property
    def usable(self):
        """Buffers, but for those of ended scopes whose memory an open one has: they look alike."""
        used = {self.buffers[one][0].data for one in self.open}
        gone = [i for i, (one, _) in enumerate(self.buffers) if one.data not in used]
        return sorted({*gone, *self.open})

    def tensor(self, where, low, high):
        if where == "new":
            return tensor(0, high)
        if where == "shared":
            return tensor(MEMORY.ctypes.data + low, high - low)
        whole = self.buffers[where][0]
        return whole if (low, high) == (0, whole.nbytes()) else tensor(whole.data + low, high - low)

    def remember(self, made):
        self.scopes[-1].append(len(self.buffers))
        self.buffers.append((made, self.model.last))

    def submit(self, members, group):
        """Return what is wrong with a task; it is noted."""
        every = [pair for choices in members for pair in choices]
        for (where, low, high), _ in [pair for pair in every if pair[1] != T.NO_DEP]:
            if isinstance(where, int) and where not in self.open and high > low:
                return {"use after scope"}
        given = [[(self.tensor(*what), tag) for what, tag in choices] for choices in members]
        made = self.model.submit([(tensors, []) for tensors in given], group)
        task, reads, writes, owners = self.model.last, set(), set(), set()
        for ((where, low, high), tag), one in zip(every, made, strict=True):
            if isinstance(where, int) and low == 0 < high and tag in READS:
                owners.add(self.buffers[where][1])
            if where == "new":
                where = len(self.buffers)
                self.remember(one)
            octets = {(where, i) for i in range(low, high)}
            reads |= octets if tag in READS else set()
            writes |= octets if tag in WRITES else set()
        waits = [*task.producers, *task.after]
        self.before[task] = {task}.union(*(self.before.get(p, {p}) for p in waits))
        self.keeps[task] = {task, *task.producers, *owners}
        self.reads[task], self.writes[task] = reads, writes
        kinds = set()
        for other in self.writes.keys() - self.before[task]:
            kinds |= {"write after read"} if writes & self.reads[other] else set()
            kinds |= {"write after write"} if writes & self.writes[other] else set()
            kinds |= {"read after write"} if reads & self.writes[other] else set()
        return kinds

    def end(self):
        """Return what is wrong with the end of the innermost scope, and end it."""
        for buffer in self.scopes.pop():
            kept = set()
            for task, owners in self.keeps.items():
                if self.buffers[buffer][1] in owners:
                    kept |= self.before[task]
            for task in self.writes.keys() - kept:
                if any(place == buffer for place, _ in self.reads[task] | self.writes[task]):
                    return {"use after scope"}
        self.model.end()
        return set()


def draw(rng, oracle, care):
    """Return one tensor and its tag; with care, most are ordered by themselves."""
    what, bold = rng.random(), rng.random() > care
    usable = oracle.usable if bold and rng.random() < 0.5 else oracle.open
    if what < 0.15:
        return ("new", 0, rng.choice([0, 8, 40])), T.OUTPUT
    tag = rng.choice(list(T)) if bold else T.INOUT
    sizes = [one.nbytes() for one, _ in oracle.buffers]
    usable = [one for one in usable if sizes[one]]
    if what < 0.65 and usable:
        buffer = rng.choice(usable)
        # a part of one that is closed may be at an address that has been given out again
        low = 8 if bold and sizes[buffer] > 8 and buffer in oracle.open else 0
        return (buffer, low, sizes[buffer]), tag
    low, high = rng.choice(SHARED if bold else APART)
    return ("shared", low, high), tag


def draw_step(rng, oracle, on, care):
    """Return what is wrong with a step that the oracle has taken, and how the engine takes it."""
    what = rng.random()
    if what < 0.1 and len(oracle.scopes) < 5:
        oracle.scopes.append([])
        oracle.model.begin()
        return set(), on.begin
    if what < 0.25 and len(oracle.scopes) > 1:
        return oracle.end(), on.end
    if what < 0.35:
        size = rng.choice([0, 8, 40])
        oracle.remember(oracle.model.alloc(size))
        return set(), lambda: on.alloc(size)
    how = rng.choice(["one", "one", "group", "many"])
    members = [
        [draw(rng, oracle, care) for _ in range(rng.randint(1, 3))]
        for _ in range(2 if how == "group" else 1)
    ]
    given = [[(oracle.tensor(*what), tag) for what, tag in choices] for choices in members]
    wrong = oracle.submit(members, how == "group")
    if how == "many":
        columns = ([(one, [one]) for one in part] for part in zip(*given[0], strict=True))
        return wrong, lambda: on.many(*columns, [], 1)
    return wrong, lambda: on.submit([(tensors, []) for tensors in given], how == "group")


def play(seed, track_reads):
    """Play a program up to its first hazard; return what that is."""
    rng = random.Random(seed)
    care = rng.choice([0.5, 0.9, 0.97])
    options = {"check": True, "track_reads": track_reads}
    with ByHand(heap_ring_size=RING_BYTES, task_window=2048, **options) as hand:
        oracle = Oracle(OnReference(Driver(hand.engine, run=False)))
        on = OnEngine(hand.orch, hand.sub, in_bulk=True)
        for _ in range(12 if INTERPRETED else 40):
            wrong, act = draw_step(rng, oracle, on, care)
            if wrong:
                before = hand.picture()
                with pytest.raises(HazardError) as caught:
                    act()
                assert caught.value.kind in wrong, (caught.value, wrong)
                assert hand.picture() == before
                return caught.value.kind
            act()
        check_graph(Driver(hand.engine, run=False), oracle.model)
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("track_reads", [False, True])
def test_a_hazard_is_reported_exactly_where_two_tasks_share_bytes_and_no_edges_order_them(
    track_reads,
):
    found = []

    @settings(max_examples=40 if INTERPRETED else 80, phases=[Phase.generate])
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed):
        found.append(play(seed, track_reads))

    check()
    if not INTERPRETED:
        kinds = {"write after write", "read after write", "use after scope"}
        kinds |= {"write after read"} if not track_reads else set()
        assert {*found} == {None, *kinds}
