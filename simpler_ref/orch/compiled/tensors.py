"""`ContinuousTensor` in compiled code."""

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic, overload, overload_attribute, overload_method

from ...jit import layout as L
from ...jit.leaves import pointer
from ...model.enums import DataType, to_dtype
from ...model.tensor import END_OF_ADDRESSES, FIRST_ADDRESS, ContinuousTensor
from . import machine as M
from .kinds import TensorType, complaint, tensor_maker
from .machine import FIVE, INT, ask, ask_about, helper, part

DTYPES = len(DataType)
HALF = L.HALF  # a word of a shape has two dimensions
DIM_LIMIT = 1 << HALF
DTYPE_MASK = L.TENSOR_DTYPE_MASK
MAX_DIMS = L.CONTINUOUS_TENSOR_MAX_DIMS


# ---------------------------------------------------------------- shapes and dtypes
def require_dims(ndim):
    """Refuse to compile a tensor of too many dimensions."""
    if ndim > MAX_DIMS:
        raise complaint(
            f"a tensor has at most {MAX_DIMS} dimensions, this one has {ndim}; reshape it"
        )


def dims_of(shape):
    """Return the number of dimensions of a shape's type, or say what a shape must be."""
    if isinstance(shape, types.Integer):
        return 1
    if isinstance(shape, types.BaseTuple) and all(isinstance(d, types.Integer) for d in shape):
        require_dims(len(shape))
        return len(shape)
    raise complaint(f"a shape must be a tuple of integers here, not {shape}")


def five(shape):
    """Return a shape, or strides, padded to five integers."""


@overload(five)
def _five(shape):
    zeros = (0,) * (MAX_DIMS - dims_of(shape))
    if isinstance(shape, types.Integer):
        return lambda shape: (shape, *zeros)
    return lambda shape: shape + zeros


def dtype_of(dtype):
    """Return the number of a dtype that the compiler knows, else -1."""
    if isinstance(dtype, types.StringLiteral):
        given = dtype.literal_value
    elif isinstance(dtype, types.NumberClass):
        given = numba.np.numpy_support.as_dtype(dtype.instance_type)
    elif isinstance(dtype, types.DType):
        given = numba.np.numpy_support.as_dtype(dtype.dtype)
    elif isinstance(dtype, (types.IntEnumMember, types.Integer)):
        return -1
    else:
        raise complaint(
            f"a dtype must be a DataType or a numpy dtype here, such as np.float32, not {dtype}"
        )
    try:
        return int(to_dtype(given))
    except TypeError as error:
        raise complaint(str(error)) from None


@intrinsic
def whole(typingctx, value):
    """Return the integer of a bool, an enum's member or an integer; also one given by default."""

    def codegen(context, builder, sig, args):
        if isinstance(value, types.Omitted):
            return context.get_constant(types.int64, int(value.value))
        return context.cast(builder, args[0], value, types.int64)

    return types.int64(value), codegen


@intrinsic
def dtype_number(typingctx, dtype):
    """Return the number of a dtype."""
    known = dtype_of(dtype)

    def codegen(context, builder, sig, args):
        if known >= 0:
            return context.get_constant(types.int64, known)
        return context.cast(builder, args[0], dtype, types.int64)

    return types.int64(dtype), codegen


@part
def check_dtype(number):
    """Refuse a number that is no DataType."""
    if not 0 <= number < DTYPES:
        ask(M.ASK_DTYPE, number, 0, 0, 0)
    return number


@helper(INT, FIVE, INT, INT)
def describe(data, sizes, ndims, kind):
    """Return the five wire words of a tensor."""
    good, most = True, float(L.DTYPE_SIZES[kind & DTYPE_MASK])
    for d in range(MAX_DIMS):
        good = good and 0 <= sizes[d] < DIM_LIMIT
        if d < ndims:
            most *= sizes[d]
    if not good or most >= 1 << 62:
        ask_about(M.ASK_SHAPE | ndims << 8, data, kind, np.array(sizes))
    first, second, third, fourth, fifth = sizes
    return data, first | second << HALF, third | fourth << HALF, fifth | ndims << HALF, kind


# ---------------------------------------------------------------- making one
def make_tensor(data, shapes, dtype, child_memory=False):
    """Stand for `ContinuousTensor.make`, whose class compiled code does not know."""
    raise NotImplementedError


@overload(ContinuousTensor)
@overload(make_tensor)
def _make_tensor(data, shapes, dtype, child_memory=False):
    ndim, kind = dims_of(shapes), dtype_of(dtype)
    make = tensor_maker(ndim, kind)

    def impl(data, shapes, dtype, child_memory=False):
        number = check_dtype(dtype_number(dtype)) | whole(child_memory) * L.TENSOR_CHILD
        return make(describe(np.int64(data), five(shapes), ndim, number))

    return impl


# ---------------------------------------------------------------- looking at one
@overload_attribute(TensorType, "ndims")
def _ndims(tensor):
    return lambda tensor: tensor._third >> HALF


@intrinsic
def _as_dtype(typingctx, number):
    """Return a number as a member of DataType."""
    return types.IntEnumMember(DataType, types.int64)(types.int64), lambda _c, _b, _s, args: args[0]


@overload_attribute(TensorType, "dtype")
def _dtype(tensor):
    return lambda tensor: _as_dtype(tensor._kind & DTYPE_MASK)


@overload_attribute(TensorType, "child_memory")
def _child_memory(tensor):
    return lambda tensor: tensor._kind & L.TENSOR_CHILD_MASK != 0


@part
def _sizes(tensor):
    """Return the sizes of five dimensions."""
    a, b, c = tensor._first, tensor._second, tensor._third
    low = DIM_LIMIT - 1
    return a & low, a >> HALF & low, b & low, b >> HALF & low, c & low


@overload_attribute(TensorType, "shapes")
def _shapes(tensor):
    if tensor.ndim < 0:
        raise complaint(
            "the compiler does not know how many dimensions a tensor taken from TaskArgs has; keep "
            "the tensor that was added, and read shapes from that"
        )
    ndim = tensor.ndim
    return lambda tensor: _sizes(tensor)[:ndim]


@overload_method(TensorType, "nbytes")
def _nbytes(tensor):
    def impl(tensor):
        count, sizes = L.DTYPE_SIZES[tensor._kind & DTYPE_MASK], _sizes(tensor)
        for d in range(tensor.ndims):
            count *= sizes[d]
        return count

    return impl


@helper()
def check_memory(data, kind, nbytes):
    """Refuse to look at a tensor without host memory."""
    nowhere = nbytes > 0 and (data < FIRST_ADDRESS or data >= END_OF_ADDRESSES)
    if kind & L.TENSOR_CHILD_MASK != 0 or nowhere:
        ask(M.ASK_NUMPY, data, kind, 0, 0)


@overload_method(TensorType, "numpy")
def _numpy(tensor):
    if tensor.dtype < 0 or tensor.ndim < 0:
        raise complaint(
            "the compiler does not know this tensor's dtype and dimensions: give a numpy dtype, such as "
            "np.float32, where it is made, and do not take it from TaskArgs"
        )
    if tensor.dtype == DataType.BFLOAT16:
        raise complaint("numpy has no bfloat16: view the memory as UINT16")
    dtype = np.dtype(DataType(tensor.dtype).name.lower())

    def impl(tensor):
        check_memory(tensor.data, tensor._kind, tensor.nbytes())
        return numba.carray(pointer(tensor.data), tensor.shapes, dtype)

    return impl
