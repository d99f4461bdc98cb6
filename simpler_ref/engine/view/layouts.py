"""Layouts of described tensors: element type, shape and strides of views, each under a number.

Rule     CALL-HAZARD-7
"""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...jit import layout as L
from ...model.wire import Layout, element_words, span_of
from ...system.types import Array

Loops = list[tuple[int, int]]
"""Of each loop, the outermost first: turns, and bytes from one to the next."""

_MOST_LOOPS = 6


def loops_of(shape: Sequence[int], strides: Sequence[int], item: int) -> tuple[int, Loops]:
    """Return the bytes of a run, and the loops that go from run to run; (0, []) if no loops can.

    That is so if elements overlap each other, or if there are more than six loops.
    """
    run, extent = item, item
    loops: Loops = []
    axes = [(abs(step), size) for size, step in zip(shape, strides, strict=True)]
    for step, size in sorted(axis for axis in axes if axis[0] != 0 and axis[1] != 1):
        if step < extent:
            return 0, []
        if step == run and not loops:
            run *= size
        else:
            loops.insert(0, (size, step))
        extent += (size - 1) * step
    return (run, loops) if len(loops) <= _MOST_LOOPS else (0, [])


class Layouts:
    """The layouts of an engine's described tensors.

    The program gives them numbers, on any thread; workers read them.
    """

    def __init__(self, mem: Array) -> None:
        self._mem = mem
        self._start: int = mem.item(L.A_LAYOUTS)
        self._numbers: dict[Layout, int] = {}
        self._read: dict[int, Layout] = {}
        self._traced: dict[str, list[Any]] = {}
        """Those that were forgotten while a trace is taken, which may have them."""
        self._epoch: int = mem.item(L.LAYOUTS_EPOCH)
        self._lock = threading.RLock()
        self._on_reset: Callable[[], Callable[[], None] | None] = lambda: None

    @property
    def epoch(self) -> int:
        """How often layouts were forgotten: a number means the same in one epoch."""
        return int(self._mem.item(L.LAYOUTS_EPOCH))

    @property
    def epoch_address(self) -> int:
        """Address of the word that has the epoch, for native code."""
        return int(self._mem.ctypes.data) + L.WORD * L.LAYOUTS_EPOCH

    def number(self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
        """Return the number of a layout: the first call with it writes its record."""
        with self._lock:
            found = self._numbers.get((dtype, shape, strides))
            if found is None:
                found = self._numbers[dtype, shape, strides] = self._write(dtype, shape, strides)
        return found

    def _write(self, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
        if dtype.hasobject:
            raise TypeError(f"other processes cannot read elements of type {dtype}")
        words = _record(dtype, shape, strides)
        number: int = self._mem.item(L.LAYOUTS_USED)
        if number + len(words) > L.LAYOUTS_CAPACITY:
            raise MemoryError(
                f"there is no room for one more layout: {len(self._numbers)} different combinations of "
                f"element type, shape and strides have taken {number} of {L.LAYOUTS_CAPACITY} words; use "
                "views of fewer different shapes"
            )
        self._mem[self._start + number : self._start + number + len(words)] = words
        self._mem[L.LAYOUTS_USED] = number + len(words)
        return number

    def told(self) -> dict[str, list[Any]]:
        """Return the layouts for a trace: bytes of an element, shape, strides.

        Their keys are numbers: the epoch is in the upper half.
        """
        with self._lock:
            known, epoch = list(self._numbers.items()), self.epoch
            forgotten = self._traced
        return forgotten | {
            str(number | epoch << L.HALF): [dtype.itemsize, list(shape), list(strides)]
            for (dtype, shape, strides), number in known
        }

    def read(self, number: int) -> Layout:
        epoch = self._mem.item(L.LAYOUTS_EPOCH)
        if epoch != self._epoch:
            self._read.clear()
            self._epoch = epoch
        found = self._read.get(number)
        if found is None:
            found = self._read[number] = self._parse(self._start + number)
        return found

    def _parse(self, at: int) -> Layout:
        axes = at + L.LAYOUT_WORDS
        loops = axes + 2 * self._mem.item(at + L.LAYOUT_DIMS)
        kind = loops + 2 * self._mem.item(at + L.LAYOUT_LOOPS)
        size = self._mem.item(kind)
        dtype = pickle.loads(self._mem[kind + 1 : kind + 1 - -size // L.WORD].tobytes()[:size])
        shape, strides = self._mem[axes:loops:2].tolist(), self._mem[axes + 1 : loops : 2].tolist()
        return dtype, tuple(shape), tuple(strides)

    def element(self, number: int) -> tuple[int, ...]:
        """Return the words that stand for the element type of a layout."""
        at = self._start + number
        pairs = self._mem.item(at + L.LAYOUT_DIMS) + self._mem.item(at + L.LAYOUT_LOOPS)
        kind = at + L.LAYOUT_WORDS + 2 * pairs
        return tuple(self._mem[kind : kind + 1 - -self._mem.item(kind) // L.WORD].tolist())

    def reset(self) -> None:
        """Forget all layouts: no task that was submitted before may still run."""
        with self._lock:
            self._traced = self.told() if self._mem.item(L.TRACING) == L.TRACE_ALL else {}
            self._numbers.clear()
            self._mem[L.LAYOUTS_USED] = 0
            self._mem[L.LAYOUTS_EPOCH] += 1
            forget = self._on_reset()
            if forget is not None:
                forget()

    def tell(self, forget: Callable[[], None]) -> None:
        """Call a method whenever all numbers are forgotten, as long as its object is there."""
        self._on_reset = weakref.WeakMethod(forget)


def _record(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    below, extent = span_of((dtype, shape, strides))
    run, loops = loops_of(shape, strides, dtype.itemsize) if extent else (0, [])
    rows, stride = loops[0] if loops else (extent, 1)
    values = {
        L.LAYOUT_EXTENT: extent,
        L.LAYOUT_BELOW: below,
        L.LAYOUT_ITEM: dtype.itemsize,
        L.LAYOUT_DIMS: len(shape),
        L.LAYOUT_RUN: run,
        L.LAYOUT_LOOPS: len(loops),
        L.LAYOUT_ROWS: rows,
        L.LAYOUT_STRIDE: stride,
        L.LAYOUT_WIDTH: extent - (rows - 1) * stride if extent else 0,
    }
    pairs = [*zip(shape, strides, strict=True), *loops]
    words = [values[at] for at in range(L.LAYOUT_WORDS)]
    words += [word for pair in pairs for word in pair]
    return words + element_words(dtype)
