"""The documents' enumerations: element types, tags, states.

Rule     FLOW-DATA-1, FLOW-DATA-2, FLOW-DATA-6, FLOW-LAYOUT-1
"""

from __future__ import annotations

import enum
import functools
from typing import Any

import numpy as np

from ..jit import layout as L


class DataType(enum.IntEnum):
    """Element type of a tensor."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    INT16 = 3
    INT8 = 4
    UINT8 = 5
    BFLOAT16 = 6
    INT64 = 7
    UINT64 = 8
    UINT16 = 9
    UINT32 = 10
    BOOL = 11


class TensorArgType(enum.IntEnum):
    """How a task uses a tensor, from which its dependencies follow."""

    INPUT = L.INPUT
    OUTPUT = L.OUTPUT
    INOUT = L.INOUT
    OUTPUT_EXISTING = L.OUTPUT_EXISTING
    NO_DEP = L.NO_DEP


for _tag in TensorArgType:  # Python 3.11 looks members up through a slow descriptor, 3.12 does not
    type.__setattr__(TensorArgType, _tag.name, _tag)


class ArgDirection(enum.IntEnum):
    """Direction of one argument of a chip callable."""

    SCALAR = 0
    IN = 1
    OUT = 2
    INOUT = 3


class WorkerType(enum.IntEnum):
    """The pool a task goes to."""

    NEXT_LEVEL = L.NEXT_LEVEL
    SUB = L.SUB


class TaskState(enum.IntEnum):
    """Where a task is in its life; `jit/slots.py` has the transitions."""

    FREE = L.FREE
    PENDING = L.PENDING
    READY = L.READY
    RUNNING = L.RUNNING
    COMPLETED = L.COMPLETED
    CONSUMED = L.CONSUMED
    FAILED = L.FAILED


class MailboxState(enum.IntEnum):
    """The state of a mailbox: which side acts next."""

    IDLE = L.IDLE
    TASK_READY = L.TASK_READY
    TASK_DONE = L.TASK_DONE
    SHUTDOWN = L.SHUTDOWN
    CONTROL_REQUEST = L.CONTROL_REQUEST
    CONTROL_DONE = L.CONTROL_DONE
    INIT_DONE = L.INIT_DONE


CONTINUOUS_TENSOR_MAX_DIMS = L.CONTINUOUS_TENSOR_MAX_DIMS
MAX_REGISTERED_CALLABLE_IDS = L.MAX_REGISTERED_CALLABLE_IDS
MAILBOX_SIZE = L.MAILBOX_SIZE
MAILBOX_OFF_ERROR_MSG = L.MAILBOX_OFF_ERROR_MSG
MAILBOX_ERROR_MSG_SIZE = L.MAILBOX_ERROR_MSG_SIZE

_FROM_NAME = {kind.name.lower(): kind for kind in DataType}
"""numpy and torch have the same names."""
_TO_NUMPY: dict[DataType, np.dtype[Any]] = {
    kind: np.dtype(name) for name, kind in _FROM_NAME.items() if kind is not DataType.BFLOAT16
}


def get_element_size(dtype: DataType) -> int:
    """Return the bytes of one element."""
    return L.DTYPE_SIZES[DataType(dtype)]


def get_dtype_name(dtype: DataType) -> str:
    """Return the name of an element type, e.g. ``"FLOAT32"``."""
    return DataType(dtype).name


def arg_direction_name(direction: ArgDirection) -> str:
    """Return the name of a direction, e.g. ``"INOUT"``."""
    return ArgDirection(direction).name


def to_dtype(dtype: Any) -> DataType:
    """Return the DataType of a DataType, a numpy dtype, or anything numpy or torch calls a dtype."""
    kind = find_dtype(dtype)
    if kind is None:
        names = ", ".join(sorted(_FROM_NAME))
        raise TypeError(f"dtype {dtype!r} is no DataType; convert to one of {names}")
    return kind


def find_dtype(dtype: Any) -> DataType | None:
    """Return the DataType that something numpy or torch calls a dtype is; None if it is none."""
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        return DataType(dtype)
    return (_found if isinstance(dtype, (type, np.dtype)) else _found.__wrapped__)(dtype)


@functools.lru_cache(4096)
def _found(dtype: Any) -> DataType | None:
    kind = _FROM_NAME.get(_name_of(dtype))
    if kind is None:
        try:
            converted = np.dtype(dtype)
        except TypeError:
            return None
        kind = _FROM_NAME.get(converted.name) if converted.isnative else None
    return kind


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def any_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the numpy dtype of what numpy or torch calls a dtype, or of a DataType."""
    kind = find_dtype(dtype)
    if kind is not None:
        return numpy_dtype(kind)
    try:
        if dtype is None:  # which numpy takes for float64
            raise TypeError
        found = np.dtype(_name_of(dtype) if str(dtype).startswith("torch.") else dtype)
    except TypeError:
        raise TypeError(f"{dtype!r} is no element type: give a DataType or a numpy dtype") from None
    if found.hasobject:
        raise TypeError(
            f"workers cannot read elements of type {found}, Python objects; convert them, as with "
            "np.asarray(array, float) or astype('U')"
        )
    return found


def numpy_dtype(kind: DataType) -> np.dtype[Any]:
    """Return the numpy dtype of an element type; bfloat16 needs the package ml_dtypes."""
    dtype = _TO_NUMPY.get(kind)
    if dtype is None:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "numpy has no bfloat16: install ml_dtypes, or view the memory as UINT16"
            ) from None
        dtype = _TO_NUMPY[kind] = np.dtype(ml_dtypes.bfloat16)
    return dtype
