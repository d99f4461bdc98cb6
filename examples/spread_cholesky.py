"""A tiled Cholesky factorisation, A = L Lᵀ, of float32: on this machine, on endpoints, or on Ray.

Nothing says where a tile is: the tags of the tasks say who needs it.
"""

import numpy as np
from where import report, worker_from

from simpler_ref import TaskArgs
from simpler_ref import TensorArgType as T

SIZE, TILE = 512, 128


def potrf(args):
    """A := L with A = L Lᵀ."""
    a = args.tensor(0).numpy()
    a[...] = np.linalg.cholesky(a)


def trsm(args):
    """A := A L⁻ᵀ."""
    lower, a = args.tensor(0).numpy(), args.tensor(1).numpy()
    a[...] = np.linalg.solve(lower, a.T).T


def gemm(args):
    """C := C − A Bᵀ."""
    a, b, c = (args.tensor(i).numpy() for i in range(3))
    c -= a @ b.T


def main():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((SIZE, SIZE), np.float32)
    matrix = matrix @ matrix.T + SIZE * np.eye(SIZE, dtype=np.float32)
    rows = range(SIZE // TILE)
    with worker_from() as worker:
        leaf = {function: worker.register(function) for function in (potrf, trsm, gemm)}
        tile = {
            (i, j): worker.share(
                matrix[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE].copy()
            )
            for i in rows
            for j in rows[: i + 1]
        }

        def factorise(orch, args, config):
            def submit(function, *reads, update):
                task = TaskArgs()
                for one in reads:
                    task.add_tensor(tile[one], T.INPUT)
                task.add_tensor(tile[update], T.INOUT)
                orch.submit_sub(leaf[function], task)

            for p in rows:
                submit(potrf, update=(p, p))
                for i in rows[p + 1 :]:
                    submit(trsm, (p, p), update=(i, p))
                for i in rows[p + 1 :]:
                    for j in rows[p + 1 : i + 1]:
                        submit(gemm, (i, p), (j, p), update=(i, j))

        worker.run(factorise)
        lower = np.zeros_like(matrix)
        for (i, j), one in tile.items():
            lower[i * TILE : (i + 1) * TILE, j * TILE : (j + 1) * TILE] = one
        error = np.abs(lower - np.linalg.cholesky(matrix)).max()
        report(worker, f"as numpy's: {error < 1e-3}")


if __name__ == "__main__":
    main()
