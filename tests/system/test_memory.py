"""Shared memory: where it comes from, who sees it, and that it comes back."""

from __future__ import annotations

import numpy as np

from simpler_ref import TensorArgType as T
from simpler_ref import Worker
from simpler_ref.jit import layout as L

from ..segments import segments
from ..support import make_args, wait_until
from .workers import only


def test_nothing_of_ours_ever_has_a_name_in_dev_shm():
    named = segments()
    with Worker(level=3, num_sub_workers=2) as w:
        w.start()
        wait_until(lambda: segments() <= named)  # but for a moment, by others
        with open("/proc/self/maps") as maps:
            ours = [line for line in maps if "/dev/shm/" in line]
    assert all(line.endswith("(deleted)\n") for line in ours)


_seen = {}  # by a name: what a function refers to is hashed when it is registered


def look_at_slots(args):
    mem, found = _seen["mem"], args.tensor(0).numpy()
    slots = int(mem[L.A_SLOTS])
    found[:] = slots - int(mem[L.PRIVATE]), np.count_nonzero(mem[slots:][:1000])
    mem[slots:][:1000] = -1


def test_a_worker_reads_none_of_the_parents_own_part_of_the_engine():
    with Worker(level=3, num_sub_workers=1) as w:
        mem = _seen["mem"] = w._session.engine.mem
        found = w.empty(2, np.int64)

        def graph(orch, args, config):
            orch.submit_sub(args, make_args((found, T.INOUT)))
            assert mem[int(mem[L.A_SLOTS]) :][:1000].any()

        w.run(graph, w.register(look_at_slots))
        assert found[0] > 0
        assert found[1] == 0
        w.run(only(w.register(lambda: None)))
        _seen.clear()


def test_arrays_in_a_closure_reach_the_worker_without_a_copy():
    with Worker(level=3, num_sub_workers=1) as w:
        x = w.share(np.zeros(4, np.int64))
        y = w.share(np.zeros(4, np.int64))

        def writer(array):
            def write():
                array[0] += 1

            return write

        to_x, to_y = w.register(writer(x)), w.register(writer(y))
        x[0] = 5  # after the registration: no copy was taken
        w.run(only(to_x))
        w.run(only(to_y))
        assert (x[0], y[0]) == (6, 1)


def test_the_package_does_not_start_multiprocessing(interpreter):
    out = interpreter.check(
        """
        with Worker(level=3, num_sub_workers=1) as w:
            w.start()
        print("multiprocessing.resource_tracker" in sys.modules)
        """
    )
    assert out == "False\n"
