"""Callables come and go while the workers run."""

import mmap
import sys

import numpy as np
from simpler.task_interface import CallConfig, TaskArgs
from simpler.worker import Worker

cell = np.frombuffer(mmap.mmap(-1, 4096), np.int32)[:1]


def main():
    worker = Worker(level=3, num_sub_workers=1)
    first = worker.register(lambda args: cell.__setitem__(0, 1))
    worker.init()
    try:
        worker.run(lambda orch, args, config: orch.submit_sub(first), TaskArgs(), CallConfig())
        assert cell[0] == 1
        address = cell.ctypes.data

        def late(args):
            import ctypes

            ctypes.c_int32.from_address(address).value += 41

        second = worker.register(late)
        worker.run(lambda orch, args, config: orch.submit_sub(second), TaskArgs(), CallConfig())
        assert cell[0] == 42
        worker.unregister(second)
        try:
            worker.run(lambda orch, args, config: orch.submit_sub(second), TaskArgs(), CallConfig())
        except KeyError as error:
            assert "is not live on this Worker" in str(error), error
        else:
            raise AssertionError("an unregistered handle was taken")
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
