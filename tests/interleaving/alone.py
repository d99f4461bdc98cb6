"""One thread alone with the interpreted kernels: a test says what happens in its sleep."""

from __future__ import annotations

import functools
from collections.abc import Callable

from .actors import TICK_NS, World, played
from .memory import Memory
from .scene import Scene
from .schedules import InTurn


@functools.cache
def _image():
    return Scene("a").image


class Alone(World):
    """The words of an engine whose two workers are ready, and one thread.

    `asleep` is called for each sleep, with the park word and the time limit; it says how that ends.
    `offered` is called when the thread lets others run; `woken` are the words that it has woken.
    """

    def __init__(self, asleep: Callable[[int, int], int], offered=lambda: None):
        super().__init__(Memory(_image()), InTurn())
        self.mem = self.memory
        self.asleep, self.offered = asleep, offered
        self.woken: list[int] = []

    def call(self, kernel, *args):
        """Run a kernel as this thread; return its answer."""
        with played(self):
            return kernel(self.mem, *args)

    # ------------------------------------------------------------ what the kernels call
    def step(self):
        pass

    def futex_wait(self, i, expected, timeout_ns):
        assert self.mem[i] == expected, "it would not sleep"
        return self.asleep(i, timeout_ns)

    def futex_wake(self, i):
        self.woken.append(i)

    def now_ns(self):
        self.clock += TICK_NS
        return self.clock

    def give_way(self):
        self.offered()
        self.clock += TICK_NS
