"""Layouts in messages: what the documents' formats do not have of a tensor.

A layout is element type, shape and strides. A message has no pickles, so the element type is written as
numpy's files have it.

Rule     REMOTE-TASK-8
"""

from __future__ import annotations

import json
import math
from ast import literal_eval
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr

from ..model.enums import DataType
from ..model.tensor import ContinuousTensor
from ..model.wire import Layout, has_layout, layout_number, row_major, span_of

_MOST_DIMS = 64


@lru_cache(256)
def layout_text(layout: Layout) -> str:
    """Return a layout as it travels; `TypeError` if it has gaps, or elements that cannot be written."""
    dtype, shape, strides = layout
    if not is_whole(layout):
        raise TypeError(
            f"it has shape {shape} and strides {strides}, and an endpoint gets a copy of its memory from "
            "the first byte to the last, which must all be its own: give a contiguous array"
        )
    descr = repr(dtype_to_descr(dtype))
    if dtype.hasobject or _dtype_of(descr) != dtype:
        raise TypeError(f"element type {dtype!r} cannot be written into a message: give its bytes")
    return json.dumps([descr, shape, strides])


@lru_cache(256)
def read_layout(text: str, nbytes: int | None = None) -> Layout:
    """Return the layout of a tensor, of so many bytes if they are given, or raise `ValueError`."""
    try:
        descr, shape, strides = json.loads(text)
        layout = _dtype_of(descr), _numbers(shape), _numbers(strides)
    except Exception as error:
        raise ValueError(f"{text!r:.200} is no layout: {error}") from None
    dtype, sizes, steps = layout
    fits = len(sizes) == len(steps) <= _MOST_DIMS and min(sizes, default=0) >= 0
    if nbytes is None:
        nbytes = size_of(layout)
    if dtype.hasobject or not fits or span_of(layout) != (0, nbytes):
        raise ValueError(f"{text!r:.200} is no layout of {nbytes} bytes")
    return layout


def size_of(layout: Layout) -> int:
    """Return how many bytes the elements of a tensor have."""
    dtype, shape, _ = layout
    return math.prod(shape) * dtype.itemsize


def is_whole(layout: Layout) -> bool:
    """Say whether all bytes that an array spans are its own, and none lies below its first element."""
    return span_of(layout) == (0, size_of(layout))


def copied_layout(layout: Layout) -> Layout:
    """Return the layout of an array's copy: its own, or that of its elements in C order."""
    if is_whole(layout):
        return layout
    dtype, shape, _ = layout
    return dtype, shape, row_major(shape, dtype.itemsize)


def layout_of(layouts: Any, wire: bytes) -> Layout:
    """Return element type, shape and strides of a tensor."""
    if has_layout(wire):
        found: Layout = layouts.read(layout_number(wire))
        return found
    array = ContinuousTensor._from_wire(wire).numpy()
    return array.dtype, array.shape, array.strides


def as_bytes(layout: Layout, nbytes: int) -> ContinuousTensor:
    """Return what stands for a tensor that only a layout describes: the bytes of its elements."""
    size = max(1, layout[0].itemsize)
    return ContinuousTensor(0, (nbytes // size, size), DataType.UINT8)


def _dtype_of(descr: str) -> np.dtype[Any]:
    return descr_to_dtype(literal_eval(descr))


def _numbers(values: Any) -> tuple[int, ...]:
    if not all(type(one) is int and abs(one) < 1 << 62 for one in values):
        raise ValueError(f"{values} are not numbers")
    return tuple(values)
