"""Run by the benchmarks in a new interpreter: a session's mover with one window, until its input ends.

Its argument has the group's keys, or null; it prints its address.
"""

import json
import sys

import numpy as np

from simpler_ref.remote.connection import KeyPair
from simpler_ref.remote.mover import Mover, Window

KEY = 1
NBYTES = 64 << 20


def main(group: list[str] | None) -> None:
    """Serve the window."""
    mover = Mover("tcp://127.0.0.1:*", KeyPair(*group) if group else None)
    memory = np.ones(NBYTES, np.uint8)
    mover.offer(Window(KEY, memory.ctypes.data, NBYTES))
    print(mover.address, flush=True)
    sys.stdin.read()
    mover.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
