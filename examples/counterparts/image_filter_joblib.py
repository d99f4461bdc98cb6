"""Remove noise from an image, with joblib."""

import numpy as np
from joblib import Parallel, delayed
from scipy.ndimage import median_filter

SIZE, TILE = 512, 256


def denoise(image, top, left):
    above, before = min(top, 1), min(left, 1)
    tile = image[top - above : top + TILE + 1, left - before : left + TILE + 1]
    return median_filter(tile, 3)[above : above + TILE, before : before + TILE]


def denoised(parallel, image):
    starts = range(0, SIZE, TILE)
    tiles = parallel(delayed(denoise)(image, top, left) for top in starts for left in starts)
    return np.block([tiles[i : i + len(starts)] for i in range(0, len(tiles), len(starts))])


def main():
    image = np.random.default_rng(0).random((SIZE, SIZE))
    with Parallel(n_jobs=-1) as parallel:
        out = denoised(parallel, image)
    assert np.array_equal(out, median_filter(image, 3))
    print(f"deviation from the mean: {image.std():.3f} before, {out.std():.3f} after")


if __name__ == "__main__":
    main()
