"""The program of the README: two tasks, one buffer between them, no copies."""

import numpy as np

from simpler_ref import TaskArgs, Worker
from simpler_ref import TensorArgType as T


def scale_into(args):  # runs in a forked worker, on shared memory, no copies
    x, y = args.tensor(0).numpy(), args.tensor(1).numpy()
    np.multiply(x, args.scalar(0), out=y)


def main():
    with Worker(level=3, num_sub_workers=2) as w:
        x = w.share(np.arange(1e6, dtype=np.float32))
        y = w.empty((1_000_000,), np.float32)
        scale = w.register(scale_into)  # -> CallableHandle

        def pipeline(orch, args, cfg):
            tmp = orch.alloc((1_000_000,), np.float32)  # a slab of the heap ring
            a = TaskArgs()
            a.add_tensor(x, T.INPUT)
            a.add_tensor(tmp, T.INOUT)
            a.add_scalar(3)
            orch.submit_sub(scale, a)
            with orch.scope():
                b = TaskArgs()
                b.add_tensor(tmp, T.INPUT)
                b.add_tensor(y, T.OUTPUT_EXISTING)
                b.add_scalar(2)
                orch.submit_sub(scale, b)

        timing = w.run(pipeline)
        assert y[10] == 60
        print(f"y[10] = {y[10]:.0f} after {timing.tasks} tasks and {timing.edges} edges")


if __name__ == "__main__":
    main()
