"""The arguments of many tasks in one call: columns, each with one tensor or scalar of every task.

A column becomes a few numpy operations, whatever the number of tasks. What comes out is a program: one
submit to be repeated, and a table with the words that differ from task to task; see `jit/program.py`.

Rule     ORCH-MISUSE-3, SPEED-MANY-1, SPEED-MANY-2, SPEED-MANY-5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..jit import layout as L
from ..jit.program import repeated
from ..model.arguments import check_tag, require_reads
from ..model.enums import TensorArgType, to_dtype
from ..model.scalars import Bound, BoundWord, scalar_wire
from ..model.tensor import ContinuousTensor, DescribedTensor
from ..model.visibility import current, keep_alive, require_visible, require_wires_visible
from ..model.wire import RemoteWire
from ..system.types import Array
from ..system.values import whole

_KIND = L.TENSOR_KIND - 1
"""Among the words of a tensor that follow its address."""
_MOST_TASKS = (1 << 63) - 1


class Rows(NamedTuple):
    """Rows of an array in any order, each as often as wanted: a column for `submit_sub_many`."""

    array: Array
    """An array in shared memory; its rows must be contiguous."""
    index: Any
    """For each task the number of the row that is its tensor, from 0; an array of integers, or a list."""


class _Tensors(NamedTuple):
    """One tensor of every task, as on the wire: a number or row for all, or one for each."""

    data: Any
    """Addresses: an int64, or (tasks,) of them."""
    rest: Array
    """Shape, dtype, tag: the other four words, (4,) or (tasks, 4)."""
    place: Any = None
    """Where one in an endpoint's memory is: a `RemoteWire.place`; None: here."""

    def wire(self, task: int) -> bytes:
        raw = _row(self.data, task) + _row(self.rest, task, 1)
        return raw if self.place is None else RemoteWire(raw, self.place)


class _Scalars(NamedTuple):
    """One scalar of every task: a number for all, or one for each."""

    bits: Any
    """An int64, or (tasks,) of them."""
    kind: Any
    """What they were added as: an int64, or (tasks,) of them."""
    bound: BoundWord | None = None
    """The word of one number for all, to which a replay may give another value."""


class Batch:
    """Many tasks with the same number of tensors and of scalars, checked; nothing is submitted yet.

    The parameters are those of `Orchestrator.submit_next_level_many`.
    """

    def __init__(
        self,
        tensors: Any,
        tags: Any,
        scalars: Any = None,
        count: int | None = None,
        workers: Any = -1,
    ) -> None:
        tensors, tags = _listed("tensors", tensors), _listed("tags", tags)
        if len(tags) != len(tensors):
            raise ValueError(f"tags has {len(tags)} entries for {len(tensors)} columns of tensors")
        self.size = -1  # the number of tasks, on which all columns agree
        self._who = ""
        if count is not None:
            self._agree("count", whole("count", count, 0, _MOST_TASKS))
        self.tensors = [
            self._tagged_column(f"[{j}]", column, tag)
            for j, (column, tag) in enumerate(zip(tensors, tags, strict=True))
        ]
        self.scalars = self._scalar_columns(scalars)
        self.workers = self._worker_column(workers)
        """The worker each task is for, −1 for any; one, or one for each."""
        if self.size < 0:
            raise ValueError("no column says how many tasks there are: give count=…")

    def _agree(self, name: str, count: int) -> None:
        if self.size < 0:
            self.size, self._who = count, name
        elif count != self.size:
            raise ValueError(
                f"{name} has an entry for each of {count} tasks, {self._who} for each of {self.size}"
            )

    def in_child_memory(self) -> Any:
        """Say which tasks have a tensor in a next-level worker's memory: a bool, or one for each."""
        found: Any = np.False_
        for column in self.tensors:
            found = found | (column.rest[..., _KIND] & L.TENSOR_CHILD_MASK != 0)
        return found

    def program(self, word: Any) -> tuple[Array, Array]:
        """Return a program that submits all tasks, and its variables, (tasks, words that differ).

        The first variables of a row are the addresses of the task's tensors. `word` is the callable word,
        or one for each task.
        """
        tensors, scalars = ([one[:2] for one in found] for found in (self.tensors, self.scalars))
        return repeated(self.size, word, tensors, scalars)

    def rows(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the tensors and the scalars of each task, as a submit takes them."""
        for task in range(self.size):
            tensors = [one.wire(task) for one in self.tensors]
            scalars = [
                one.bound or _row(one.bits, task) + _row(one.kind, task) for one in self.scalars
            ]
            yield tensors, scalars

    # ------------------------------------------------------------ one column
    def _tensor_column(self, name: str, column: Any) -> _Tensors:
        """Read a column of tensors: rows of an array, or one tensor for all."""
        if isinstance(column, DescribedTensor):
            raise TypeError(
                f"{name}: {column!r} is for submit_sub and submit_next_level: many at once are "
                "contiguous ones of DataType"
            )
        if isinstance(column, ContinuousTensor):
            if current.spawned:
                require_wires_visible([column._wire])
            words = np.frombuffer(column._wire, np.int64)
            return _Tensors(words[0], words[1:].copy(), getattr(column._wire, "place", None))
        if isinstance(column, np.ndarray):
            if column.ndim == 0:
                raise ValueError(
                    f"{name} has no axis of tasks; for one tensor for all of them give make_tensor(array)"
                )
            return self._rows_of(name, column, np.arange(len(column)))
        if isinstance(column, Rows):
            return self._rows_of(name, column.array, _row_numbers(name, *column))
        raise TypeError(
            f"{name} is a {type(column).__name__}; give an array with a row for each task, Rows, or one "
            "ContinuousTensor for all; tasks whose tensors are no rows of one array are submitted one by "
            "one"
        )

    def _rows_of(self, name: str, array: Array, index: Array) -> _Tensors:
        """Read rows of an array, one for each task; their numbers in `index` become their addresses."""
        self._agree(name, len(index))
        if not array[:1].flags.c_contiguous:
            raise ValueError(
                f"{name}: the tensors of its tasks, of shape {array.shape[1:]} and strides "
                f"{array.strides[1:]}, are not contiguous; pass a copy whose rows are, "
                "Worker.share(np.ascontiguousarray(array))"
            )
        try:
            tensor = ContinuousTensor(array.ctypes.data, array.shape[1:], to_dtype(array.dtype))
            index *= array.strides[0]
            index += tensor.data
            if len(index):
                start, end = int(index.min()), int(index.max()) + tensor.nbytes()
                require_visible(start, end - start)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        keep_alive(array)
        return _Tensors(index, np.frombuffer(tensor._wire, np.int64)[1:].copy())

    def _tagged_column(self, place: str, column: Any, tag: Any) -> _Tensors:
        """Read a column of tensors with its tags; refuse read-only arrays that tasks write."""
        name = f"tensors{place}"
        read = self._tensor_column(name, column)
        tags = self._tag_column(f"tags{place}", tag)
        array = column.array if isinstance(column, Rows) else column
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            require_reads(array, tags, name)
        rest = read.rest
        if np.ndim(tags) and rest.ndim == 1:
            rest = np.tile(rest, (len(tags), 1))
        rest[..., _KIND] |= tags << L.TENSOR_TAG_SHIFT
        return read._replace(rest=rest)

    def _tag_column(self, name: str, tag: Any) -> Any:
        """Read the tag of a column: one for all tasks, or one for each."""
        if not isinstance(tag, (list, tuple, np.ndarray)):
            return check_tag(tag)
        self._agree(name, len(tag))
        numbers = np.asarray(tag, np.int64)
        for wrong in numbers[(numbers < 0) | (numbers >= len(TensorArgType))][:1].tolist():
            check_tag(wrong)
        return numbers

    def _scalar_columns(self, scalars: Any) -> list[_Scalars]:
        """Read the scalars: an array (tasks, scalars), or a list of columns."""
        if scalars is None:
            return []
        if isinstance(scalars, np.ndarray):
            if scalars.ndim != 2:
                raise ValueError(
                    f"scalars has shape {scalars.shape}; give (tasks, scalars), or a list of columns"
                )
            self._agree("scalars", len(scalars))
            return [_words_of("scalars", column) for column in scalars.T]
        return [
            self._scalar_column(f"scalars[{j}]", column)
            for j, column in enumerate(_listed("scalars", scalars))
        ]

    def _scalar_column(self, name: str, column: Any) -> _Scalars:
        if isinstance(column, np.ndarray) and column.ndim:
            if column.ndim != 1:
                raise ValueError(
                    f"{name} has shape {column.shape}; a column has one number for each task"
                )
            self._agree(name, len(column))
            return _words_of(name, column)
        try:
            bits, kind = np.frombuffer(scalar_wire(column), np.int64)
        except (TypeError, OverflowError) as error:
            raise type(error)(
                f"{name}: {error}; a column is one number for all tasks, or an array"
            ) from None
        bound = column.word if isinstance(column, Bound) else None
        return _Scalars(bits, kind, bound)

    def _worker_column(self, workers: Any) -> Any:
        if not isinstance(workers, (list, tuple, np.ndarray)):
            return workers
        self._agree("workers", len(workers))
        chosen = np.asarray(workers)
        if chosen.ndim != 1 or (chosen.dtype.kind not in "iu" and len(chosen)):
            raise ValueError("workers must be a number, or one for each task")
        if chosen.dtype == np.uint64 and (chosen >> 63).any():
            raise ValueError(f"workers names {chosen.max()}, which is no worker")
        return chosen.astype(np.int64)


def _row(column: Any, task: int, ndim: int = 0) -> bytes:
    found = np.asarray(column, np.int64)
    return (found[task] if found.ndim > ndim else found).tobytes()


def _listed(name: str, columns: Any) -> Sequence[Any]:
    if not isinstance(columns, (list, tuple)):
        raise TypeError(
            f"{name} must be a list with an entry for each column, not {type(columns).__name__}; "
            f"for one column write {name}=[…]"
        )
    return columns


def _row_numbers(name: str, array: Any, index: Any) -> Array:
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        what = "one without axes" if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{name}: Rows takes an array with an axis of rows, not {what}")
    try:
        numbers = np.asarray(index)
    except ValueError as error:  # lists of several lengths
        raise TypeError(f"{name}: the index of Rows is no array of integers: {error}") from None
    if numbers.ndim != 1 or (numbers.dtype.kind not in "iu" and len(numbers)):
        raise TypeError(
            f"{name}: the index of Rows has shape {numbers.shape} and dtype {numbers.dtype}; "
            "give one integer for each task"
        )
    outside = numbers[(numbers < 0) | (numbers >= len(array))]
    if len(outside):
        raise ValueError(
            f"{name}: the index of Rows names row {outside[0]}, the array has {len(array)} rows, "
            "counted from 0"
        )
    return numbers.astype(np.int64)


def _words_of(name: str, numbers: Array) -> _Scalars:
    """Return numbers as the 64 bits that travel and their kind, by their dtype; see `scalar_wire`."""
    kind, size = numbers.dtype.kind, numbers.dtype.itemsize
    if kind == "u":
        bits = np.ascontiguousarray(numbers, np.uint64).view(np.int64)
        small = bits >= 0
        return _Scalars(bits, L.SIGNED if small.all() else np.where(small, L.SIGNED, L.UNSIGNED))
    if kind in "bi":
        return _Scalars(numbers.astype(np.int64, copy=False), L.SIGNED)
    if kind == "f" and size in (2, 8):
        return _Scalars(np.ascontiguousarray(numbers, np.float64).view(np.int64), L.FLOAT64)
    if kind == "f" and size == 4:
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32).astype(np.int64)
        return _Scalars(bits, L.FLOAT32)
    raise TypeError(
        f"{name}: dtype {numbers.dtype} cannot be passed as scalars; convert to float64, float32 or "
        "an integer type"
    )
