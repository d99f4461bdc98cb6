"""How quickly bytes move between two sessions of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import mover_peer
import numpy as np
from conftest import Round
from mover_peer import KEY, NBYTES

from simpler_ref.remote.connection import KeyPair, new_pair
from simpler_ref.remote.mover import Mover, Span

SMALL = 200


class Pair(NamedTuple):
    """A mover here, and the address of one in another process."""

    here: Mover
    there: str
    memory: np.ndarray

    def rate(self, direction: str) -> tuple[Round, int]:
        """Give rounds that return bytes per second."""
        move = getattr(self.here, f"{direction}_all")

        def one_round() -> float:
            start = time.perf_counter()
            move(self.there, [Span(KEY, self.memory, NBYTES)])
            return NBYTES / (time.perf_counter() - start)

        return one_round, 1

    def small(self) -> tuple[Round, int]:
        """Give rounds that return the seconds of many fetches of one byte."""

        def one_round() -> float:
            start = time.perf_counter()
            for _ in range(SMALL):
                self.here.fetch_all(self.there, [Span(KEY, self.memory, 1)])
            return time.perf_counter() - start

        return one_round, SMALL


@contextmanager
def pair(group: KeyPair | None) -> Iterator[Pair]:
    """Open a mover here and one in another process."""
    command = [sys.executable, mover_peer.__file__, json.dumps(group)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        address = process.stdout.readline().strip()
        here = Mover("tcp://127.0.0.1:*", group)
        try:
            yield Pair(here, address, np.zeros(NBYTES, np.uint8))
        finally:
            here.close()
            process.stdin.close()


def test_moving_bytes_between_sessions(record):
    with pair(None) as plain, pair(new_pair()) as secure:
        record(
            {
                "fetch_64": plain.rate("fetch"),
                "store_64": plain.rate("store"),
                "fetch_64_curve": secure.rate("fetch"),
                "store_64_curve": secure.rate("store"),
                "fetch_1": plain.small(),
                "fetch_1_curve": secure.small(),
            },
            rounds=25,
        )
