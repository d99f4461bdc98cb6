"""Cholesky factorisation in tiles: the order of the calls follows from the tiles they share."""

import numpy as np
from scipy.linalg import solve_triangular

import simpler_ref as sr

SIZE, TILE = 512, 128


@sr.task
def factor(a: sr.InOut):
    a[...] = np.linalg.cholesky(a)


@sr.task
def solve(a: sr.InOut, diagonal: sr.In):
    a[...] = solve_triangular(diagonal, a.T, lower=True).T


@sr.task
def subtract(c: sr.InOut, a: sr.In, b: sr.In):
    c -= a @ b.T


def cholesky(w, matrix):
    a = w.tiles(w.share(matrix), (TILE, TILE))
    for k in range(a.grid[0]):
        factor(a[k, k])
        for i in range(k + 1, a.grid[0]):
            solve(a[i, k], a[k, k])
            for j in range(k + 1, i + 1):
                subtract(a[i, j], a[i, k], a[j, k])
    return w.submit(np.tril, a.array).result()  # reads all tiles, so it waits for all calls


def main():
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE))
    matrix = x @ x.T + SIZE * np.eye(SIZE)
    with sr.Worker() as w:
        lower = cholesky(w, matrix)
    assert np.allclose(lower, np.linalg.cholesky(matrix))
    print(f"log of the determinant: {2 * np.log(lower.diagonal()).sum():.3f}")


if __name__ == "__main__":
    main()
