"""Random numbers in the workers: each worker's global generators have a stream of their own.

A worker inherits the state of the generators, so without this all workers would draw the same numbers.
They are seeded from the state of the parent's generators when it starts its workers. The parent's own
streams are only read.

Rule     WM-RANDOM-1
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
import sys
from importlib import import_module
from typing import Any, NamedTuple

_starts = itertools.count()


class Entropy(NamedTuple):
    """The seeds for the workers of one start, per generator; empty where there is none."""

    python: bytes
    numpy: bytes
    torch: bytes

    def seed_worker(self, worker: int, birth: int) -> None:
        """Seed the generators of this worker process; `birth` counts its successors."""
        random.seed(self._word(self.python, worker, birth, 32))
        if self.numpy:
            _seed_numpy(self._word(self.numpy, worker, birth, 32))
        if self.torch and (torch := sys.modules.get("torch")):
            torch.default_generator.manual_seed(self._word(self.torch, worker, birth, 8) >> 1)

    @staticmethod
    def _word(source: bytes, worker: int, birth: int, size: int) -> int:
        digest = hashlib.sha256(source + f" {worker} {birth}".encode()).digest()
        return int.from_bytes(digest[:size], "little")


def draw_entropy(beside: int) -> Entropy:
    """Read the generators of this process before workers are made; `beside` other Workers run.

    From the same state of numpy's generator, once it has been seeded, the workers get the same streams.
    Whether the others have been seeded is unknown: the number of the start in this process is mixed in,
    so that two starts do not repeat each other, but two runs of a program do.
    """
    start = next(_starts)
    numpy = torch = b""
    if "numpy.random" in sys.modules:
        numpy = _numpy_state(start, beside)
    if "torch" in sys.modules:
        torch = _digest(bytes(sys.modules["torch"].get_rng_state().numpy()), start)
    return Entropy(_digest(repr(random.getstate()).encode(), start), numpy, torch)


def _numpy_state(start: int, beside: int) -> bytes:
    np_random: Any = import_module("numpy.random")

    state = pickle.dumps(np_random.get_state(legacy=False), protocol=4)
    seeded = np_random.get_bit_generator().seed_seq is None  # there is one until `seed` is called
    return _digest(state, beside if seeded else start)


def _seed_numpy(word: int) -> None:
    np_random: Any = import_module("numpy.random")

    generator = np_random.get_bit_generator()
    if isinstance(generator, np_random.MT19937):
        np_random.seed([word >> 32 * i & 0xFFFFFFFF for i in range(8)])
    else:  # the user has replaced it
        np_random.set_bit_generator(type(generator)(word))


def _digest(state: bytes, number: int) -> bytes:
    return hashlib.sha256(state + f" {number}".encode()).digest()
