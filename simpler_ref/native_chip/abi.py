"""The structures of `include/simpler_layout.h`, for ctypes, and limits of chip callables.

Rule     CHIP-LAYOUT-1, -2; FLOW-EDGE-1
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from ..jit import structures

MAX_CHILDREN = 1024
MAX_NAME = 255
KERNEL_SYMBOL = "simpler_kernel"
"""The symbol that the shared object of a core kernel exports."""

INCLUDE_DIR = Path(__file__).parent / "include"
"""Where the headers are."""


def _fields(
    structure: structures.Structure, nested: type[ctypes.Structure] | None = None
) -> list[tuple[str, Any]]:
    """Return the members of a structure for ctypes; `nested` is the type of its tensors."""
    found = []
    for member in structure.members:
        kind: Any = nested
        if isinstance(member.kind, structures.CType):
            kind = getattr(ctypes, f"c_{member.kind.in_c.removesuffix('_t')}")
        found.append((member.name, kind if member.elements is None else kind * member.elements))
    return found


class ContinuousTensorStorage(ctypes.Structure):
    """A tensor in wire form, 40 bytes."""

    _fields_ = _fields(structures.TENSOR)


class CallConfigStorage(ctypes.Structure):
    """A CallConfig in wire form, 1052 bytes."""

    _pack_ = 1
    _layout_ = "ms"
    _fields_ = _fields(structures.CALL_CONFIG)


class ChipStorageTaskArgs(ctypes.Structure):
    """The arguments of one run at the L2 ABI, 6152 bytes."""

    _fields_ = _fields(structures.CHIP_STORAGE_TASK_ARGS, ContinuousTensorStorage)


class CoreArgsStorage(ctypes.Structure):
    """The arguments of one block of a kernel, 912 bytes."""

    _fields_ = _fields(structures.CORE_ARGS, ContinuousTensorStorage)
