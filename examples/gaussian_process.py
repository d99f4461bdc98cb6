"""Gaussian-process regression on images of handwritten digits, as a graph of tile tasks.

The kernel matrix K of the training images is split into tiles, factorised as K = L Lᵀ (tiled Cholesky)
and used to solve K α = Y; predictions are k*ᵀ α, their variances 1 − |L⁻¹ k*|². Every step on a tile
is a task for a worker process. The dependencies follow from the tiles that a task reads, updates and
creates. So predictions start before the factorisation has ended.

Plain numpy then computes the same on the same cores, and the results are compared.
"""

import argparse
import os
import sys
import threading
import time
from contextlib import contextmanager, nullcontext

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from scipy.linalg import blas, lapack, solve_triangular
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from simpler_ref import (
    ContinuousTensor,
    DataType,
    TaskArgs,
    Trace,
    Worker,
)
from simpler_ref import TensorArgType as T
from simpler_ref.remote import ProcessFleet

CLASSES = 10
IMAGES = 1797  # in scikit-learn's package
HELD_OUT = 360
LENGTH_SCALE = 1.6
NOISE_VARIANCE = 0.05**2
SHIFTS = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)]
MOST_IMAGES = (IMAGES - HELD_OUT) * len(SHIFTS)
MOST_ROWS = 128  # of tiles
TOLERANCE = 1e-8


# ---------------------------------------------------------------- what the workers run
# A task's tensors are in this order: those it reads, those it updates, those it creates.


def tile(args, i):
    """Return tensor i as a matrix of doubles in Fortran order, the order of BLAS and LAPACK.

    Tensors have no 64-bit float type; a tile is passed as INT64, which also has eight bytes.
    """
    return args.tensor(i).numpy().view(np.float64).T


def kernel(a, b):
    """Return exp(−|a − b|² / 2ℓ²) for every row of `a` and every row of `b`."""
    k = a @ b.T
    k *= -2
    k += (a * a).sum(1)[:, None]
    k += (b * b).sum(1)
    np.maximum(k, 0, out=k)
    k *= -0.5 / LENGTH_SCALE**2
    return np.exp(k, out=k)


def kernel_tile(args):
    """K := kernel(a, b), with noise on the diagonal if this tile is on it."""
    k = tile(args, 2)
    k[...] = kernel(tile(args, 0), tile(args, 1))
    k.flat[:: len(k) + 1] += args.scalar_float(0)


def cross_tile(args):
    """K* := kernel(a, b)."""
    tile(args, 2)[...] = kernel(tile(args, 0), tile(args, 1))


def potrf(args):
    """A := L with A = L Lᵀ, on a diagonal tile."""
    _, info = lapack.dpotrf(tile(args, 0), lower=1, overwrite_a=1)
    if info:
        raise np.linalg.LinAlgError(f"the kernel matrix is not positive definite (row {info})")


def trsm(args):
    """A := A L⁻ᵀ, below a diagonal tile."""
    blas.dtrsm(1, tile(args, 0), tile(args, 1), side=1, lower=1, trans_a=1, overwrite_b=1)


def syrk(args):
    """C := C − A Aᵀ, on a diagonal tile."""
    blas.dsyrk(-1, tile(args, 0), beta=1, c=tile(args, 1), lower=1, overwrite_c=1)


def gemm(args):
    """C := C − A Bᵀ."""
    a, b, c = tile(args, 0), tile(args, 1), tile(args, 2)
    blas.dgemm(-1, a, b, beta=1, c=c, trans_b=1, overwrite_c=1)


def solve(args):
    """Y := L⁻¹ Y or, if the scalar is 1, L⁻ᵀ Y."""
    blas.dtrsm(1, tile(args, 0), tile(args, 1), lower=1, trans_a=args.scalar(0), overwrite_b=1)


def subtract(args):
    """Y := Y − L Z or, if the scalar is 1, Y − Lᵀ Z."""
    a, b, c = tile(args, 0), tile(args, 1), tile(args, 2)
    blas.dgemm(-1, a, b, beta=1, c=c, trans_a=args.scalar(0), overwrite_c=1)


def solve_row(args):
    """Vᵢ := Lᵢᵢ⁻¹ (K*ᵢ − Σⱼ Lᵢⱼ Vⱼ): a tile of L⁻¹ K* from all tiles above it."""
    last = args.tensor_count() - 1
    v = tile(args, last)
    v[...] = tile(args, 0)
    for j in range(2, last, 2):
        blas.dgemm(-1, tile(args, j), tile(args, j + 1), beta=1, c=v, overwrite_c=1)
    blas.dtrsm(1, tile(args, 1), v, lower=1, overwrite_b=1)


def add_mean(args):
    """M := M + K*ᵀ α."""
    a, b, c = tile(args, 0), tile(args, 1), tile(args, 2)
    blas.dgemm(1, a, b, beta=1, c=c, trans_a=1, overwrite_c=1)


def reduce_variance(args):
    """S := S − the squares of V, summed over its rows."""
    v = tile(args, 0)
    tile(args, 1)[...] -= (v * v).sum(0)[:, None]


LEAVES = [
    kernel_tile, cross_tile, potrf, trsm, syrk, gemm,
    solve, subtract, solve_row, add_mean, reduce_variance,
]  # fmt: skip


# ---------------------------------------------------------------- the graph
class Model:
    """The tiles that outlive a run, and the orchestration function that submits the tasks."""

    def __init__(self, worker):
        self.worker = worker
        self.leaf = {leaf: worker.register(leaf) for leaf in LEAVES}

    def fill(self, images, targets, held_out, size):
        """Share the data with the workers."""
        self.images = self.share_rows(images, size)
        self.alpha = self.share_rows(targets, size)  # Y before the run, K⁻¹ Y after it
        block = min(size, 128)
        self.held_out = self.share_rows(held_out, block)
        self.mean = self.share_rows(np.zeros((len(held_out), CLASSES)), block)
        self.variance = self.share_rows(np.ones((len(held_out), 1)), block)

    def share_rows(self, matrix, size):
        """Return the matrix as tiles of `size` rows in memory that all workers share."""
        blocks = (matrix[start : start + size] for start in range(0, len(matrix), size))
        return [self.worker.share(np.ascontiguousarray(b.T).view(np.int64)) for b in blocks]

    @staticmethod
    def gather(tiles):
        """Undo `share_rows`."""
        return np.concatenate([one.view(np.float64).T for one in tiles])

    def build(self, orch, args, config):
        """Submit everything: the orchestration function given to `Worker.run`."""

        def submit(leaf, reads=(), updates=(), creates=None, scalar=None):
            task = TaskArgs()
            for one in reads:
                task.add_tensor(one, T.INPUT)
            for one in updates:
                task.add_tensor(one, T.INOUT)
            if creates is not None:  # an OUTPUT without an address gets memory from a ring
                task.add_tensor(ContinuousTensor.make(0, creates[::-1], DataType.INT64), T.OUTPUT)
            if scalar is not None:
                task.add_scalar(scalar)
            orch.submit_sub(self.leaf[leaf], task)
            return None if creates is None else task.tensor(task.tensor_count() - 1)

        k = self.kernel_matrix(submit)
        self.factorise(submit, k)
        self.solve(submit, k)
        for b in range(len(self.held_out)):
            with orch.scope():  # the tiles of one block of predictions are freed when it is done
                self.predict(submit, k, b)

    def kernel_matrix(self, submit):
        """K + σ² I, its lower triangle: tile (i, j) has the rows of tile i, the columns of j."""
        x = self.images
        return {
            (i, j): submit(
                kernel_tile,
                reads=[x[i], x[j]],
                creates=(x[i].shape[1], x[j].shape[1]),
                scalar=NOISE_VARIANCE if i == j else 0.0,
            )
            for j in range(len(x))
            for i in range(j, len(x))
        }

    def factorise(self, submit, k):
        """K := L with K = L Lᵀ, in place. A tile is read only after its last update."""
        rows = range(len(self.images))
        for p in rows:
            submit(potrf, updates=[k[p, p]])
            for i in rows[p + 1 :]:
                submit(trsm, reads=[k[p, p]], updates=[k[i, p]])
            for i in rows[p + 1 :]:
                for j in rows[p + 1 : i]:
                    submit(gemm, reads=[k[i, p], k[j, p]], updates=[k[i, j]])
                submit(syrk, reads=[k[i, p]], updates=[k[i, i]])

    def solve(self, submit, k):
        """α := L⁻ᵀ L⁻¹ α, in place.

        The second pass overwrites what the first one reads, and a task does not wait for those that
        only read. It need not: the second pass begins with the last tile, which the first pass finishes
        only when all of that has been read.
        """
        rows = range(len(self.images))
        y = self.alpha
        for p in rows:
            submit(solve, reads=[k[p, p]], updates=[y[p]], scalar=0)
            for i in rows[p + 1 :]:
                submit(subtract, reads=[k[i, p], y[p]], updates=[y[i]], scalar=0)
        for p in reversed(rows):
            submit(solve, reads=[k[p, p]], updates=[y[p]], scalar=1)
            for i in rows[:p]:
                submit(subtract, reads=[k[p, i], y[p]], updates=[y[i]], scalar=1)

    def predict(self, submit, k, b):
        """Mean and variance of one block of held-out images, over temporary tiles of K* and V."""
        x, x_new = self.images, self.held_out[b]
        v = []
        for i in range(len(x)):
            shape = (x[i].shape[1], x_new.shape[1])
            k_new = submit(cross_tile, reads=[x[i], x_new], creates=shape)
            above = [one for j in range(i) for one in (k[i, j], v[j])]
            v.append(submit(solve_row, reads=[k_new, k[i, i], *above], creates=shape))
            submit(reduce_variance, reads=[v[i]], updates=[self.variance[b]])
            submit(add_mean, reads=[k_new, self.alpha[i]], updates=[self.mean[b]])


# ---------------------------------------------------------------- the same without a graph
def plain_numpy(images, targets, held_out):
    """Return mean and variance from numpy; the triangular solver is scipy's."""
    k = kernel(images, images)
    k.flat[:: len(k) + 1] += NOISE_VARIANCE
    lower = np.linalg.cholesky(k)
    del k
    y = solve_triangular(lower, targets, lower=True, check_finite=False)
    alpha = solve_triangular(lower, y, lower=True, trans=1, check_finite=False)
    k_new = kernel(images, held_out)
    v = solve_triangular(lower, k_new, lower=True, check_finite=False)
    return k_new.T @ alpha, 1 - (v * v).sum(0)[:, None]


# ---------------------------------------------------------------- data
def shifted(images, down, right):
    """Return the images moved by a pixel."""
    moved = np.roll(images.reshape(-1, 8, 8), (down, right), (1, 2))
    if down:
        moved[:, 0 if down > 0 else -1] = 0
    if right:
        moved[:, :, 0 if right > 0 else -1] = 0
    return moved.reshape(-1, 64)


def load(size):
    """Return training images, their labels, held-out images, their labels.

    The training images are first unchanged, then moved by a pixel in eight directions.
    """
    images, labels = load_digits(return_X_y=True)
    train, held_out, train_labels, held_out_labels = train_test_split(
        images / 16, labels, test_size=HELD_OUT, stratify=labels, random_state=0
    )
    train = np.concatenate([shifted(train, *shift) for shift in SHIFTS])[:size]
    return train, np.tile(train_labels, len(SHIFTS))[:size], held_out, held_out_labels


# ---------------------------------------------------------------- on the screen
@contextmanager
def progress_bar(worker, console):
    """Show the progress of the run until told how many tasks it had; only on a terminal."""
    if not console.is_terminal:
        yield lambda tasks: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=36),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    ended = threading.Event()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("running", total=None)

        def follow():
            while not ended.wait(0.05):
                done, submitted = worker.progress()
                progress.update(bar, completed=done, total=submitted or None)

        thread = threading.Thread(target=follow)
        thread.start()

        def finish(tasks):
            ended.set()
            thread.join()
            progress.update(bar, description="done", completed=tasks, total=tasks)

        try:
            yield finish
        finally:
            ended.set()
            thread.join()


def waiting(console, what):
    """Show that the program is busy."""
    return console.status(f"{what} …") if console.is_terminal else nullcontext()


def show(console, rows):
    """Print the closing table: framed on a terminal, bare lines elsewhere."""
    if not console.is_terminal:
        for name, value in rows:
            print(f"{name:<30}{value}" if name else "")
        return
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        if name:
            table.add_row(name, value)
        else:
            table.add_section()
    console.print(table)


# ---------------------------------------------------------------- command line
def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--size",
        type=positive,
        default=5120,
        help=f"training images, at most {MOST_IMAGES} (5120)",
    )
    parser.add_argument("--tile", type=positive, default=256, help="rows of a tile (256)")
    parser.add_argument(
        "--workers",
        type=positive,
        default=len(os.sched_getaffinity(0)),
        help="worker processes (as many as there are cores)",
    )
    parser.add_argument(
        "--endpoints",
        type=positive,
        metavar="NUMBER",
        help="compute on so many endpoints, sessions that share the workers, over TCP",
    )
    parser.add_argument(
        "--trace",
        nargs="?",
        const="gaussian_process.trace",
        metavar="FILE",
        help="trace all workers into FILE (gaussian_process.trace), and write its page",
    )
    options = parser.parse_args()
    if options.size > MOST_IMAGES:
        parser.error(f"--size {options.size} is too large: there are {MOST_IMAGES} images")
    rows = -(-options.size // options.tile)
    if rows > MOST_ROWS:
        parser.error(
            f"--size {options.size} in tiles of {options.tile} makes {rows} rows of tiles, more than "
            f"{MOST_ROWS}: give a --tile of at least {-(-options.size // MOST_ROWS)}"
        )
    return options


# ---------------------------------------------------------------- the program
def on_workers(options, console, images, targets, held_out):
    """Compute with workers of this process; return the timing, mean, variance, and what else to show."""
    with Worker(level=3, num_sub_workers=options.workers, trace=options.trace) as worker:
        model = Model(worker)
        model.fill(images, targets, held_out, options.tile)
        with threadpool_limits(1):  # the workers are forked with one BLAS thread each
            worker.start()
        timing = run(worker, model, console)
        peaks = [f"{peak / 2**20:.1f}" for peak in timing.ring_peak_bytes]
        more = f"rings 0 to {len(peaks) - 1} at their peak", f"{', '.join(peaks)} MiB"
        return timing, model.gather(model.mean), model.gather(model.variance), more


def on_endpoints(options, console, images, targets, held_out):
    """Compute with workers of endpoints, and return the same."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # in the processes that are started
    here = -(-options.workers // options.endpoints)
    fleet = ProcessFleet()
    shape = {"endpoints": options.endpoints, "num_sub_workers": here}
    with Worker(fleet=fleet, trace=options.trace, **shape) as worker:
        model = Model(worker)
        with waiting(console, "starting the endpoints"):
            worker.start()
        model.fill(images, targets, held_out, options.tile)
        timing = run(worker, model, console)
        told = worker.transfers()
        moved = sum(one["served_in"] + one["served_out"] for one in told)
        copies, hits, home = (
            sum(one[f"copies_{name}"] for one in told for name in names)
            for names in (("stored", "fetched"), ("hits",), ("brought",))
        )
        more = (
            "tensors moved",
            f"{copies} to endpoints, {home} home ({moved / 2**20:,.1f} MiB); found there: {hits}",
        )
        return timing, model.gather(model.mean), model.gather(model.variance), more


def run(worker, model, console):
    """Run the graph, and show how far it is."""
    with progress_bar(worker, console) as finish:
        timing = worker.run(model.build)
        finish(timing.tasks)
    return timing


def main():
    options = read_arguments()
    console = Console(highlight=False)
    images, labels, held_out, answers = load(options.size)
    targets = np.where(labels[:, None] == np.arange(CLASSES), 1.0, -1.0)
    rows = -(-len(images) // options.tile)
    console.print(
        f"Gaussian process on {len(images)} images of handwritten digits, {len(held_out)} held out\n"
        f"{rows} × {rows} tiles of {options.tile} × {options.tile}, workers: {options.workers}"
        + (f", endpoints: {options.endpoints}" if options.endpoints else "")
    )

    compute = on_endpoints if options.endpoints else on_workers
    timing, mean, variance, more = compute(options, console, images, targets, held_out)

    seconds = timing.host_wall_ns / 1e9
    with threadpool_limits(options.workers), waiting(console, "the same with plain numpy"):
        start = time.perf_counter()
        numpy_mean, numpy_variance = plain_numpy(images, targets, held_out)
        numpy_seconds = time.perf_counter() - start
    deviation = max(abs(mean - numpy_mean).max(), abs(variance - numpy_variance).max())
    agrees = deviation <= TOLERANCE  # False for a nan, too

    right = (mean.argmax(1) == answers).mean()
    most_frequent = (np.bincount(labels).argmax() == answers).mean()
    show(
        console,
        [
            ("tasks", f"{timing.tasks:,}"),
            ("edges", f"{timing.edges:,}"),
            more,
            ("", ""),
            ("time", f"{seconds:.3g} s"),
            ("plain numpy", f"{numpy_seconds:.3g} s, threads: {options.workers}"),
            ("speed", f"{numpy_seconds / seconds:.2f} × numpy"),
            ("", ""),
            ("deviation from numpy", f"{deviation:.1e} at most, {TOLERANCE:.0e} allowed"),
            ("digits recognised", f"{right:.1%} of those held out"),
            ("always the commonest digit", f"{most_frequent:.1%}"),
        ],
    )
    if options.trace:
        trace = Trace.open(options.trace)
        trace.write_page(f"{options.trace}.html")
        page = f"{os.path.abspath(options.trace)}.html"
        console.print(f"what ran when and why: open {page} in a browser", soft_wrap=True)
    if not agrees:
        print("gaussian_process.py: the result deviates too much from numpy's", file=sys.stderr)
    return 0 if agrees else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
