"""Remove noise from an image: one call for each tile, which sees a margin of its neighbours."""

import numpy as np
from scipy.ndimage import median_filter

import simpler_ref as sr

SIZE, TILE = 512, 256


@sr.task
def denoise(out: sr.Out, tile: sr.In, inner):
    out[...] = median_filter(tile, 3)[inner]


def denoised(w, image):
    out = w.zeros_like(image)
    tiles, outs = w.tiles(w.share(image), (TILE, TILE), halo=1), w.tiles(out, (TILE, TILE))
    list(w.map(denoise, outs, tiles, tiles.inners()))
    return out


def main():
    image = np.random.default_rng(0).random((SIZE, SIZE))
    with sr.Worker() as w:
        out = denoised(w, image)
    assert np.array_equal(out, median_filter(image, 3))
    print(f"deviation from the mean: {image.std():.3f} before, {out.std():.3f} after")


if __name__ == "__main__":
    main()
