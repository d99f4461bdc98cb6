"""A recorded tiled Cholesky at two endpoints of this machine, and on two workers of this process.

The tiles are made by tasks, and stay where they are: what moves, one endpoint fetches from the other.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
from conftest import Round
from scipy.linalg import blas, lapack

from simpler_ref import (
    ContinuousTensor,
    DataType,
    RemoteCallable,
    RemoteWorkerSpec,
    TaskArgs,
    Worker,
)
from simpler_ref import TensorArgType as T

SIZE, TILE = 2048, 128
ROWS = range(SIZE // TILE)
FIRST = 12
"""Replays before those that count: in the first ones, placements are tried."""
TOLERANCE = 1e-3


# ---------------------------------------------------------------- what the workers run
@functools.cache
def matrix() -> np.ndarray:
    """Return a symmetric, positive definite matrix."""
    i = np.arange(SIZE)
    return np.exp(-np.abs(i[:, None] - i) / 64.0).astype(np.float32) + 0.1 * np.eye(
        SIZE, dtype=np.float32
    )


@functools.cache
def part(i: int, j: int) -> np.ndarray:
    """Return a tile of the matrix, its columns contiguous."""
    rows, columns = (slice(k * TILE, (k + 1) * TILE) for k in (i, j))
    return np.asfortranarray(matrix()[rows, columns])


def tile_of(args: Any, i: int) -> np.ndarray:
    """Return an argument as a tile, its columns contiguous."""
    return args.tensor(i).numpy().T


def make(args: Any) -> None:
    """Write a tile of the matrix."""
    tile_of(args, 0)[...] = part(args.scalar(0), args.scalar(1))


def potrf(args: Any) -> None:
    """A := L with A = L Lᵀ."""
    _, info = lapack.spotrf(tile_of(args, 0), lower=1, overwrite_a=1)
    if info:
        raise ValueError(f"row {info} of a tile is not positive definite")


def trsm(args: Any) -> None:
    """A := A L⁻ᵀ."""
    lower, a = (tile_of(args, i) for i in range(2))
    blas.strsm(1.0, lower, a, side=1, lower=1, trans_a=1, overwrite_b=1)


def update(args: Any) -> None:
    """C := C − A Bᵀ."""
    *reads, c = (tile_of(args, i) for i in range(args.tensor_count()))
    blas.sgemm(-1.0, reads[0], reads[-1], beta=1.0, c=c, trans_b=1, overwrite_c=1)


def keep(args: Any) -> None:
    """Have a tile where the program sees it."""
    args.tensor(1).numpy()[...] = args.tensor(0).numpy()


FUNCTIONS = (make, potrf, trsm, update, keep)
for _name in [one.__name__ for one in FUNCTIONS]:
    globals()[f"{_name}_there"] = globals()[_name]  # an endpoint is told of a function by its name

Handle = Callable[[Callable[..., None], int], Any]


# ---------------------------------------------------------------- the graph
def factorise(handle: Handle, result: np.ndarray) -> Callable[..., None]:
    """Return the orchestration function; `handle` gives the callable of a function for a column."""

    def orchestrate(orch: Any, args: Any, config: Any) -> None:
        tile: dict[tuple[int, int], ContinuousTensor] = {}

        def submit(function: Callable[..., None], *reads: tuple[int, int], to: tuple[int, int]):
            task = TaskArgs()
            for one in reads:
                task.add_tensor(tile[one], T.INPUT)
            task.add_tensor(tile[to], T.INOUT)
            orch.submit_sub(handle(function, to[1]), task)

        for j in ROWS:
            for i in ROWS[j:]:
                task = TaskArgs()
                task.add_tensor(ContinuousTensor(0, (TILE, TILE), DataType.FLOAT32), T.OUTPUT)
                task.add_scalar(i)
                task.add_scalar(j)
                orch.submit_sub(handle(make, j), task)
                tile[i, j] = task.tensor(0)
        for k in ROWS:
            submit(potrf, to=(k, k))
            for i in ROWS[k + 1 :]:
                submit(trsm, (k, k), to=(i, k))
            for i in ROWS[k + 1 :]:
                for j in ROWS[k + 1 : i + 1]:
                    submit(update, *dict.fromkeys([(i, k), (j, k)]), to=(i, j))
        last = TaskArgs()
        last.add_tensor(tile[ROWS[-1], ROWS[-1]], T.INPUT)
        last.add_tensor(result, T.OUTPUT_EXISTING)
        orch.submit_sub(handle(keep, ROWS[-1]), last)

    return orchestrate


@contextmanager
def here() -> Iterator[tuple[Worker, Handle]]:
    """Give a Worker of this process, and its callables."""
    with Worker(3, num_sub_workers=2, pin=True) as worker:
        handles = {one: worker.register(one) for one in FUNCTIONS}
        yield worker, lambda function, _column: handles[function]


@contextmanager
def there(secure: bool) -> Iterator[tuple[Worker, Handle]]:
    """Give a Worker with two endpoints, and its callables: columns go to them in turn."""
    spec = RemoteWorkerSpec(num_sub_workers=1, modules=[__name__], secure=secure)
    with Worker(fleet=spec, endpoints=2, pin=True) as worker:
        handles = {
            (one, endpoint): worker.register(
                RemoteCallable(f"{__name__}:{one.__name__}{suffix}"),
                workers=[endpoint],
                inner=True,
            )
            for one in FUNCTIONS
            for endpoint, suffix in enumerate(("", "_there"))
        }
        yield worker, lambda function, column: handles[function, column % 2]


def replays(worker: Worker, handle: Handle) -> Round:
    """Record the graph, and return what replays it, after some replays; the result is looked at."""
    result = worker.share(np.zeros((TILE, TILE), np.float32))
    graph = worker.record(factorise(handle, result))
    right = np.linalg.cholesky(matrix())[-TILE:, -TILE:]

    def one_round() -> float:
        result[:] = 0
        start = time.perf_counter()
        graph.run()
        passed = time.perf_counter() - start
        assert np.abs(np.tril(result.T) - right).max() < TOLERANCE
        return passed

    for _ in range(FIRST):
        one_round()
    return one_round


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Leave out that endpoints in the open are open: they are here only."""
    with caplog.at_level(logging.ERROR, "simpler_ref"):
        yield


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="two workers need two cores")
def test_a_cholesky_at_two_endpoints(record):
    with ExitStack() as stack:
        rounds = {
            name: (replays(*stack.enter_context(workers)), 1)
            for name, workers in {
                "cholesky": here(),
                "far_cholesky": there(False),
                "far_cholesky_curve": there(True),
            }.items()
        }
        record(
            rounds,
            rounds=60,
            ratios={
                "spread_cholesky": ("far_cholesky", "cholesky"),
                "spread_cholesky_curve": ("far_cholesky_curve", "cholesky"),
            },
        )
