"""Replays in parts while processes die, at points of the protocol and at any time, and networks fail."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from simpler_ref import TaskError, WorkerLostError
from simpler_ref.errors import ControlError, RemoteError, TransferError
from simpler_ref.remote import fail_points

from .. import part_programs
from ..endpoints import INOUT
from ..part_programs import endpoints, sides
from ..support import make_args
from .test_endpoint_faults import arm

LOSSES = WorkerLostError, ControlError, TaskError, RemoteError, TransferError
MOVES = "opening", "storing", "stored", "bringing", "brought", "moving"


class Sides:
    """A graph in which two endpoints need each other, and what its arrays have."""

    def __init__(self, worker):
        self.worker = worker
        self.graph, self.x, self.y = sides(worker, part_programs.sleep_ms, steps=3)

    def replay(self, ms=0):
        """Replay it, and see that its arrays are right; if it fails, give them their values anew."""
        try:
            before = sorted((self.x[0], self.y[0]))
            arrays = (self.x, INOUT), (self.y, INOUT)
            self.graph.run(make_args(*arrays, scalars=[ms]))
            assert sorted((self.x[0], self.y[0])) == before
            assert len(set(self.x)) == len(set(self.y)) == 1
        except LOSSES as error:
            for value, array in enumerate((self.x, self.y), 1):
                self.worker.renew(array)
                array[:] = value
            return error
        return None


@pytest.mark.long
@pytest.mark.parametrize("point", [*fail_points.PARTS, *MOVES])
def test_whoever_dies_at_a_point_of_a_replay_is_noticed_and_replaced(point, tmp_path, monkeypatch):
    once = arm(point, tmp_path, monkeypatch)
    once.unlink()
    with endpoints() as worker:
        both = Sides(worker)
        assert both.replay() is None
        once.touch()
        error = both.replay()
        assert both.graph._went_in_parts
        assert not once.exists(), "nobody has died"
        assert isinstance(error, LOSSES if point in MOVES else WorkerLostError)
        assert "endpoint" in str(error)
        for _ in range(3):
            assert both.replay() is None


@pytest.mark.long
@pytest.mark.parametrize("whom", ["session", "link"])
@pytest.mark.timeout(900)
def test_processes_killed_at_any_time_end_a_replay_and_the_next_is_right(whom):
    draw = random.Random(whom)
    with endpoints() as worker:
        both = Sides(worker)
        for _ in range(2):
            assert both.replay() is None
        for number in range(200):
            victim = number % 2
            pids = [one["pid"] for one in worker.endpoints()]
            if whom == "link":
                pids = worker.worker_pids()
            killer = threading.Timer(draw.uniform(0, 0.02), os.kill, (pids[victim], signal.SIGKILL))
            killer.start()
            seen = None
            while seen is None and killer.is_alive():
                seen = both.replay(ms=2)
            killer.join()
            for _ in range(3):  # the first may see that it was lost between two replays
                seen = both.replay() or seen
            assert both.replay() is None
            assert seen is None or f"endpoint {victim}" in str(seen)
