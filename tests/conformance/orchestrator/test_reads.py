"""ORCH-READS: with ``track_reads=True`` writers wait for readers."""

from __future__ import annotations

import functools
import re
import time

import numpy as np
import pytest

from simpler_ref import HazardError, TaskError, Trace, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.remote import ProcessFleet
from tests.support import (
    COMPLETED,
    FAILED,
    PENDING,
    READY,
    RUNNING,
    Gate,
    auto,
    ignores,
    make_args,
    member,
    overwrites,
    reads,
    updates,
    writes,
)

AT, OTHER = 0x7000_0000, 0x7100_0000
WORDS = 16


@pytest.fixture
def tracking(make_driver):
    """Give what makes drivers whose engines track reads."""
    return functools.partial(make_driver, track_reads=True)


@pytest.fixture
def driver(tracking):
    return tracking()


def after(driver, slot):
    """Return the tasks that a task waits for in order only."""
    mark = slot | L.ORDER_ONLY
    return [edge.producer for edge in driver.edges(slot) if edge.consumer == mark]


# ---------------------------------------------------------------- who waits
@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.parametrize("write", [writes, overwrites, updates])
@pytest.mark.parametrize("read", [reads, updates])
def test_a_writer_of_any_byte_waits_for_its_reader(driver, read, write):
    reader = driver.submit(read(AT, nbytes=100))
    for where in (AT - 8, AT - 7, AT + 4, AT + 99, AT + 100):
        meets = AT - 8 < where < AT + 100
        writer = driver.submit(write(where, nbytes=8), writes(OTHER))
        assert after(driver, writer).count(reader) == meets
    assert reader not in driver.producers(driver.submit(reads(AT + 4)))


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_each_of_several_writers_waits_for_all_readers_that_have_not_ended(driver):
    one, two, three = (driver.submit(reads(AT + at)) for at in (0, 0, 4))
    driver.settle()
    driver.finish(one)
    for _ in range(2):
        assert sorted(after(driver, driver.submit(overwrites(AT)))) == sorted([two, three])
    driver.finish_everything()
    assert after(driver, driver.submit(overwrites(AT))) == []


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_there_is_one_edge_to_a_task_that_is_waited_for_anyway(driver):
    first = driver.submit(updates(AT), reads(OTHER))
    second = driver.submit(updates(AT), overwrites(OTHER), updates(AT + 4))
    assert driver.producers(second) == [first]
    assert after(driver, second) == []
    slab = driver.submit(auto(100), reads(OTHER + 64))
    driver.submit(overwrites(driver.address(slab), nbytes=100))
    kept = driver.submit(reads(driver.address(slab), nbytes=100), overwrites(OTHER + 64))
    assert after(driver, kept) == [slab], "it was kept for its memory"


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_neither_a_task_nor_a_group_waits_for_itself(tracking):
    driver = tracking(sub=2)
    task = driver.submit(reads(AT), overwrites(AT), updates(AT))
    assert driver.edges(task) == []
    group = driver.submit_group(member(reads(AT)), member(updates(OTHER), overwrites(AT)))
    assert (driver.producers(group), after(driver, group)) == ([task], [])
    assert after(driver, driver.submit(overwrites(AT + 7), overwrites(OTHER))) == [group]


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_a_task_may_wait_for_more_readers_than_a_slot_has_room_for(tracking):
    driver = tracking(window=512)
    readers = [driver.submit(reads(AT, nbytes=1 + i % 8)) for i in range(400)]
    writer = driver.submit(overwrites(AT, nbytes=4))
    assert sorted(after(driver, writer)) == sorted(readers)


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_without_room_for_reads_a_submit_waits_for_tasks_to_end(driver):
    room = int(driver.mem[L.A_ACCESSES_END] - driver.mem[L.A_ACCESSES]) // L.ACCESS_WORDS
    tasks, size = 0, 300
    while (tasks + 1) * size <= room:
        driver.submit(*[reads(AT + 64 * (tasks * size + i)) for i in range(size)])
        tasks += 1
    more = [reads(OTHER + 64 * i) for i in range(size)]
    assert [driver.try_submit(more) for _ in range(2)] == [L.WOULD_BLOCK] * 2
    assert driver.mem[L.ACCESS_COUNT] == tasks * size
    driver.finish_everything()
    driver.submit(*more)
    assert driver.mem[L.ACCESS_COUNT] == size


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_a_buffer_that_is_used_again_and_again_gives_no_more_edges(tracking):
    driver = tracking(window=512)
    for _ in range(50):
        writer = driver.submit(overwrites(AT, nbytes=64))
        readers = [driver.submit(reads(AT, nbytes=64)) for _ in range(3)]
    assert len(after(driver, writer)) == 3
    assert sorted(after(driver, driver.submit(overwrites(AT, nbytes=64)))) == sorted(readers)
    for _ in range(50):
        writer = driver.submit(updates(OTHER, nbytes=64))
    assert len(driver.edges(writer)) == 1
    assert after(driver, driver.submit(overwrites(OTHER + 8))) == [writer]
    assert driver.mem[L.ACCESS_COUNT] == 4


# ---------------------------------------------------------------- failures
@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_a_writer_starts_after_a_reader_that_has_failed(driver):
    reader = driver.start(reads(AT))
    writer, doomed = driver.submit(overwrites(AT)), driver.submit(updates(AT))
    needs = driver.submit(reads(AT))
    driver.settle()
    assert driver.states(writer, doomed, needs) == [PENDING] * 3
    driver.finish(reader, ValueError("on purpose"))
    assert driver.states(writer) == [RUNNING]
    driver.finish_everything()
    assert driver.states(writer, doomed, needs) == [COMPLETED] * 3


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.parametrize("wired", [False, True])
def test_a_task_that_fails_unstarted_stands_for_the_readers_that_it_has_waited_for(tracking, wired):
    driver = tracking(sub=4)
    reader, failing = driver.start(reads(AT)), driver.start(writes(OTHER))
    between = driver.submit(reads(OTHER), overwrites(AT))
    assert driver.wire_next() == between
    new_reader, writer = driver.submit(reads(AT)), driver.submit(overwrites(AT))
    assert after(driver, writer) == [new_reader]
    if wired:
        driver.settle()
    driver.post_done(driver.worker_of(failing), ValueError("on purpose"))
    driver.x.collect(driver.mem)
    assert driver.state(between) == FAILED
    driver.settle()
    assert driver.states(new_reader, writer) == [PENDING if wired else FAILED, PENDING]
    driver.finish(reader)
    assert driver.states(new_reader, writer) == [FAILED, RUNNING]


@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_a_pass_follows_if_a_reader_fails_for_want_of_a_worker(tracking):
    driver = tracking(next_level=1, sub=1)
    reader, writer = driver.submit(reads(AT)), driver.submit(overwrites(AT), kind=L.NEXT_LEVEL)
    driver.kill(1)
    driver.run_pass()
    assert driver.states(reader, writer) == [FAILED, READY]
    assert driver.x.has_work(driver.mem)
    driver.settle()
    assert driver.states(writer) == [RUNNING]


# ---------------------------------------------------------------- what counts
@pytest.mark.kernels
@pytest.mark.spec("ORCH-READS-1")
def test_other_memory_tags_and_sizes_do_not_count(tracking):
    driver = tracking(next_level=1, sub=8)
    chip = {"kind": L.NEXT_LEVEL, "owner": 0}
    driver.submit(reads(AT, child_memory=True), **chip)
    driver.submit(ignores(AT), reads(AT, nbytes=0))
    assert driver.edges(driver.submit(overwrites(AT))) == []
    driver.submit(reads(AT))
    assert driver.edges(driver.submit(overwrites(AT, child_memory=True), **chip)) == []
    assert driver.edges(driver.submit(ignores(AT), overwrites(AT, nbytes=0))) == []
    driver.open_scope()
    slab = driver.start(auto(1024))
    driver.finish(slab)
    driver.submit(reads(driver.address(slab) + 8))  # which does not keep it
    driver.close_scope()
    driver.open_scope()
    again = driver.submit(auto(1024))
    assert driver.edges(again) == []


@pytest.mark.kernels
@pytest.mark.spec("ORCH-MAP-4")
def test_without_the_option_nothing_is_noted(make_driver):
    driver = make_driver()
    driver.submit(reads(AT))
    assert driver.edges(driver.submit(updates(AT))) == []
    assert driver.mem[L.ACCESS_COUNT] == 0


# ---------------------------------------------------------------- runs
def wait_and_copy(gate):
    def copy(args):
        gate.wait()
        args.tensor(1).numpy()[:] = args.tensor(0).numpy()

    return copy


def fill(args):
    args.tensor(0).numpy()[:] = 7


def look(args):
    return None


def fail(args):
    raise ValueError("on purpose")


@pytest.fixture(scope="module", params=["process", "thread"])
def w(request):
    with (
        Gate() as gate,
        Worker(
            3, num_sub_workers=2, child_mode=request.param, track_reads=True, check=True
        ) as made,
    ):
        made.gate, made.copy = gate, made.register(wait_and_copy(gate))
        made.fill, made.fail, made.look = map(made.register, (fill, fail, look))
        made.start()
        yield made


def noted(w):
    mem = w._session.engine.mem
    return int(mem[L.ACCESS_COUNT]), int(mem[L.GRIDS_USED])


@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.parametrize("view", [np.s_[:], np.s_[4:8], np.s_[::-2], np.s_[3]])
def test_a_reader_finds_what_was_there_when_it_was_submitted(w, view):
    x, y = w.share(np.arange(WORDS)), w.zeros(WORDS, np.int64)
    part = x[view] if np.ndim(x[view]) else x[3:4]

    def orch_fn(orch, *_):
        orch.submit_sub(w.copy, make_args((x, T.INPUT), (y, T.INOUT)))
        orch.submit_sub(w.fill, make_args((part, T.OUTPUT_EXISTING)))
        w.gate.open(1)

    assert w.run(orch_fn).edges == 1
    assert y.tolist() == list(range(WORDS)) and (part == 7).all()
    assert noted(w) == (0, 0)


@pytest.mark.spec("ORCH-READS-1")
def test_views_that_share_no_byte_do_not_wait(w):
    x, y = w.share(np.arange(WORDS)), w.zeros(WORDS // 2, np.int64)

    def orch_fn(orch, *_):
        orch.submit_sub(w.copy, make_args((x[::2], T.INPUT), (y, T.INOUT)))
        orch.submit_sub(w.fill, make_args((x[1::2], T.OUTPUT_EXISTING)))
        w.gate.open(1)

    assert w.run(orch_fn).edges == 0


@pytest.mark.spec("ORCH-READS-1")
def test_nothing_is_noted_any_more_after_runs_that_fail(w):
    x = w.share(np.arange(WORDS))

    def orch_fn(orch, *_):
        orch.submit_sub(w.fail, make_args((x, T.INPUT)))
        orch.drain()

    def stop(orch, *_):
        orch.submit_sub(w.fail, make_args((x, T.INPUT)))
        raise KeyError("on purpose")

    for one, error in ((orch_fn, TaskError), (stop, KeyError)):
        with pytest.raises(error):
            w.run(one)
        assert noted(w) == (0, 0)
    assert w.run(lambda orch, *_: orch.submit_sub(w.fill, make_args((x, T.INOUT)))).edges == 0


@pytest.mark.spec("ORCH-READS-1")
def test_layouts_that_are_forgotten_within_a_run_leave_no_reads_behind(w, monkeypatch):
    x, y = w.share(np.arange(WORDS)), w.zeros(WORDS // 2, np.int64)
    layouts = w._session.engine.layouts

    def orch_fn(orch, *_):
        w.gate.open(1)
        orch.submit_sub(w.copy, make_args((x[::2], T.INPUT), (y, T.INOUT)))
        monkeypatch.setattr(L, "LAYOUTS_CAPACITY", 0)
        given = make_args((x[::-1], T.OUTPUT_EXISTING))
        reset = layouts.reset
        monkeypatch.setattr(layouts, "reset", lambda: (monkeypatch.undo(), reset()))
        orch.submit_sub(w.fill, given)
        assert noted(w)[0] == 0

    w.run(orch_fn)
    assert (x == 7).all()


# ---------------------------------------------------------------- with other things
@pytest.mark.spec("ORCH-READS-1")
def test_a_write_after_a_read_is_no_hazard_any_more_but_other_hazards_are(w):
    x = w.share(np.arange(WORDS))

    def ordered(orch, *_):
        orch.submit_sub(w.look, make_args((x[2:], T.INPUT), (x[:2], T.NO_DEP)))
        orch.submit_sub(w.fill, make_args((x, T.OUTPUT_EXISTING)))

    def overlapping(orch, *_):
        orch.submit_sub(w.fill, make_args((x[4:], T.OUTPUT_EXISTING)))
        orch.submit_sub(w.fill, make_args((x, T.OUTPUT_EXISTING)))

    assert w.graph(ordered).tasks[1].edges[0].kind == "order"
    with pytest.raises(HazardError, match="write after write"):
        w.run(overlapping)
    w.record(ordered).run()
    w.run(ordered)
    assert (x == 7).all()


@pytest.mark.spec("ORCH-READS-1", "ORCH-CHECK-1")
def test_a_writer_waits_for_who_read_before_the_last_writer_and_the_hazard_is_the_other_one(w):
    x, y = w.share(np.arange(WORDS)), w.zeros(WORDS, np.int64)

    def orch_fn(orch, *_):
        orch.submit_sub(w.copy, make_args((x, T.INPUT), (y, T.INOUT)))
        orch.submit_sub(w.fill, make_args((x, T.OUTPUT_EXISTING)))
        w.gate.open(1)
        # it is ordered after the first task, whose result it reads, and not after the second
        orch.submit_sub(w.look, make_args((y[1:], T.INPUT), (x[1:], T.OUTPUT_EXISTING)))

    with pytest.raises(HazardError, match="write after write"):
        w.run(orch_fn)


@pytest.mark.spec("ORCH-READS-1")
def test_a_dry_run_names_both_tensors(w):
    x = w.share(np.arange(WORDS))

    def orch_fn(orch, *_):
        orch.submit_sub(w.fill, make_args((x[::-1], T.INPUT)))
        orch.submit_sub(w.fill, make_args((x[3:5], T.OUTPUT_EXISTING)))
        orch.submit_sub_group(w.fill, [make_args((x[:2], T.INOUT)), make_args((x[5::2], T.INOUT))])

    text = str(w.graph(orch_fn))
    found = re.findall(r"after task (\d): (\S+) (\S+) ← (\S+)(?: (\S+))?", text)
    assert [one[0] for one in found] == ["0", "0"], text
    assert [one[3] for one in found] == ["INPUT", "INPUT"], text


@pytest.mark.spec("ORCH-READS-1")
def test_a_traced_edge_says_that_it_is_for_order(tmp_path):
    path = str(tmp_path / "a.trace")
    with Worker(3, num_sub_workers=1, child_mode="thread", track_reads=True, trace=path) as w:
        handle, x = w.register(fill), w.share(np.arange(WORDS))

        def orch_fn(orch, *_):
            orch.submit_sub(handle, make_args((w.zeros(4), T.INOUT), (x, T.INPUT)))
            orch.submit_sub(handle, make_args((x[4:], T.OUTPUT_EXISTING)))

        w.run(orch_fn)
    trace = Trace.open(path)
    (edge,) = trace.task(2).dependencies
    assert (edge.kind, edge.producer_tag, edge.tag) == ("order", "INPUT", "OUTPUT_EXISTING")
    assert trace.races() == []


@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.slow("two endpoints start")
def test_endpoints_keep_the_order_too():
    with Worker(fleet=ProcessFleet(), endpoints=2, num_sub_workers=1, track_reads=True) as w:
        x, y = w.share(np.arange(WORDS)), w.zeros((2, WORDS), np.int64)
        copy, write = w.register(slow_copy), w.register(fill)

        def orch_fn(orch, *_):
            for row in y:
                orch.submit_sub(copy, make_args((x, T.INPUT), (row, T.INOUT)))
            orch.submit_sub(write, make_args((x[4:], T.OUTPUT_EXISTING)))

        graph = w.record(orch_fn)
        for run in (lambda: w.run(orch_fn), graph.run, graph.run):
            x[:] = np.arange(WORDS)
            assert run().edges == 2
            assert (y == np.arange(WORDS)).all() and (x[4:] == 7).all()


def slow_copy(args):
    time.sleep(0.3)
    args.tensor(1).numpy()[:] = args.tensor(0).numpy()


# ---------------------------------------------------------------- the option
@pytest.mark.spec("ORCH-READS-1")
def test_the_option_is_a_flag_that_children_do_not_share():
    with pytest.raises(TypeError, match="track_reads"):
        Worker(3, track_reads="yes")
    assert not Worker(3).track_reads
    outer, inner = Worker(4, track_reads=True), Worker(3, num_sub_workers=1)
    outer.add_worker(inner)
    assert outer.track_reads and not inner.track_reads
