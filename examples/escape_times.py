"""Draw the Mandelbrot set in the terminal: compiled tasks, each of which fills one tile of an image."""

import numpy as np

import simpler_ref as sr

ROWS, COLUMNS, STEPS = 48, 96, 200
LEFT, TOP, SIZE = -2.1, -1.2, 2.4


@sr.task(compiled=True)
def escape(tile: sr.Out, left: float, top: float, width: float, height: float):
    rows, columns = tile.shape
    for i in range(rows):
        for j in range(columns):
            c = complex(left + width * j / columns, top + height * i / rows)
            z, step = 0j, 0
            while step < STEPS and z.real * z.real + z.imag * z.imag <= 4:
                z = z * z + c
                step += 1
            tile[i, j] = step


def image(w, tile=(16, 16)):
    steps = w.zeros((ROWS, COLUMNS), np.int64)
    tiles = w.tiles(steps, tile)
    down, across = tiles.grid
    width, height = 1.5 * SIZE / across, SIZE / down
    for i in range(down):
        for j in range(across):
            escape(tiles[i, j], LEFT + j * width, TOP + i * height, width, height)
    return steps


def expected():
    """Compute the same with numpy, for all points at once."""
    x = LEFT + 1.5 * SIZE * np.arange(COLUMNS) / COLUMNS
    y = TOP + SIZE * np.arange(ROWS) / ROWS
    c = x + 1j * y[:, None]
    z, steps = np.zeros_like(c), np.zeros(c.shape, np.int64)
    for _ in range(STEPS):
        inside = z.real**2 + z.imag**2 <= 4
        z[inside] = z[inside] ** 2 + c[inside]
        steps += inside
    return steps


def main():
    with sr.Worker() as w:
        steps = image(w)
    differing = int((steps != expected()).sum())
    assert differing <= steps.size // 100, differing  # points at the very edge: rounding differs
    shades = np.array(list(" .:-=+*#%@"))
    for row in shades[np.minimum(steps, 36) // 4]:
        print("".join(row).rstrip())


if __name__ == "__main__":
    main()
