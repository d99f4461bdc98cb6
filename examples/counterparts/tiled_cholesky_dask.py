"""Cholesky factorisation in tiles, with dask."""

import numpy as np
from dask import compute, delayed
from scipy.linalg import solve_triangular

SIZE, TILE = 512, 128


@delayed
def factor(a):
    return np.linalg.cholesky(a)


@delayed
def solve(a, diagonal):
    return solve_triangular(diagonal, a.T, lower=True).T


@delayed
def subtract(c, a, b):
    return c - a @ b.T


def cholesky(matrix):
    n = len(matrix) // TILE
    a = [[delayed(tile) for tile in np.hsplit(row, n)] for row in np.vsplit(matrix, n)]
    for k in range(n):
        a[k][k] = factor(a[k][k])
        for i in range(k + 1, n):
            a[i][k] = solve(a[i][k], a[k][k])
            for j in range(k + 1, i + 1):
                a[i][j] = subtract(a[i][j], a[i][k], a[j][k])
    return np.tril(np.block(list(compute(*a))))


def main():
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE))
    matrix = x @ x.T + SIZE * np.eye(SIZE)
    lower = cholesky(matrix)
    assert np.allclose(lower, np.linalg.cholesky(matrix))
    print(f"log of the determinant: {2 * np.log(lower.diagonal()).sum():.3f}")


if __name__ == "__main__":
    main()
