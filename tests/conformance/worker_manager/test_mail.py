"""WM-MAIL: configurations and control requests in the mailbox."""

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from simpler_ref import CallConfig, Worker
from simpler_ref.errors import ControlError
from simpler_ref.jit import layout as L
from tests.support import DEADLINE_S, Driver, make_args

FOREVER_NS = 10**12


def config_bytes(driver, worker):
    return driver.mailbox(worker)[16 : 16 + 1052].tobytes()


def packed(block_dim, prefix=b""):
    return struct.pack("<7i1024s", block_dim, 3, 0, 0, 0, 0, 0, prefix)


# ---------------------------------------------------------------- configurations
@pytest.mark.spec("WM-MAIL-1")
def test_a_frame_carries_the_configuration_of_its_task():
    driver = Driver(sub=1)
    wires = [packed(0), packed(2**31 - 1, b"here"), packed(7)]
    for index, wire in enumerate(wires[1:], start=1):
        driver.engine.view.write_config(index, wire)
    for index in (0, 1, 2, 1, 0, 0, 2):
        slot = driver.submit(config=index)
        driver.settle()
        assert config_bytes(driver, 0) == wires[index]
        driver.finish(slot)
    driver.close()


@pytest.mark.spec("WM-MAIL-1")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_every_field_reaches_the_worker_and_without_one_it_is_the_default(mode):
    class Notes:
        def __init__(self, seen):
            self.seen = seen

        def run(self, callable, view, config):
            raw = config.to_bytes()
            self.seen[view.scalar(0), : len(raw)] = np.frombuffer(raw, np.uint8)

    with Worker(3) as memory:
        seen = memory.share(np.zeros((4, 1052), np.uint8))
        w = Worker(3, child_mode=mode)
        w.add_next_level(Notes(seen))
        configs = [
            CallConfig(block_dim=9, aicpu_thread_num=1, output_prefix="ü" * 511),
            None,
            CallConfig(output_prefix="x" * 1023),
            CallConfig(),
        ]
        with w:
            handle = w.register(lambda: None)

            def orch_fn(orch, *_):
                for i, config in enumerate(configs):
                    orch.submit_next_level(handle, make_args(scalars=[i]), config)

            w.run(orch_fn)
        expected = [(one or CallConfig()).to_bytes() for one in configs]
        assert [row.tobytes() for row in seen] == expected
        assert expected[1] == packed(0)


@pytest.mark.spec("WM-MAIL-1")
def test_what_the_caller_does_to_a_configuration_afterwards_changes_no_task():
    class Notes:
        def __init__(self, seen):
            self.seen = seen

        def run(self, callable, view, config):
            self.seen[view.scalar(0)] = config.block_dim

    with Worker(3) as memory:
        seen = memory.share(np.zeros(20, np.int64))
        w = Worker(3)
        w.add_next_level(Notes(seen))
        with w:
            handle = w.register(lambda: None)

            def orch_fn(orch, *_):
                config = CallConfig()
                for i in range(20):
                    config.block_dim = i
                    orch.submit_next_level(handle, make_args(scalars=[i]), config)

            w.run(orch_fn)
        assert seen.tolist() == list(range(20))


@pytest.mark.spec("WM-MAIL-2")
def test_configuration_and_digest_are_written_only_when_they_change():
    driver = Driver(sub=1)
    driver.engine.view.write_config(1, packed(7))
    driver.finish(driver.submit(config=1, callable=2))
    box = driver.mailbox(0)
    box[16:48] = 0xEE  # nobody but this test writes here
    box[1072:1104] = 0xDD
    driver.finish(driver.submit(config=1, callable=2))
    assert set(box[16:48].tolist()) == {0xEE}
    assert set(box[1072:1104].tolist()) == {0xDD}
    driver.finish(driver.submit(config=1, callable=3))
    assert set(box[16:48].tolist()) == {0xEE}
    assert box[1072:1104].tobytes() == driver.digest(3)
    driver.finish(driver.submit(config=0, callable=3))
    assert config_bytes(driver, 0) == packed(0)
    driver.close()


@pytest.mark.spec("WM-MAIL-2")
def test_configurations_that_are_numbered_anew_are_written_again():
    driver = Driver(sub=1)
    driver.engine.view.write_config(1, packed(7))
    driver.finish(driver.submit(config=1))
    driver.k.forget_configs(driver.mem)
    driver.engine.view.write_config(1, packed(8))
    driver.finish(driver.submit(config=1))
    assert config_bytes(driver, 0) == packed(8)
    driver.close()


@pytest.mark.spec("WM-MAIL-1", "WM-MAIL-2")
def test_more_configurations_than_there_are_numbers_in_several_runs():
    class Notes:
        def __init__(self, seen):
            self.seen = seen

        def run(self, callable, view, config):
            self.seen[0] += config.block_dim == view.scalar(0)

    with Worker(3) as memory:
        seen = memory.share(np.zeros(1, np.int64))
        w = Worker(3)
        w.add_next_level(Notes(seen))
        with w:
            handle = w.register(lambda: None)
            count = 0
            for _ in range(4):

                def orch_fn(orch, *_):
                    nonlocal count
                    for _ in range(1500):
                        with orch.scope():
                            args = make_args(scalars=[count])
                            orch.submit_next_level(handle, args, CallConfig(block_dim=count))
                        count += 1

                w.run(orch_fn)
            assert seen[0] == count == 6000


# ---------------------------------------------------------------- control requests
@pytest.mark.spec("WM-MAIL-3")
def test_a_control_request_is_laid_out_as_in_the_table_and_goes_round():
    driver = Driver(sub=1)
    states = []

    def worker():
        """Answer one request, as the loop of a worker does."""
        assert driver.k.park_and_receive(driver.mem, 0) == L.CONTROL
        states.append(driver.mailbox_state(0))
        box = driver.mailbox(0)
        seen = struct.unpack_from("<Q4Q", box, 8), box[1072:1136].tobytes()
        struct.pack_into("<Q", box, 40, 99)
        driver.mem[L.SPIN_NS] = 0
        assert driver.k.finish_control_and_receive(driver.mem, 0, 0) == L.PARK
        return seen

    from simpler_ref.workers.kinds import SubWorker
    from simpler_ref.workers.threads import ThreadManager

    manager = ThreadManager(driver.engine, [SubWorker()], 1.0)
    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(worker)
        result = manager.control(
            0, L.CTRL_PY_REGISTER, (5, 6, 7), name="a name", digest=bytes(range(32)), timeout_s=30.0
        )
        (command, *args), names = answering.result(DEADLINE_S)
    assert result == 99
    assert (command, args) == (10, [5, 6, 7, 0])
    assert names == b"a name".ljust(32, b"\0") + bytes(range(32))
    assert states == [(L.CONTROL_REQUEST, 0)]
    assert driver.mailbox_state(0) == (L.IDLE, 0)
    driver.close()


@pytest.mark.spec("WM-MAIL-5")
def test_the_sub_commands_have_their_numbers():
    names = (
        "MALLOC FREE COPY_TO COPY_FROM PREPARE REGISTER UNREGISTER ALLOC_DOMAIN RELEASE_DOMAIN "
        "COMM_INIT PY_REGISTER PY_UNREGISTER"
    )
    assert [getattr(L, f"CTRL_{name}") for name in names.split()] == list(range(12))
    assert (L.CONTROL_REQUEST, L.CONTROL_DONE) == (4, 5)


@pytest.mark.spec("WM-MAIL-3")
def test_a_payload_is_announced_with_name_and_size():
    """What a registration in a running Worker leaves in the mailbox."""
    with Worker(3, num_sub_workers=1) as w:
        w.start()
        handle = w.register(lambda args: None)
        mem = w._session.engine.mem
        start = 8 * (int(mem[L.A_WORKERS]) + L.W_MAILBOX)
        box = mem.view(np.uint8)[start : start + L.MAILBOX_SIZE].tobytes()
        assert struct.unpack_from("<Q", box, 16)[0] > 16, "the envelope alone has 16 bytes"
        name = box[1072:1104]
        assert b"\0" in name and name.rstrip(b"\0")
        assert box[1104:1136] == handle.digest


@pytest.mark.spec("WM-MAIL-4")
def test_after_a_control_request_a_frame_is_complete_again():
    driver = Driver(sub=1)
    driver.engine.view.write_config(1, packed(7))
    driver.finish(driver.submit(config=1, callable=2, scalars=[5]))
    clean = driver.mailbox(0).tobytes()
    assert driver.k.claim_mailbox(driver.mem, 0, 0) == L.OK
    driver.mailbox(0)[8:1200] = 0xAA
    driver.k.release_mailbox(driver.mem, 0)
    slot = driver.submit(config=1, callable=2, scalars=[5])
    driver.settle()
    box = driver.mailbox(0).tobytes()
    assert box[16:1068] == clean[16:1068]
    assert box[1072:1120] == clean[1072:1120]
    assert box[8:16] == bytes(8), "reserved, 0 for a task"
    driver.finish(slot)
    driver.close()


@pytest.mark.spec("WM-MAIL-4")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_registrations_between_tasks_leave_callable_configuration_and_arguments_right(mode):
    class Notes:
        def __init__(self, seen):
            self.seen = seen

        def run(self, callable, view, config):
            callable(view.scalar(0), config.block_dim)

    w = Worker(3, child_mode=mode)
    w.add_next_level(Notes(None))
    with w:
        seen = w.share(np.zeros((30, 2), np.int64))

        def note(which, dim):
            seen[which] = which, dim

        always = w.register(note)

        def orch_fn(orch, *_):
            for i in range(0, 30, 2):
                config = CallConfig(block_dim=3)
                orch.submit_next_level(always, make_args(scalars=[i]), config)
                fresh = w.register(lambda which, dim, i=i: seen.__setitem__(which, (i + 1, dim)))
                orch.submit_next_level(fresh, make_args(scalars=[i + 1]), config)

        w.run(orch_fn)
        assert seen.tolist() == [[i, 3] for i in range(30)]
        w.run(lambda orch, *_: orch.submit_next_level(always, make_args(scalars=[1])))
        assert seen[1].tolist() == [1, 0]


@pytest.mark.spec("WM-MAIL-6")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_a_sub_command_that_no_worker_carries_out_is_refused(mode):
    w = Worker(4, child_mode=mode)
    w.add_worker(Worker(3))
    with w, Worker(3, device_ids=[0], child_mode=mode) as chips:
        for command in (L.CTRL_PREPARE, *range(L.CTRL_ALLOC_DOMAIN, L.CTRL_COMM_INIT + 1), 12, 99):
            for one in (w, chips):
                with pytest.raises(ControlError, match="CALLABLE_KIND_UNSUPPORTED"):
                    one._chips._ask(command, 0, 8)
        assert chips.malloc(64, 0) > 0, "it serves the next request"
