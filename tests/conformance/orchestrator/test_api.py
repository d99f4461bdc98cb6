"""ORCH-API: what the user holds."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref.engine.structures import digest_of
from simpler_ref.engine.view import slots
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import INVALID, Ring, RingView, Scope, TensorMap
from simpler_ref.stepping import Mailbox, TaskSlots, WorkerManager
from simpler_ref.task_interface import MailboxState, TaskState, WorkerType
from simpler_ref.task_interface import TensorArgType as T
from tests.spec_rules import ROOT
from tests.support import Gate, Member, auto, key, make_args, reads, updates, wait_until, writes


@pytest.mark.spec("ORCH-API-1")
@pytest.mark.parametrize("given", [(object(), CallConfig(block_dim=7)), ()], ids=["both", "none"])
def test_run_calls_the_orch_function_once_on_the_calling_thread(w, given):
    """Without arguments and configuration it passes None and a default configuration."""
    calls = []
    w.run(lambda *call: calls.append((*call, threading.get_ident())), *given)
    [(orch, args, config, thread)] = calls
    wanted, default = given or (None, CallConfig())
    assert args is wanted and thread == threading.get_ident() and callable(orch.submit_sub)
    assert config is default if given else config.to_bytes() == default.to_bytes()


@pytest.mark.spec("ORCH-API-2", "ORCH-API-3")
def test_the_orch_function_opens_scopes_drains_and_submits_without_config_and_result(w):
    """A task submitted without arguments gets an empty TaskArgs."""
    seen, nothing = w.share([-1, -1, -1]), w.register(lambda: None)

    @w.register
    def look(args):
        seen[:] = args.tensor_count(), args.scalar_count(), isinstance(args, TaskArgs)

    def orch_fn(orch, args, config):
        with orch.scope():
            with pytest.raises(TypeError):
                orch.submit_sub(look, TaskArgs(), config)
            orch.scope_begin()
            assert orch.submit_sub(nothing, TaskArgs()) is None
            assert orch.submit_sub(look) is None
            orch.drain()
            assert seen.tolist() == [0, 0, 1]
            orch.scope_end()

    assert w.run(orch_fn).tasks == 2


@pytest.mark.spec("ORCH-API-4")
@pytest.mark.kernels
def test_ring_tensor_map_and_scope_work_without_a_worker():
    ring, keys, scope, released = Ring(heap_bytes=4096, timeout_ms=0), TensorMap(), Scope(), []
    claim = ring.alloc(100)
    assert ring.slot_state(claim.slot).task_id == claim.slot == 0
    ring.release(claim.slot)
    keys.insert(4096, 3)
    assert keys.lookup(4096) == 3
    assert keys.erase(4096, 3)
    assert keys.lookup(4096) == INVALID
    scope.scope_begin()
    scope.register_task(5)
    scope.register_task(5)
    scope.scope_begin()
    scope.register_task(5)
    assert (scope.tasks(), scope.tasks(0), scope.depth(), scope.current_depth()) == ([5], [5], 2, 1)
    scope.scope_end(released.append)
    scope.scope_end(released.append)
    assert released == [5, 5]


@pytest.mark.spec("ORCH-API-4")
@pytest.mark.kernels
def test_slots_and_mailboxes_work_without_a_worker():
    pool, mailbox = TaskSlots(), Mailbox()
    args = make_args((key(4096), T.OUTPUT_EXISTING), scalars=[2.5])
    task, group = pool.submit(args), pool.submit([args, args])
    assert (task, pool.live_tasks(), pool.slot_state(group).group_size) == (0, [0, 1], 2)
    assert pool.step(task, "inputs done") == TaskState.READY
    assert (pool.acquire_ref(task), pool.release_ref(task)) == (True, False)
    for number in range(99):
        mailbox.encode(3, CallConfig(block_dim=number), args)
        digest, view = mailbox.decode()
        assert (digest, view.config().block_dim) == (digest_of(3), number)
        assert (view.tensor(0).data, view.scalar(0)) == (4096, 2.5)
    mailbox.write_state(MailboxState.TASK_DONE, 7)
    mailbox.write_error("é" * 300)
    assert (mailbox.read_state(), mailbox.read_error()) == (2, (7, "é" * 127))
    mailbox.octets[L.MAILBOX_OFF_ARGS :][:4] = b"\xff" * 4
    with pytest.raises(RuntimeError, match="the mailbox holds -1 tensors"):
        mailbox.decode()


@pytest.mark.spec("ORCH-API-4")
@pytest.mark.kernels
def test_a_scheduler_and_a_manager_work_without_a_worker():
    manager, ran, done = WorkerManager(), [], []
    for early in (manager.start, lambda: manager.pick_idle(WorkerType.SUB)):
        with pytest.raises(RuntimeError, match="start"):
            early()
    manager.add_next_level()
    manager.add_sub(lambda args: ran.append(args.scalar(0)))
    manager.add_sub()
    manager.start(done.append)
    for late in (manager.start, manager.add_sub):
        with pytest.raises(RuntimeError, match="start"):
            late()
    tasks = [manager.slots.submit(make_args(scalars=[number])) for number in range(3)]
    assert [manager.scheduler.wire() for _ in tasks] == manager.scheduler.ready_queue() == tasks
    assert [one.index for one in manager.pick_n_idle(WorkerType.SUB, 2)] == [1, 2]
    assert manager.pick_n_idle(WorkerType.SUB, 3) == []
    first = manager.pick_idle(WorkerType.SUB)
    manager.dispatch(first, tasks[0])
    second = manager.pick_idle(WorkerType.SUB)
    manager.dispatch(second, tasks[2])
    assert (manager.pick_idle(WorkerType.SUB), first.is_idle()) == (None, False)
    first.serve()
    second.answer(ValueError("no"))
    assert (first.poll(), second.poll(), done, ran) == ([0], [2], [0, 2], [0])
    assert first.is_idle()
    assert [manager.slots.state(task).name for task in tasks] == ["CONSUMED", "READY", "CONSUMED"]
    manager.stop()
    assert {one.mailbox.read_state().name for one in manager.threads} == {"SHUTDOWN"}


@pytest.mark.spec("ORCH-API-5")
def test_the_tail_is_where_the_oldest_byte_still_held_begins(driver):
    rings = view_of(driver)
    driver.open_scope()
    driver.alloc(1000)
    driver.submit(auto(2000))
    driver.close_scope()
    driver.reclaim()
    assert (rings.heap_tail(1), rings.heap_top(1), rings.heap_held(1)) == (1024, 3072, 2048)


def view_of(driver):
    """Return a look at an engine that is driven by hand, without a Worker that knows names."""
    names = SimpleNamespace(callable_name=lambda word, key: "?", worker_name=str)
    return RingView(driver.engine, names)


def tells(look, **wanted):
    """Check that a look tells these fields."""
    assert {name: getattr(look, name) for name in wanted} == wanted


@pytest.mark.spec("ORCH-API-6")
def test_a_look_at_a_task_tells_all_of_it():
    """So it does from another thread."""
    with Gate() as started, Gate() as go, Worker(3, num_sub_workers=2) as w:
        after = w.register(lambda args: None)

        @w.register
        def hold(args):
            started.open(1)
            go.wait()

        def orch_fn(orch, args, config):
            buffer = orch.alloc(1000, "uint8")  # 0
            given = (buffer, T.INOUT), (key(0, 3000), T.OUTPUT), (key(0, 3000), T.OUTPUT)
            first = make_args(*given, scalars=[-7, 2.5])
            orch.submit_sub(hold, first)  # 1
            with orch.scope():
                reads_both = make_args((first.tensor(1), T.INPUT), (buffer, T.INPUT))
                orch.submit_sub(after, reads_both)  # 2
                lone = orch.ring.slot_state(2)
            orch.submit_sub_group(after, [make_args((first.tensor(2), T.INPUT))] * 2)  # 3
            started.wait()
            wait_until(lambda: orch.ring.slot_state(1).state == TaskState.RUNNING)
            with ThreadPoolExecutor(1) as thread:
                looks = list(thread.map(orch.ring.slot_state, range(4)))
            go.open()

            tells(looks[0], task_id=0, state=TaskState.COMPLETED, ring_idx=0, callable=None)
            tells(looks[0], fanin_count=0, fanin_released=0, fanin_producers=(), worker=None)
            tells(looks[0], worker_type=None, config=None, output_keys=((buffer.data, -1),))
            tells(looks[0], fanout_consumers=(1, 2))
            tells(looks[0], fanout_total=3, fanout_released=1, slab=(buffer.data, 1024))

            tells(looks[1], fanin_count=1, fanin_released=1, fanin_producers=(0,))
            tells(looks[1], fanout_consumers=(2, 3))
            tells(looks[1], fanout_total=3, fanout_released=0, config=CallConfig(), group_size=0)
            assert looks[1].task_args == (tuple(map(first.tensor, range(3))), (-7, 2.5))
            assert looks[1].slab == (first.tensor(1).data, 2 * 3072)
            assert looks[1].callable.endswith("hold")
            assert looks[1].worker.startswith("sub_worker ")

            assert looks[2] == lone._replace(fanout_released=1)  # its scope has ended
            tells(looks[2], state=TaskState.PENDING, ring_idx=1, fanin_count=2, fanin_released=1)
            tells(looks[2], fanout_consumers=(), worker=None, slab=None, fanout_total=1)
            assert sorted(looks[2].fanin_producers) == [0, 1]
            assert looks[2].callable.endswith("<lambda>")

            tells(looks[3], fanin_producers=(1,), fanin_released=0, worker=None)

        assert w.run(orch_fn).tasks == 4


DOCUMENTED = {
    *("state", "worker_type", "callable", "config", "task_args", "task_args_list", "group_size"),
    *("sub_complete_count", "fanin_count", "fanin_producers", "fanin_released", "fanout_total"),
    *("fanout_released", "fanout_consumers", "output_keys", "ring_idx", "ring_slot_idx"),
}
"""The fields of a slot in the design documents, but for its lock."""


@pytest.mark.spec("ORCH-API-6")
def test_a_look_has_each_field_of_the_documents_as_the_page_lists_them_and_changes_nothing(driver):
    section = (ROOT / "docs/design/orchestrator.md").read_text().split("## What a slot shows")[1]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == DOCUMENTED
    assert all(hasattr(slots.TaskView, name) for name in DOCUMENTED)
    changes = {"alloc", "release", "reset_to_empty", "shutdown"}
    assert changes <= set(dir(Ring)) and not changes & set(dir(view_of(driver)))


@pytest.mark.spec("ORCH-API-6")
@pytest.mark.kernels
def test_a_look_at_a_group_tells_of_each_member_and_of_its_worker_from_when_it_is_sent(make_driver):
    driver = make_driver(sub=3)
    members = [Member((reads(64), updates(4096)), worker=2), Member((), scalars=(5,))]
    slot = driver.submit_group(*members)

    def look():
        return view_of(driver).slot_state(driver.id(slot))

    tells(look(), workers=(None, None), sub_complete_count=0, group_size=2, task_args=None)
    tells(look(), worker_type=WorkerType.SUB, output_keys=((4096, -1),))
    (tensors, none), last = look().task_args_list
    assert ([one.data for one in tensors], none, last) == ([64, 4096], (), ((), (5,)))
    driver.settle()
    tells(look(), workers=("2", "0"), sub_complete_count=0, state=TaskState.RUNNING)
    driver.post_done(2)
    driver.settle()
    tells(look(), workers=("2", "0"), sub_complete_count=1)


@pytest.mark.spec("ORCH-API-6")
def test_a_look_at_a_task_that_is_not_alive_is_a_key_error_that_names_it(w):
    def look(orch, words):
        for task in (0, 1, -1, 2**62, 2**70):
            with pytest.raises(KeyError, match=f"task {task} is not alive.*{words}"):
                orch.ring.slot_state(task)

    kept = []

    def orch_fn(orch, args, config):
        look(orch, "no task was submitted")
        with orch.scope():
            orch.alloc(8, "uint8")
            orch.alloc(8, "uint8")
        look(orch, "0 … 1 were given out")
        kept[:] = [orch]

    for _ in range(2):
        w.run(orch_fn)
        look(*kept, "no task was submitted")
    with pytest.raises(TypeError, match="task_id='1' is not a whole number"):
        kept[0].ring.slot_state("1")


@pytest.mark.spec("ORCH-API-6")
@pytest.mark.parametrize("before", ["body", "end"])
def test_a_slot_that_is_used_again_meanwhile_is_not_taken_for_the_task(driver, before, monkeypatch):
    """The task ends and its slot is another's, between the look's reads."""
    driver.open_scope()
    slot = driver.submit(*[auto(64)] * 40)
    driver.close_scope()
    view = view_of(driver)

    def use_again(real):
        def instead(*args):
            found = real(*args)
            if driver.id(slot) == 0:
                driver.finish(slot)
                assert driver.reclaim() == 1
                driver.mem[slot + L.S_BODY] = 1 << 60  # nobody may follow what stands there
                assert driver.submit(reads(64)) == slot
            return found

        return instead

    name = {"body": "find", "end": "consumers"}[before]
    monkeypatch.setattr(slots, name, use_again(getattr(slots, name)))
    with pytest.raises(KeyError, match="task 0 is not alive"):
        view.slot_state(0)
    assert view.slot_state(1).task_id == 1


@pytest.mark.spec("ORCH-API-6")
def test_a_look_during_which_the_state_changes_is_taken_again(driver, monkeypatch):
    producer = driver.submit(writes(64))
    slot, real = driver.submit_and_settle(reads(64)), slots.consumers

    def go_on(*args):
        if driver.state(producer) == TaskState.RUNNING:
            driver.finish(producer)
        return real(*args)

    monkeypatch.setattr(slots, "consumers", go_on)
    look = view_of(driver).slot_state(driver.id(slot))
    assert (look.state, look.fanin_released) == (TaskState.RUNNING, 1)
