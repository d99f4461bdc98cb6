"""A sub worker is called once."""

import mmap
import sys

import numpy as np
from simpler.task_interface import CallConfig, TaskArgs
from simpler.worker import Worker

counter = np.frombuffer(mmap.mmap(-1, 4096), np.int32)[:1]


def hello(args):
    counter[0] += 1
    print("hello from a sub worker", flush=True)


def main():
    worker = Worker(level=3, num_sub_workers=1)
    handle = worker.register(hello)
    worker.init()
    try:
        worker.run(lambda orch, args, config: orch.submit_sub(handle), TaskArgs(), CallConfig())
    finally:
        worker.close()
    assert counter[0] == 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
