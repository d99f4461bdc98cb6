"""How a link waits for answers, and for tasks that come meanwhile."""

import os
from types import SimpleNamespace

import pytest
import zmq

from simpler_ref import RemoteWorkerSpec
from simpler_ref.remote.link_frames import LinkFrames


def test_rings_that_come_together_wake_a_link_once():
    frames = LinkFrames(RemoteWorkerSpec(), 0, None, None, None)
    armed = []
    frames._lookout = SimpleNamespace(arm=lambda *place: armed.append(place))
    frames._bell = os.eventfd(0, os.EFD_NONBLOCK)
    with zmq.Context() as context, context.socket(zmq.DEALER) as frames._frames:
        for _ in range(2):
            os.eventfd_write(frames._bell, 1)
        frames.wait_for_answer_or_task(2, 7)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(frames._bell)
    os.close(frames._bell)
    assert armed == [(2, 7)]
