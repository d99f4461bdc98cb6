"""WM-MAIL: configurations and control requests in the mailbox."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from simpler_ref import Worker
from simpler_ref.errors import ControlError
from simpler_ref.jit import layout as L
from simpler_ref.workers.kinds import SubWorker
from simpler_ref.workers.manager import ThreadManager
from tests.support import DEADLINE_S


def config_bytes(driver):
    return driver.mailbox(0)[16 : 16 + 1052].tobytes()


def packed(block_dim, prefix=b""):
    return struct.pack("<7i1024s", block_dim, 3, 0, 0, 0, 0, 0, prefix)


@pytest.mark.spec("WM-MAIL-1")
def test_a_frame_carries_the_configuration_of_its_task(one):
    wires = [packed(0), packed(2**31 - 1, b"here"), packed(7)]
    for index, wire in enumerate(wires[1:], start=1):
        one.engine.view.write_config(index, wire)
    for index in (0, 1, 2, 1, 0, 0, 2):
        slot = one.submit_and_settle(config=index)
        assert config_bytes(one) == wires[index]
        one.finish(slot)


@pytest.mark.spec("WM-MAIL-2")
def test_configuration_and_digest_are_written_only_when_they_change(one):
    one.engine.view.write_config(1, packed(7))
    one.finish(one.submit(config=1, callable=2))
    box = one.mailbox(0)
    box[16:48] = 0xEE  # nobody but this test writes here
    box[1072:1104] = 0xDD
    one.finish(one.submit(config=1, callable=2))
    assert (set(box[16:48].tolist()), set(box[1072:1104].tolist())) == ({0xEE}, {0xDD})
    one.finish(one.submit(config=1, callable=3))
    assert set(box[16:48].tolist()) == {0xEE}
    assert box[1072:1104].tobytes() == one.digest(3)
    one.finish(one.submit(config=0, callable=3))
    assert config_bytes(one) == packed(0)


@pytest.mark.spec("WM-MAIL-3", "WM-MAIL-5")
def test_a_control_request_is_laid_out_as_in_the_table_and_goes_round(one):
    def worker():
        """Answer one request, as the loop of a worker does; return what it saw."""
        assert one.k.park_and_receive(one.mem, 0) == L.CONTROL
        box = one.mailbox(0)
        seen = one.mailbox_state(0), struct.unpack_from("<Q4Q", box, 8), box[1072:1136].tobytes()
        struct.pack_into("<Q", box, 40, 99)
        one.mem[L.SPIN_NS] = 0
        assert one.k.finish_control_and_receive(one.mem, 0, 0) == L.PARK
        return seen

    manager = ThreadManager(one.engine, [SubWorker()], 1.0, 30.0)
    with ThreadPoolExecutor(1) as threads:
        answering = threads.submit(worker)
        result = manager.control(
            0, L.CTRL_PY_REGISTER, (5, 6, 7), name="a name", digest=bytes(range(32))
        )
        state, words, names = answering.result(DEADLINE_S)
    assert (result, state, words) == (99, (L.CONTROL_REQUEST, 0), (10, 5, 6, 7, 0))
    assert names == b"a name".ljust(32, b"\0") + bytes(range(32))
    commands = "MALLOC FREE COPY_TO COPY_FROM PREPARE REGISTER UNREGISTER ALLOC_DOMAIN"
    commands += " RELEASE_DOMAIN COMM_INIT PY_REGISTER PY_UNREGISTER"
    assert [getattr(L, f"CTRL_{name}") for name in commands.split()] == list(range(12))
    assert (L.CONTROL_REQUEST, L.CONTROL_DONE) == (4, 5)
    assert one.mailbox_state(0) == (L.IDLE, 0)


@pytest.mark.spec("WM-MAIL-4")
def test_after_a_control_request_a_frame_is_complete_again(one):
    one.engine.view.write_config(1, packed(7))
    one.finish(one.submit(config=1, callable=2, scalars=[5]))
    clean = one.mailbox(0).tobytes()
    assert one.k.claim_mailbox(one.mem, 0, 0) == L.OK
    one.mailbox(0)[8:1200] = 0xAA
    one.k.release_mailbox(one.mem, 0)
    slot = one.submit_and_settle(config=1, callable=2, scalars=[5])
    box = one.mailbox(0).tobytes()
    assert box[16:1068] == clean[16:1068]
    assert box[1072:1120] == clean[1072:1120]
    assert box[8:16] == bytes(8), "reserved, 0 for a task"
    one.finish(slot)


@pytest.mark.spec("WM-MAIL-6")
def test_a_sub_command_that_no_worker_carries_out_is_refused():
    w = Worker(4)
    w.add_worker(Worker(3))
    with w, Worker(3, device_ids=[0]) as chips:
        domains = range(L.CTRL_ALLOC_DOMAIN, L.CTRL_COMM_INIT + 1)
        for command in (L.CTRL_PREPARE, 12, 99, *domains):
            for one in (w, chips) if command not in domains else (w,):
                with pytest.raises(ControlError, match="CALLABLE_KIND_UNSUPPORTED"):
                    one._session.chips._ask(command, 0, 8)
        assert chips.malloc(64, 0) > 0, "it serves the next request"
