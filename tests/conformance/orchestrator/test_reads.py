"""ORCH-READS: with ``track_reads=True`` writers wait for readers."""

import functools
import time

import numpy as np
import pytest

from simpler_ref import HazardError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L
from simpler_ref.remote import ProcessFleet
from tests.support import (
    COMPLETED,
    FAILED,
    PENDING,
    RUNNING,
    Gate,
    make_args,
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
    assert driver.wire() == between
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


def copy(args):
    args.tensor(1).numpy()[:] = args.tensor(0).numpy()


def fill(args):
    args.tensor(0).numpy()[:] = 7


@pytest.fixture(scope="module", params=["process", "thread"])
def w(request):
    options = {"child_mode": request.param, "track_reads": True, "check": True}
    with Gate() as gate, Worker(3, num_sub_workers=2, **options) as made:
        made.gate, made.copy = gate, made.register(lambda args: (gate.wait(), copy(args)))
        made.fill, made.look = made.register(fill), made.register(lambda args: None)
        made.start()
        yield made


@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.parametrize(
    ("read", "written", "edges"),
    [
        *((np.s_[:], view, 1) for view in (np.s_[:], np.s_[4:8], np.s_[::-2], np.s_[3:4])),
        (np.s_[::2], np.s_[1::2], 0),
    ],
)
def test_a_reader_finds_what_was_there_when_it_was_submitted(w, read, written, edges):
    x = w.share(np.arange(WORDS))
    before, y = x[read].tolist(), w.zeros(len(x[read]), np.int64)

    def orch_fn(orch, *_):
        orch.submit_sub(w.copy, make_args((x[read], T.INPUT), (y, T.INOUT)))
        orch.submit_sub(w.fill, make_args((x[written], T.OUTPUT_EXISTING)))
        w.gate.open(1)

    assert w.run(orch_fn).edges == edges, "views that share no byte do not wait"
    assert y.tolist() == before and (x[written] == 7).all()
    assert w._session.engine.mem[[L.ACCESS_COUNT, L.GRIDS_USED]].tolist() == [0, 0]


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


@pytest.mark.spec("ORCH-READS-1")
@pytest.mark.slow("two endpoints start")
def test_endpoints_keep_the_order_too():
    with Worker(fleet=ProcessFleet(), endpoints=2, num_sub_workers=1, track_reads=True) as w:
        x, y = w.share(np.arange(WORDS)), w.zeros((2, WORDS), np.int64)
        slow_copy = w.register(lambda args: (time.sleep(0.3), copy(args)))
        write = w.register(fill)

        def orch_fn(orch, *_):
            for row in y:
                orch.submit_sub(slow_copy, make_args((x, T.INPUT), (row, T.INOUT)))
            orch.submit_sub(write, make_args((x[4:], T.OUTPUT_EXISTING)))

        graph = w.record(orch_fn)
        for run in (lambda: w.run(orch_fn), graph.run, graph.run):
            x[:] = np.arange(WORDS)
            assert run().edges == 2
            assert (y == np.arange(WORDS)).all() and (x[4:] == 7).all()


@pytest.mark.spec("ORCH-READS-1")
def test_the_option_is_a_flag_that_children_do_not_share():
    with pytest.raises(TypeError, match="track_reads"):
        Worker(3, track_reads="yes")
    assert not Worker(3).track_reads
    outer, inner = Worker(4, track_reads=True), Worker(3, num_sub_workers=1)
    outer.add_worker(inner)
    assert outer.track_reads and not inner.track_reads
