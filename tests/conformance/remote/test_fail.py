"""REMOTE-FAIL: lost endpoints."""

import os
import signal
from unittest.mock import Mock

import numpy as np
import pytest

from simpler_ref import RemoteWorkerSpec, TaskError, WorkerLostError, WorkerStartError
from simpler_ref.remote.connection import Order
from simpler_ref.remote.frames import FrameType, OwnFrameType, decode_control_reply
from simpler_ref.remote.link_frames import LinkFrames
from tests import far_side
from tests.endpoints import EXISTING, INOUT, INPUT, Moody, Program, program
from tests.raw_session import ENDPOINT, SESSION, greeted
from tests.support import sample


@pytest.mark.spec("REMOTE-FAIL-1", "REMOTE-FAIL-2")
def test_a_failed_task_poisons_its_readers_and_has_the_traceback_of_the_endpoint():
    with program(1) as one:
        first, second = one.buffer(0, np.zeros(2)), one.buffer(0, np.zeros(2))
        with pytest.raises(TaskError) as caught:
            one.run(
                (far_side.fail, one.args((first, INOUT))),
                (far_side.copy, one.args((first, INPUT), (second, EXISTING))),
            )
        one.run((far_side.add_one, one.args((second, INOUT))))
        assert one.values(second).tolist() == [1, 1]
        pid = one.worker.endpoints()[0]["pid"]
        assert f"ValueError: no, says {pid}" in str(caught.value)
        assert "endpoint 0 on this machine" in str(caught.value)
        assert caught.value.callable_name == far_side.name(far_side.fail)
        assert "in fail\n    raise ValueError" in caught.value.remote_traceback
        assert "in fail\n    raise ValueError" in str(caught.value.__cause__)


@pytest.mark.spec("REMOTE-FAIL-3")
def test_a_killed_session_is_a_lost_worker_and_the_next_run_has_a_new_one():
    with program(2) as two:
        two.run((far_side.nothing, None, {"worker": 0}))
        two.handle(far_side.sleep)
        kept, lost = (two.buffer(number, np.ones(2)) for number in two.ids)
        pids = [one["pid"] for one in two.worker.endpoints()]
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="killed by SIGKILL") as caught:
            two.run((far_side.sleep, None, {"worker": 1}))
        assert "endpoint 1" in str(caught.value) and "far_side:sleep" in str(caught.value)
        two.run(
            (far_side.add_one, two.args((kept, INOUT))), (far_side.nothing, None, {"worker": 1})
        )
        assert two.values(kept).tolist() == [2, 2]
        assert two.worker.endpoints()[0]["pid"] == pids[0]
        assert two.worker.endpoints()[1]["pid"] != pids[1]
        with pytest.raises(ValueError, match="endpoint was lost"):
            two.values(lost)


@pytest.mark.spec("REMOTE-FAIL-4")
@pytest.mark.parametrize("number", [1, 3], ids=["twice", "one is lost"])
def test_a_session_that_sends_frames_out_of_order_is_given_up(monkeypatch, number):
    frames, order, sender = (
        LinkFrames(RemoteWorkerSpec(), 0, None, None, None),
        Order(7, 0),
        Order(7, 0),
    )
    order.received, sender.sent, why = 1, number - 1, []
    raw = sender.encode(OwnFrameType.DONE)
    frames.words, frames._order, frames._frames = None, order, Mock(recv=lambda: raw)
    monkeypatch.setattr(frames, "give_up", why.append)
    with pytest.raises(ValueError, match=rf"frame\.sequence: {number} is not 2"):
        frames.receive(1)
    assert f"frame.sequence: {number} is not 2" in why[0]
    assert order.received == 1


@pytest.mark.spec("REMOTE-FAIL-4")
def test_a_session_refuses_wrong_frames_and_goes_on():
    with greeted() as (place, client):
        order = client.order
        for wrong in ("session_id", "endpoint_id", "sent"):
            kept = getattr(order, wrong)
            setattr(order, wrong, kept + 5)
            client.socket.send(order.encode(FrameType.TASK, b""))
            order.session_id, order.endpoint_id = SESSION, ENDPOINT
            order.sent = kept if wrong == "sent" else order.sent - 1
        client.socket.send(b"garbage")
        client.socket.send(b"")
        client.socket.send_multipart([b"two", b"parts"])
        assert client.hear(0.5) is None
        completion = client.run(b"no task")
        assert completion.error_code == 1 and "remote_wire" in completion.error_message
        reply = decode_control_reply(client.ask(FrameType.CONTROL, b"no request").payload)
        assert reply.error_code == 1 and "remote_wire" in reply.error_message
        assert not place.why()


@pytest.mark.spec("REMOTE-FAIL-5")
@pytest.mark.parametrize("kind", sample([FrameType.SHUTDOWN, None], 1))
def test_shutdown_and_the_end_of_the_connection_end_a_session(kind):
    with greeted() as (place, client):
        if kind:
            client.send(kind)
        else:
            client.socket.close(linger=0)
        assert place.wait(20)


def by_each(made, *endpoints):
    made.run(*[(far_side.nothing, None, {"worker": i}) for i in endpoints])


def until_back(made):
    """Run tasks elsewhere until the first endpoint is back."""
    while not made.worker.endpoints()[0]["alive"]:
        by_each(made, 1)


@pytest.mark.long
@pytest.mark.spec("REMOTE-FAIL-6")
def test_without_an_endpoint_that_cannot_be_started_again_all_others_go_on(tmp_path, caplog):
    fleet = Moody(tmp_path / "moody")
    with program(2, fleet=fleet) as two:
        by_each(two, 0, 1)
        before = two.worker.endpoints()[1]["session"]
        fleet.file.touch()
        with pytest.raises(WorkerLostError, match="exited with status 3"):
            two.run((far_side.die, None, {"worker": 0}))
        by_each(two, 1, -1)
        assert "not in the mood" in caplog.text
        lost = "no new session could be started: RemoteError: not in the mood; a run tries"
        with pytest.raises(WorkerLostError, match=lost):
            by_each(two, 1, 0)
        with pytest.raises(WorkerLostError, match="not in the mood"):
            two.buffer(0, [1.0])
        first, second = two.worker.endpoints()
        assert not first["alive"] and "not in the mood" in first["ended"]
        assert second["session"] == before
        two.handle(far_side.clear)  # registered without it
        fleet.file.unlink()
        until_back(two)
        buffer = two.buffer(0, [1.0])
        two.run((far_side.clear, two.args((buffer, INOUT))))
        assert two.values(buffer).tolist() == [0]
        assert two.worker.endpoints()[1]["session"] == before


@pytest.mark.spec("REMOTE-FAIL-6")
def test_an_endpoint_that_fails_at_the_first_start_fails_that(tmp_path):
    fleet = Moody(tmp_path / "moody")
    fleet.file.touch()
    made = Program(2, fleet=fleet)
    with made.worker as worker:
        worker.init()
        with pytest.raises(WorkerStartError, match="not in the mood"):
            worker.start()
        fleet.file.unlink()
        by_each(made, 0, 1)
