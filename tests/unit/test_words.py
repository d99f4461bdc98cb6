"""The words of an engine: their places, who writes states, how chains are left, where arguments are."""

import ast
import itertools
import mmap
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.jit import layout as L
from simpler_ref.jit import slots
from simpler_ref.workers.options import MOST_WORKERS

from ..kernels import kernels as k
from ..support import Driver, ignores, small_engine, unmap

pytestmark = pytest.mark.kernels


# ---------------------------------------------------------------- offsets and sizes
def test_areas_that_kernels_copy_as_a_whole_are_lines():
    areas = (L.RING_BLOCK, L.CANDIDATES, L.ERROR_MSG, L.W_CACHE, L.W_MAILBOX, L.W_KINDS, L.W_TRACE)
    assert [area % L.LINE for area in areas] == [0] * len(areas)
    assert L.RING.size == L.LINE
    assert [L.SLOT_WORDS % L.LINE, L.WORKER_WORDS % L.LINE, L.HEADER_WORDS % L.LINE] == [0, 0, 0]
    assert (L.SLOT.size, L.W_KINDS - L.W_MAILBOX) == (L.SLOT_WORDS, 2048)
    assert L.KINDS_WORDS * L.WORD >= (L.MAILBOX_ARGS_CAPACITY - L.WORD) // L.WORD
    assert L.NONE not in {field.at for field in L.HEADER.fields}


def test_the_parts_of_what_a_task_runs_have_room_for_all_there_can_be_and_do_not_overlap():
    assert L.MAX_REGISTERED_CALLABLE_IDS <= L.CALLABLE_MASK + 1
    assert 2 * MOST_WORKERS < L.WORKER_MASK
    assert L.MAX_CONFIGS <= L.CONFIG_MASK + 1
    assert L.CALLABLE_MASK < 1 << L.WORD_KIND
    assert 0xF << L.WORD_KIND < 1 << L.WORD_WORKER
    assert L.WORKER_MASK << L.WORD_WORKER < 1 << L.WORD_CONFIG
    assert L.CONFIG_MASK << L.WORD_CONFIG < 1 << 63


@pytest.mark.parametrize("window", [1, 3, 64, 1000, 1 << 21])
@pytest.mark.parametrize(
    ("rings", "next_level", "sub", "depth"), [(1, 0, 0, 1), (4, 2, 3, 2), (2, 0, 100, 1)]
)
def test_areas_follow_each_other_and_each_has_room(window, rings, next_level, sub, depth):
    sizes = {"next_level": next_level, "sub": sub, "depth": depth}
    words, geometry = L.plan(window=window, rings=rings, **sizes)
    circular = 1 << (window - 1).bit_length()
    needs = {
        L.A_WORKERS: (next_level + sub) * depth * L.WORKER_WORDS,
        L.A_CALLABLES: 4096 * 4,
        L.A_WIRING: L.WIRING_CAPACITY,
        **{L.A_FIFO + ring: 2 * circular * L.FIFO_WORDS for ring in range(rings)},
        L.A_MAP: geometry[L.MAP_AREA] * L.ENTRY_WORDS,
        L.A_MAP + 1: geometry[L.MAP_AREA] * L.ENTRY_WORDS,
        L.A_SLOTS: window * L.SLOT_WORDS,
        L.A_SPILL: geometry[L.A_SPILL_END] - geometry[L.A_SPILL],
    }
    spans = sorted((geometry[area], geometry[area] + need) for area, need in needs.items())
    assert spans[0][0] >= L.HEADER_WORDS
    assert spans[-1][1] <= words
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start
    assert all(start % L.LINE == 0 for start, _ in spans)
    private = geometry[L.PRIVATE]
    assert private % L.PAGE_WORDS == 0 and 8 * L.PAGE_WORDS % mmap.PAGESIZE == 0
    shared = [L.A_WORKERS, L.A_CALLABLES, L.A_WIRING, *[L.A_FIFO + r for r in range(rings)]]
    for area, need in needs.items():
        assert geometry[area] + need <= private if area in shared else geometry[area] >= private


# ---------------------------------------------------------------- states, in the source
WRITERS = {"store", "exchange", "compare_exchange", "fetch_add"}


def functions():
    """Yield every function of the kernels: the name of its file, and its text as a tree."""
    for path in Path(slots.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.stem, node


def name_of(node):
    """Return the name that a node is, or ends with: its own, or that in a module."""
    return getattr(node, "id", getattr(node, "attr", ""))


def calls_in(function):
    """Yield (name, arguments) of each call of a function by its name."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node.args


def written_in(function):
    """Yield the text of every place that a function writes to."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
    yield from (ast.unparse(args[1]) for name, args in calls_in(function) if name in WRITERS)


def test_events_have_their_kernels_and_step_alone_writes_a_state():
    taken = {event.name: set() for event in slots.EVENTS}
    for module, function in functions():
        for name, args in calls_in(function):
            if name == "step":
                event = slots.EVENTS[getattr(slots, name_of(args[2]))]
                taken[event.name].add(f"{module}.{function.name}")
    assert taken == {event.name: set(event.kernels) for event in slots.EVENTS}
    writers = {
        function.name
        for _, function in functions()
        if any("S_STATE" in place for place in written_in(function))
    }
    assert writers == {"step"}


# ---------------------------------------------------------------- references and chains
def test_the_counts_hold_more_consumers_than_tasks_can_live(driver):
    slot, many = driver.submit(), L.DEFAULT_TASK_WINDOW
    driver.mem[slot + L.S_FANOUT] = many | many << 32
    assert k.acquire_ref(driver.mem, slot) and not k.release_ref(driver.mem, slot)
    assert driver.refs(slot) == (many + 1, many + 1)


SIX = st.permutations(range(6))


@given(tasks=SIX, gone=SIX, fresh=st.booleans())
def test_a_ready_task_is_removed_from_anywhere_and_the_others_keep_their_order(tasks, gone, fresh):
    engine = small_engine(window=16)
    mem = engine.mem
    first, worker = int(mem[L.A_SLOTS]), int(mem[L.POOL_FIRST + L.SUB])
    for_any = [first + i * L.SLOT_WORDS for i in range(6)]
    for_one = [first + i * L.SLOT_WORDS for i in range(6, 12)]
    for slot in for_any + for_one:
        named = worker + 1 if slot in for_one else 0
        mem[slot + L.S_CALLABLE] = L.SUB << L.WORD_KIND | named << L.WORD_WORKER
    if not fresh:  # the chains were used before
        k.push_ready(mem, for_any[0])
        k.pop_ready(mem, L.SUB)
    for task in tasks:
        k.push_ready(mem, for_any[task])
        k.push_ready(mem, for_one[task])
    for task in gone[:3]:
        k.remove_ready(mem, for_any[task])
        k.remove_ready(mem, for_one[task])
    rest = [task for task in tasks if task in gone[3:]]
    assert mem[L.AFFINITY + L.SUB] == 3
    k.push_ready(mem, for_any[gone[0]])
    assert [k.pop_ready(mem, L.SUB) for _ in range(4)] == [for_any[i] for i in (*rest, gone[0])]
    assert k.first_ready(mem, L.SUB) == L.NONE
    assert [k.pop_affinity(mem, worker, L.SUB) for _ in range(3)] == [for_one[i] for i in rest]
    assert mem[L.AFFINITY + L.SUB] == 0
    unmap(engine)


# ---------------------------------------------------------------- arguments: in a slot, or in a block
KEY = 0x7000_0000
TENSOR = ignores(KEY).wire()
MOST = (L.MAILBOX_ARGS_CAPACITY - 8) // 40
"""Tensors of the largest member."""


def try_big(driver, tensors, members=0):
    """Submit a task of so many tensors, or a group whose members have as many each, without a pass."""
    count = tensors * max(members, 1)
    table, word = struct.pack("<iiQ", tensors, 0, 0) * members, L.SUB << L.WORD_KIND
    return driver.x.submit_task(driver.mem, word, count, members, TENSOR * count + table)


def fill_with_big_tasks(driver, tensors):
    """Submit until there is no place for another body; return how many tasks that took."""
    count = 0
    while try_big(driver, tensors) >= 0:
        count += 1
    return count


LARGEST = 2048
"""Words of the block of a body of 375 tensors."""


def driver_with_room(blocks, window):
    """Return a driver that has room for so many bodies of the largest size."""
    driver = Driver(window=window)
    driver.mem[L.A_SPILL_END] = driver.mem[L.A_SPILL] + blocks * LARGEST
    return driver


@pytest.mark.spec("ORCH-RUN-6")
def test_room_for_bodies_is_used_again_whatever_size_comes_next():
    driver = driver_with_room(12, window=512)
    for tensors, count in ((12, 384), (100, 48), (375, 12), (25, 192), (200, 24), (12, 384)):
        assert fill_with_big_tasks(driver, tensors) == count, "it is filled with blocks of its size"
        driver.finish_run()
        driver.finish_everything()
        driver.reclaim()
        assert driver.live() == 0
        driver.end_run()
        driver.begin_run()
    driver.close()


def test_a_body_that_does_not_fit_changes_nothing_and_goes_in_when_one_is_reclaimed():
    driver = driver_with_room(12, window=64)
    driver.open_scope()
    assert fill_with_big_tasks(driver, 375) == 12
    before = driver.words()
    assert (try_big(driver, 375), driver.changed_since(before)) == (L.WOULD_BLOCK, [])
    driver.close_scope()
    driver.finish_everything()
    driver.reclaim()
    assert try_big(driver, 375) >= 0
    driver.close()


@pytest.mark.parametrize("window", [64, 100_000])
def test_a_group_too_large_for_any_block_is_refused_and_changes_nothing(make_driver, window):
    """It is larger than the area; or it would fit, but not with its block's size rounded up."""
    driver = make_driver(window=window)
    room = int(driver.mem[L.A_SPILL_END] - driver.mem[L.A_SPILL])
    largest_block = 1 << room.bit_length() - 1
    assert window == 64 or largest_block == 1 << 21 < room
    before = driver.words()
    size = (room if window == 64 else largest_block) // (5 * MOST) + 1
    assert (try_big(driver, MOST, size), driver.changed_since(before)) == (L.TOO_MANY_ARGS, [])
    assert window > 64 or try_big(driver, MOST, size - 20) >= 0
