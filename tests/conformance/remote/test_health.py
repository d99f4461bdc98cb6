"""REMOTE-HEALTH: signs of life."""

import os
import signal
import time

import numpy as np
import pytest
import zmq

from simpler_ref import WorkerLostError
from simpler_ref.remote.connection import prepare
from tests import far_side
from tests.endpoints import INOUT, program


def until(true, timeout_s=20):
    """Wait until something is true."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.spec("REMOTE-HEALTH-1")
def test_a_session_that_is_stopped_is_lost_after_the_silence_that_was_asked_for():
    with program(1, silence_s=1.0) as one:
        one.run((far_side.nothing, None))
        pid = one.worker.endpoints()[0]["pid"]
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(WorkerLostError, match=r"silent for 1\.0 s"):
            one.run((far_side.nothing, None))
        one.run((far_side.nothing, None))
        assert one.worker.endpoints()[0]["pid"] != pid
        until(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.spec("REMOTE-HEALTH-2")
def test_counters_tell_of_frames_bytes_and_signs_of_life():
    with program(2) as two:
        two.run((far_side.nothing, None, {"worker": 1}))
        until(lambda: two.worker.endpoints()[1]["health"] > 1)
        idle, busy = two.worker.endpoints()
        assert (idle["endpoint"], busy["endpoint"]) == (0, 1)
        assert (idle["tasks"], busy["tasks"]) == (0, 1)
        assert busy["frames_sent"] > 1 and busy["frames_sent"] == busy["frames_received"]
        assert busy["bytes_sent"] > 100 and busy["bytes_received"] > 40
        assert 0 < busy["round_trip_ns"] < 10**10
        assert abs(busy["clock_offset_ns"]) < 10**10
        assert busy["alive"]


@pytest.mark.spec("REMOTE-HEALTH-3")
def test_transfers_tell_what_each_session_has_moved_and_holds():
    with program(2) as two:
        assert [one["buffers"] for one in two.worker.transfers()] == [0, 0]
        buffer = two.buffer(0, np.ones(4))
        imported = two.worker.remote_import(two.worker.remote_export(buffer), worker=1)
        two.run((far_side.add_one, two.args((imported, INOUT))))
        first, second = two.worker.transfers()
        assert (first["endpoint"], first["buffers"], first["buffer_bytes"]) == (0, 1, 16)
        assert (first["exports"], second["imports"]) == (1, 1)
        assert second["bytes_in"] == second["bytes_out"] == 16


@pytest.mark.spec("REMOTE-HEALTH-1")
def test_to_send_on_a_connection_that_has_ended_fails_and_does_not_wait():
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        prepare(socket, 1.0)
        with context.socket(zmq.ROUTER) as peer:
            socket.connect(f"tcp://127.0.0.1:{peer.bind_to_random_port('tcp://127.0.0.1')}")
            socket.send(b"")
            peer.recv_multipart()
        until(lambda: not socket.poll(0, zmq.POLLOUT))
        with pytest.raises(zmq.Again):
            socket.send(b"nobody gets this")
