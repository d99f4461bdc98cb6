"""The graphs that are timed, for peers whose tasks are Python functions that return a value.

A task calls ``function(*constants, *values)``, the values being what its producers returned. The same
graphs stand in ``native/problem.hpp`` for the peers in C++, and in ``run_simpler_ref.py``, where tasks
write shared memory instead of returning values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MASK = (1 << 31) - 1


# ---------------------------------------------------------------- what tasks do
def spin(spins: int) -> None:
    """Keep the interpreter busy for a fixed amount of work."""
    for _ in range(spins):
        pass


def seconds_per_spin() -> float:
    """Return what one round of `spin` takes when nobody disturbs it."""
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        spin(2000)
        best = min(best, time.perf_counter() - start)
    return best / 2000


def identity(value: int) -> int:
    return value


def increment(value: int) -> int:
    return value + 1


def neighbours(spins: int, left: int, middle: int, right: int) -> int:
    """Work for a while, then combine three neighbours."""
    for _ in range(spins):
        pass
    return (left + 3 * middle + right + 1) & MASK


def mix(number: int, *values: int) -> int:
    """Combine a task's number with what its producers returned."""
    return (number + sum(values)) & MASK


def add(left: int, right: int) -> int:
    return left + right


def total(array: np.ndarray) -> float:
    return float(array.sum())


def filled(count: int, value: float) -> np.ndarray:
    return np.full(count, value)


def potrf(tile: np.ndarray) -> np.ndarray:
    from scipy.linalg import lapack

    lower, info = lapack.dpotrf(tile, lower=1)
    if info:
        raise ValueError(f"row {info} of a tile is not positive definite")
    return lower


def trsm(tile: np.ndarray, diagonal: np.ndarray) -> np.ndarray:
    from scipy.linalg import blas

    return blas.dtrsm(1.0, diagonal, tile, side=1, lower=1, trans_a=1)


def update(tile: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``tile - left @ right.T``."""
    from scipy.linalg import blas

    return blas.dgemm(-1.0, left, right, beta=1.0, c=tile, trans_b=1)


# ---------------------------------------------------------------- graphs
@dataclass
class Dag:
    """Tasks in an order in which they could run one after another."""

    functions: list[Callable[..., Any]]
    constants: list[tuple[Any, ...]]
    producers: list[tuple[int, ...]]
    sinks: list[int]
    """Whose values are looked at in the end."""
    agrees: Callable[[list[Any]], bool]
    """Says whether the values of the sinks are right."""

    def __len__(self) -> int:
        return len(self.functions)

    def levels(self) -> list[list[int]]:
        """Return the tasks by the length of the longest way to them."""
        depth: list[int] = []
        levels: list[list[int]] = []
        for task, producers in enumerate(self.producers):
            level = max((depth[producer] + 1 for producer in producers), default=0)
            depth.append(level)
            if level == len(levels):
                levels.append([])
            levels[level].append(task)
        return levels

    def evaluate(self) -> list[Any]:
        """Return the values of the sinks, computed here, one task after another."""
        values: list[Any] = []
        for function, constants, producers in zip(
            self.functions, self.constants, self.producers, strict=True
        ):
            values.append(function(*constants, *[values[one] for one in producers]))
        return [values[sink] for sink in self.sinks]


def _dag(
    functions: Sequence[Callable[..., Any]],
    constants: Sequence[tuple[Any, ...]],
    producers: Sequence[tuple[int, ...]],
    sinks: Sequence[int],
    expected: list[Any] | None = None,
) -> Dag:
    dag = Dag(list(functions), list(constants), list(producers), list(sinks), lambda values: True)
    right = dag.evaluate() if expected is None else expected
    dag.agrees = lambda values: values == right
    return dag


def independent(n: int) -> Dag:
    """Return tasks that have nothing to do with each other; each returns its number."""
    return _dag([identity] * n, [(i,) for i in range(n)], [()] * n, range(n), list(range(n)))


def chain(n: int) -> Dag:
    """Return tasks that each add one to what the one before returned."""
    constants: list[tuple[Any, ...]] = [(0,), *[()] * (n - 1)]
    producers: list[tuple[int, ...]] = [(), *((i - 1,) for i in range(1, n))]
    return _dag([increment] * n, constants, producers, [n - 1], [n])


def stencil(width: int, steps: int, spins: int) -> Dag:
    """Return rows of tasks, each combining three neighbours of the row before, in a ring."""
    constants: list[tuple[Any, ...]] = []
    producers: list[tuple[int, ...]] = []
    for step in range(steps):
        for i in range(width):
            around = ((i - 1) % width, i, (i + 1) % width)
            if step:
                producers.append(tuple((step - 1) * width + one for one in around))
                constants.append((spins,))
            else:
                producers.append(())
                constants.append((spins, *around))
    expected = stencil_values(width, steps)
    tasks = width * steps
    return _dag([neighbours] * tasks, constants, producers, range(tasks - width, tasks), expected)


def stencil_values(width: int, steps: int) -> list[int]:
    """Return the last row of a stencil."""
    row = list(range(width))
    for _ in range(steps):
        row = [(row[i - 1] + 3 * row[i] + row[(i + 1) % width] + 1) & MASK for i in range(width)]
    return row


def sums_of_two(n: int) -> list[int]:
    """Return what tasks compute that each add one to the sum of what the two before have computed."""
    values = [0, 0]
    for _ in range(n):
        values.append((values[-1] + values[-2] + 1) & MASK)
    return values[2:]


def tree(leaves: int) -> Dag:
    """Return a sum over `leaves` tasks by pairs; `leaves` is a power of two."""
    producers: list[tuple[int, ...]] = [()] * leaves
    producers += [(2 * k, 2 * k + 1) for k in range(leaves - 1)]
    functions = [identity] * leaves + [add] * (leaves - 1)
    constants = [(i,) for i in range(leaves)] + [()] * (leaves - 1)
    expected = leaves * (leaves - 1) // 2
    return _dag(functions, constants, producers, [len(producers) - 1], [expected])


def read_graph(path: str) -> np.ndarray:
    """Return the producers of each task of a random graph, -1 where there are fewer than three."""
    return np.fromfile(path, np.int32).reshape(-1, 3)


def random_values(graph: np.ndarray) -> list[int]:
    """Return what each task of a random graph computes."""
    values: list[int] = []
    for i, row in enumerate(graph.tolist()):
        values.append(mix(i, *[values[one] for one in row if one >= 0]))
    return values


def random(path: str) -> Dag:
    """Return a random graph from its file: up to three producers among the last thousand tasks."""
    producers = [tuple(one for one in row if one >= 0) for row in read_graph(path).tolist()]
    n = len(producers)
    used = {one for several in producers for one in several}
    sinks = [i for i in range(n) if i not in used]
    return _dag([mix] * n, [(i,) for i in range(n)], producers, sinks)


def send(mib: int) -> Dag:
    """Return one task that adds up an array the caller has."""
    array = np.ones(mib << 17)
    return _dag([total], [(array,)], [()], [0], [float(len(array))])


def receive(mib: int) -> Dag:
    """Return one task whose array the caller gets."""
    dag = Dag([filled], [(mib << 17, 2.0)], [()], [0], lambda values: True)
    dag.agrees = lambda values: values[0].shape == (mib << 17,) and bool((values[0] == 2.0).all())
    return dag


# ---------------------------------------------------------------- tiled Cholesky
TOLERANCE = 1e-9


def matrix(n: int) -> np.ndarray:
    """Return a symmetric, positive definite matrix."""
    i = np.arange(n)
    return np.exp(-np.abs(i[:, None] - i) / 64.0) + 0.1 * np.eye(n)


def tiles_of(n: int, tile: int) -> dict[tuple[int, int], np.ndarray]:
    """Return the tiles of the lower half, columns contiguous."""
    whole = matrix(n)
    rows = n // tile
    return {
        (i, j): np.asfortranarray(whole[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile])
        for i in range(rows)
        for j in range(i + 1)
    }


def deviation(tiles: dict[tuple[int, int], np.ndarray], n: int, tile: int) -> float:
    """Return by how much a factorisation in tiles differs from numpy's."""
    lower = np.linalg.cholesky(matrix(n))
    worst = 0.0
    for (i, j), part in tiles.items():
        right = lower[i * tile : (i + 1) * tile, j * tile : (j + 1) * tile]
        mine = np.tril(part) if i == j else part
        worst = max(worst, float(np.abs(mine - right).max()))
    return worst


def cholesky_steps(rows: int) -> list[tuple[Callable[..., Any], tuple[int, int], list[Any]]]:
    """Return the steps in order: what is done, the tile it updates, and the tiles it reads."""
    steps: list[tuple[Callable[..., Any], tuple[int, int], list[Any]]] = []
    for k in range(rows):
        steps.append((potrf, (k, k), []))
        steps += [(trsm, (i, k), [(k, k)]) for i in range(k + 1, rows)]
        steps += [
            (update, (i, j), [(i, k), (j, k)])
            for i in range(k + 1, rows)
            for j in range(k + 1, i + 1)
        ]
    return steps


def cholesky(n: int, tile: int) -> Dag:
    """Return the tiled Cholesky factorisation of `matrix(n)`."""
    tiles = tiles_of(n, tile)
    last: dict[tuple[int, int], int] = {}
    functions, constants, producers = [], [], []
    for function, written, read in cholesky_steps(n // tile):
        functions.append(function)
        if written in last:
            constants.append(())
            producers.append((last[written], *(last[one] for one in read)))
        else:
            constants.append((tiles[written],))
            producers.append(tuple(last[one] for one in read))
        last[written] = len(functions) - 1
    places = list(last)
    dag = Dag(functions, constants, producers, [last[place] for place in places], lambda v: True)
    dag.agrees = lambda values: (
        deviation(dict(zip(places, values, strict=True)), n, tile) < TOLERANCE
    )
    return dag


GRAPHS: dict[str, Callable[..., Dag]] = {
    "independent": independent,
    "chain": chain,
    "stencil": stencil,
    "tree": tree,
    "random": random,
    "send": send,
    "receive": receive,
    "cholesky": cholesky,
}
