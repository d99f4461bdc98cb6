"""Heat in a plate: blocks of rows that exchange their edges, on this machine, on endpoints, or on Ray.

A block is updated in place. The rows at its edges are OUTPUTs, new tensors in each step, so no task can
overwrite what another one still reads.
"""

import numpy as np
from where import report, worker_from

from simpler_ref import ContinuousTensor, DataType, TaskArgs
from simpler_ref import TensorArgType as T

ROWS, COLUMNS, BLOCKS, STEPS = 256, 512, 4, 20


def edges(args):
    """Say what is at the first and the last row of a block."""
    u, top, bottom = (args.tensor(i).numpy() for i in range(3))
    top[...], bottom[...] = u[0], u[-1]


def step(args):
    """Move every inner point towards the mean of its neighbours, and say what is at the edges."""
    above, below, u, top, bottom = (args.tensor(i).numpy() for i in range(5))
    u[...] = advance(np.vstack([above, u, below]))[1:-1]
    top[...], bottom[...] = u[0], u[-1]


def advance(u):
    """Return a plate one step later; its outermost points stay."""
    after = u.copy()
    after[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
    return after


def main():
    plate = np.zeros((ROWS + 2, COLUMNS), np.float32)
    plate[0], plate[:, 0] = 100, 50
    with worker_from() as worker:
        leaf = {function: worker.register(function) for function in (edges, step)}
        blocks = [worker.share(one.copy()) for one in np.split(plate[1:-1], BLOCKS)]
        first, last = worker.share(plate[0].copy()), worker.share(plate[-1].copy())

        def submit(orch, function, reads, block):
            task = TaskArgs()
            for one in reads:
                task.add_tensor(one, T.INPUT)
            task.add_tensor(block, T.INOUT)
            for _ in range(2):
                task.add_tensor(ContinuousTensor.make(0, (COLUMNS,), DataType.FLOAT32), T.OUTPUT)
            orch.submit_sub(leaf[function], task)
            count = task.tensor_count()
            return task.tensor(count - 2), task.tensor(count - 1)

        def run_all(orch, args, config):
            rows = [submit(orch, edges, [], one) for one in blocks]
            for _ in range(STEPS):
                above = [first, *(bottom for _, bottom in rows[:-1])]
                below = [*(top for top, _ in rows[1:]), last]
                rows = [
                    submit(orch, step, pair, one)
                    for *pair, one in zip(above, below, blocks, strict=True)
                ]

        worker.run(run_all)
        for _ in range(STEPS):
            plate = advance(plate)
        report(worker, f"as numpy's: {np.allclose(np.vstack(blocks), plate[1:-1], atol=1e-3)}")


if __name__ == "__main__":
    main()
