"""REMOTE-HEALTH: signs of life."""

import os
import struct
import sys
import time
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import zmq

from simpler_ref import RemoteWorkerSpec, Worker
from simpler_ref.remote import traces
from simpler_ref.remote.connection import prepare
from simpler_ref.remote.frames import OwnFrameType
from simpler_ref.remote.link import WHY_BYTES, Link
from simpler_ref.remote.link_frames import LinkFrames
from tests import far_side
from tests.endpoints import INOUT, program
from tests.raw_session import greeted
from tests.support import wait_until

from .test_frame import written_as


@pytest.mark.spec("REMOTE-HEALTH-1")
def test_a_connection_that_has_ended_is_told_apart_from_a_silent_one(monkeypatch):
    monkeypatch.setattr(os, "_exit", sys.exit)
    for ago_s, why in ((0.3, "the connection has ended"), (1.8, "was silent for 2.0 s")):
        link = Link(0)
        link.why = np.zeros(WHY_BYTES, np.uint8)
        frames = LinkFrames(RemoteWorkerSpec(), 0, None, None, link._say)
        frames.place = Mock()
        frames.place.name, frames.place.why.return_value = "endpoint 0", ""
        frames._heard = time.monotonic() - ago_s
        with pytest.raises(SystemExit):
            frames.give_up("")
        assert link.last_words() == f"endpoint 0: {why}"


@pytest.mark.spec("REMOTE-HEALTH-2", "REMOTE-HEALTH-3")
def test_counters_tell_of_frames_signs_of_life_and_what_each_session_moves_and_holds():
    with Worker(fleet=RemoteWorkerSpec(num_sub_workers=1), endpoints=1) as worker:
        (before,) = worker.endpoints()
        assert (before["pid"], before["alive"]) == (None, False)
    with program(2) as two:
        two.run((far_side.nothing, None, {"worker": 1}))
        wait_until(lambda: two.worker.endpoints()[1]["health"] > 1)
        idle, busy = two.worker.endpoints()
        assert (idle["endpoint"], busy["endpoint"], idle["at"]) == (0, 1, "this machine")
        assert (idle["tasks"], busy["tasks"]) == (0, 1)
        assert busy["frames_sent"] > 1 and busy["frames_sent"] == busy["frames_received"]
        assert busy["bytes_sent"] > 100 and busy["bytes_received"] > 40
        assert 0 < busy["round_trip_ns"] < 10**10
        assert abs(busy["clock_offset_ns"]) < 10**10
        assert busy["alive"] and psutil.pid_exists(busy["pid"])
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
        wait_until(lambda: not socket.poll(0, zmq.POLLOUT))
        with pytest.raises(zmq.Again):
            socket.send(b"nobody gets this")


@pytest.mark.spec("REMOTE-HEALTH-4")
def test_requests_for_a_trace_and_for_its_records_and_their_answers_are_these_bytes():
    assert OwnFrameType.TRACE == 70
    for detail, number in (("OFF", 0), ("TASKS", 1), ("ALL", 2)):
        written_as(traces.TRACE, traces.TraceDetail[detail], number.to_bytes(4, "little"))
    told = traces.TraceAnswer(7, 8, 9, "c")
    written_as(traces.TRACE_ANSWER, told, struct.pack("<QQQI1s", 7, 8, 9, 1, b"c"))
    with pytest.raises(ValueError, match=r"remote_wire: TRACE\.detail"):
        traces.TRACE.decode(b"\3\0\0\0")
    written_as(traces.RECORDS, 5, struct.pack("<Q", 5))
    told = traces.RecordsAnswer(7, b"abc")
    written_as(traces.RECORDS_ANSWER, told, struct.pack("<QI3s", 7, 3, b"abc"))
    with pytest.raises(ValueError, match=r"RECORDS answer\.data.*too long: 262145 bytes"):
        traces.RECORDS_ANSWER.encode(traces.RecordsAnswer(0, bytes(traces.PIECE + 1)))


@pytest.mark.spec("REMOTE-HEALTH-4")
def test_a_session_begins_and_ends_a_trace_when_it_is_asked_to():
    with greeted() as (_, client):
        sizes = []
        for detail in ("ALL", "OFF", "OFF", "TASKS", "OFF"):
            raw = traces.TRACE.encode(traces.TraceDetail[detail])
            told = traces.TRACE_ANSWER.decode(client.ask(OwnFrameType.TRACE, raw).payload)
            assert told.sequence == client.order.sent and not told.error
            assert bool(told.key) == (detail != "OFF")
            sizes.append(told.size)
        assert sizes[0] == sizes[2] == sizes[3] == 0 < min(sizes[1], sizes[4])
        wrong = client.ask(OwnFrameType.TRACE, b"\7\0\0\0")
        assert "7 is not one of OFF 0" in traces.TRACE_ANSWER.decode(wrong.payload).error
