"""The structures of `include/simpler_l2.h` and `include/simpler_kernel.h`, for ctypes.

Rule     CHIP-LAYOUT-1, -2; FLOW-EDGE-1
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from ..jit import layout as L

CORE_MAX_TENSOR_ARGS = 16
CORE_MAX_SCALAR_ARGS = 32
OUTPUT_PREFIX_SIZE = 1024
MAX_CHILDREN = 1024
MAX_NAME = 255
KERNEL_SYMBOL = "simpler_kernel"
"""What the shared object of a core kernel exports."""

INCLUDE_DIR = Path(__file__).parent / "include"
"""Where the two headers are."""


class ContinuousTensorStorage(ctypes.Structure):
    """A tensor as it travels, 40 bytes."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("shapes", ctypes.c_uint32 * L.CONTINUOUS_TENSOR_MAX_DIMS),
        ("ndims", ctypes.c_uint32),
        ("dtype", ctypes.c_uint8),
        ("child_memory", ctypes.c_uint8),
        ("padding", ctypes.c_uint8 * 6),
    )


class CallConfigStorage(ctypes.Structure):
    """A CallConfig as it travels, 1052 bytes."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (
        ("block_dim", ctypes.c_int32),
        ("aicpu_thread_num", ctypes.c_int32),
        ("enable_l2_swimlane", ctypes.c_int32),
        ("enable_dump_tensor", ctypes.c_int32),
        ("enable_pmu", ctypes.c_int32),
        ("enable_dep_gen", ctypes.c_int32),
        ("enable_scope_stats", ctypes.c_int32),
        ("output_prefix", ctypes.c_char * OUTPUT_PREFIX_SIZE),
    )


class ChipStorageTaskArgs(ctypes.Structure):
    """The arguments of one run at the L2 ABI, 6152 bytes."""

    _fields_ = (
        ("tensors_", ContinuousTensorStorage * L.CHIP_MAX_TENSOR_ARGS),
        ("scalars_", ctypes.c_uint64 * L.CHIP_MAX_SCALAR_ARGS),
        ("tensor_count_", ctypes.c_int32),
        ("scalar_count_", ctypes.c_int32),
    )


class CoreArgsStorage(ctypes.Structure):
    """What one block of a kernel gets, 912 bytes."""

    _fields_ = (
        ("block_idx", ctypes.c_int32),
        ("block_dim", ctypes.c_int32),
        ("tensor_count", ctypes.c_int32),
        ("scalar_count", ctypes.c_int32),
        ("tensors", ContinuousTensorStorage * CORE_MAX_TENSOR_ARGS),
        ("scalars", ctypes.c_uint64 * CORE_MAX_SCALAR_ARGS),
    )
