"""What the ported programs share: arrays that all processes of a program see, and tensors over them."""

import mmap

import numpy as np
from simpler.task_interface import ContinuousTensor, DataType

DTYPES = {"float32": DataType.FLOAT32, "int32": DataType.INT32, "int64": DataType.INT64}


def shared(shape, dtype=np.float32):
    """Return an array of zeros in memory that forked workers share."""
    size = int(np.prod(shape))
    memory = mmap.mmap(-1, size * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype)[:size].reshape(shape)


def tensor_of(array):
    """Return a tensor over an array."""
    return ContinuousTensor.make(array.ctypes.data, array.shape, DTYPES[array.dtype.name])
