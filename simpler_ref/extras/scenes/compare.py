"""What came out of a scene beside what should have: which elements differ.

Rule     SCENE-GOLDEN-1
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...system.types import Array
from .arguments import SceneArgs, as_array


def deviations(arrays: dict[str, Array], golden: SceneArgs, rtol: float, atol: float) -> list[str]:
    """Return a line for each tensor that differs from the golden one; it names the first wrong element.

    Floats and complex numbers may differ by ``atol + rtol * abs(golden)``, and a NaN is equal to a NaN.
    Others are equal or not.
    """
    lines = []
    for name, got in arrays.items():
        line = _deviation(got, as_array(getattr(golden, name)), rtol, atol)
        if line is not None:
            lines.append(f"{name}: {line}")
    return lines


def _deviation(got: Array, wanted: Array, rtol: float, atol: float) -> str | None:
    if got.shape != wanted.shape:
        return f"the golden tensor has the shape {wanted.shape}, not {got.shape}"
    if got.dtype != wanted.dtype:
        return f"the golden tensor has elements of type {wanted.dtype}, not {got.dtype}"
    wrong = ~np.asarray(_equal(got, wanted, rtol, atol))
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    first = np.unravel_index(int(np.argmax(wrong)), got.shape)
    text = (
        f"{count} of {got.size} elements differ; the first is {_where(first)}: "
        f"{_pair(got, wanted, first)}"
    )
    if got.dtype.kind in "fc":
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(wrong, np.abs(got - wanted), -1.0)
        worst = np.unravel_index(int(np.nanargmax(np.nan_to_num(error, nan=np.inf))), got.shape)
        if worst != first:
            text += f"; the largest difference is at {_where(worst)}: {_pair(got, wanted, worst)}"
        text += f" (rtol={rtol:g}, atol={atol:g})"
    return text


def _equal(got: Array, wanted: Array, rtol: float, atol: float) -> Any:
    if got.dtype.kind in "fc":
        return np.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
    return got == wanted


def _where(index: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(int(one)) for one in index)}]"


def _pair(got: Array, wanted: Array, index: tuple[Any, ...]) -> str:
    return f"got {got[index]}, not {wanted[index]}"


__all__ = ["deviations"]
