"""Shared memory: where it comes from, who sees it, and that it comes back."""

from __future__ import annotations

import subprocess

import numpy as np
import psutil
import pytest

from simpler_ref import TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.jit import layout as L

from ..segments import segments
from ..support import wait_until
from .programs import Program, check_program
from .test_failures import args_of, mark, only

MIB = 1 << 20


def tiny_shm() -> tuple[str, ...]:
    """Return what to put before a command so that it finds a /dev/shm of 64 KiB, if that is allowed."""
    script = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    for options in (["--mount"], ["--mount", "--map-root-user"]):
        prefix = ("unshare", *options, "sh", "-c", script, "sh")
        try:
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return prefix
        except OSError:
            break
    return ()


FILL = """
with Worker(level=3, num_sub_workers=2, heap_ring_size=8 << 20, arena_size=64 << 20) as w:
    big = w.share(np.full(32 << 20, 3, np.uint8))
    def add(args):
        args.tensor(1).numpy()[:] = args.tensor(0).numpy()[:8 << 20] + 1
    h = w.register(add)
    def graph(orch, args, config):
        for _ in range(4):
            with orch.scope():
                a = TaskArgs()
                a.add_tensor(big)
                a.add_tensor(ContinuousTensor.make(0, (8 << 20,), DataType.UINT8), T.OUTPUT)
                orch.submit_sub(h, a)
                b = TaskArgs()
                b.add_tensor(a.tensor(1))
                b.add_tensor(big[:8 << 20], T.INOUT)
                orch.submit_sub(h, b)
    w.run(graph)
    assert set(big[:8 << 20]) == {11} and set(big[8 << 20:]) == {3}
"""


def test_a_dev_shm_of_64_kib_is_enough():
    source = 'assert os.statvfs("/dev/shm").f_blocks * 4096 <= 64 << 10\n' if tiny_shm() else ""
    with Program(source + FILL, before=tiny_shm()) as program:
        assert program.finish() == (0, "", "")
        assert program.everybody_ends()


def test_nothing_of_ours_ever_has_a_name_in_dev_shm():
    named = segments()
    with Worker(level=3, num_sub_workers=2) as w:
        w.start()
        wait_until(lambda: segments() <= named)  # but for a moment, by others
        with open("/proc/self/maps") as maps:
            ours = [line for line in maps if "/dev/shm/" in line]
    assert all(line.endswith("(deleted)\n") for line in ours)


def test_workers_read_and_write_in_place():
    with Worker(level=3, num_sub_workers=2) as w:
        x = w.share(np.arange(1000, dtype=np.float32))
        seen = w.empty(2, np.uint64)

        def look(args):
            tensor = args.tensor(0)
            seen[:] = tensor.data, tensor.numpy().ctypes.data
            tensor.numpy()[...] *= 2

        h = w.register(look)
        w.run(only(h, args_of((x, T.INOUT))))
        assert seen.tolist() == [x.ctypes.data] * 2
        assert (x == 2 * np.arange(1000)).all()
        late = w.share(np.ones((3, 3), np.int16))  # also what is made after the start
        w.run(only(h, args_of((late, T.INOUT))))
        assert (late == 2).all()


def test_every_dtype_of_a_task_arrives_as_what_it_is():
    kinds = [
        "float32",
        "float16",
        "int32",
        "int16",
        "int8",
        "uint8",
        "int64",
        "uint64",
        "uint16",
        "uint32",
        "bool",
    ]
    with Worker(level=3, num_sub_workers=1) as w:
        arrays = [w.share(np.ones((2, 1, 3), kind)) for kind in kinds]
        report = w.empty(len(kinds), np.int64)

        def look(args):
            for i, kind in enumerate(kinds):
                tensor = args.tensor(i)
                array = tensor.numpy()
                right = array.dtype == kind and array.shape == (2, 1, 3) and array.all()
                report[i] = right and tensor.nbytes() == array.nbytes

        w.run(only(w.register(look), args_of(*[(array, T.INPUT) for array in arrays])))
        assert report.tolist() == [1] * len(kinds)


_seen = {}


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
            orch.submit_sub(args, args_of((found, T.INOUT)))
            assert mem[int(mem[L.A_SLOTS]) :][:1000].any()

        w.run(graph, w.register(look_at_slots))
        assert found[0] > 0
        assert found[1] == 0
        w.run(only(w.register(lambda: None)))
        _seen.clear()


def test_memory_takes_pages_only_as_it_is_touched():
    process = psutil.Process()
    before = process.memory_info().rss
    with Worker(level=3, num_sub_workers=1) as w:
        w.run(only(w.register(lambda: None)))
        assert sum(w._session.orch.ring.heap_size(ring) for ring in range(4)) == 4 << 30
        assert process.memory_info().rss - before < 64 * MIB


def test_an_arena_serves_arrays_for_ever_as_long_as_old_ones_are_dropped():
    with Worker(level=3, num_sub_workers=1, arena_size=4 * MIB) as w:
        marks = w.share(np.zeros(4, np.int64))
        ok = w.register(mark)
        for i in range(200):
            x = w.share(np.full(3 * MIB, i % 100, np.uint8))
            w.run(only(ok, args_of((marks, T.INOUT), (x, T.INPUT), scalars=[0])))
            assert x[-1] == i % 100
            del x
        with pytest.raises(MemoryError, match="arena_size"):
            [w.empty(MIB, np.uint8) for _ in range(5)]
        assert w.empty(3 * MIB, np.uint8).nbytes == 3 * MIB


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


def test_a_program_may_use_more_heap_than_it_has_over_time():
    check_program(FILL.replace("range(4)", "range(40)").replace("{11}", "{83}"))


def test_the_package_does_not_start_multiprocessing():
    out = check_program(
        """
        with Worker(level=3, num_sub_workers=1) as w:
            w.start()
        print("multiprocessing.resource_tracker" in sys.modules)
        """
    )
    assert out == "False\n"


@pytest.mark.spec("ORCH-MISUSE-2")
def test_an_array_accepted_before_the_run_is_checked_by_the_worker_that_runs():
    with Worker(3, num_sub_workers=1) as one:
        handle = one.register(lambda args: args.tensor(0).numpy().fill(1))
        one.start()
        with Worker(3) as other:
            foreign, own = TaskArgs(), TaskArgs()
            foreign.add_tensor(other.empty(4), T.INOUT)
            array = one.empty(4)
            own.add_tensor(array, T.INOUT)

            def refused(orch, args, config):
                with pytest.raises(ValueError, match="after the workers were started"):
                    orch.submit_sub(handle, foreign)
                orch.submit_sub(handle, own)

            assert one.run(refused).tasks == 1
            assert array.tolist() == [1] * 4
