"""Workers of one's own, and runs of a single task."""

from simpler_ref import Worker
from simpler_ref.jit import layout as L


class Calls:
    """A worker that calls its callable with its number, the arguments and the configuration."""

    def __init__(self, number=0):
        self.number = number

    def run(self, callable, view, config):
        callable(self.number, view, config)


def calling(workers, **options):
    """Return a Worker of level 3 with so many next-level workers that call, numbered from 0."""
    w = Worker(3, **options)
    for number in range(workers):
        w.add_next_level(Calls(number))
    return w


def run_sub(w, handle, *args):
    """Run one task on a sub worker."""
    return w.run(lambda orch, *_: orch.submit_sub(handle, *args))


def orch_words(w):
    """Return a copy of the words that the Orch thread writes."""
    return w._session.engine.mem[L.RING_BLOCK : L.SCHED].copy()
