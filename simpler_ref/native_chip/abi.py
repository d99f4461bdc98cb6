"""The structures of `include/simpler_layout.h`, for ctypes; statuses, errors and limits.

Rule     CHIP-LAYOUT-1, CHIP-LAYOUT-4, WM-CHIP-7
"""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path
from typing import Any

from ..jit import structures
from ..jit.constants import CHIP_MAX_SCALAR_ARGS, CHIP_MAX_TENSOR_ARGS
from ..model.arguments import TENSOR_AFTER_SCALAR, TaskArgs
from ..model.enums import TensorArgType
from ..model.scalars import scalar_to_uint64
from ..model.tensor import ContinuousTensor, require_plain
from ..system.values import position

MAX_CHILDREN = 1024
MAX_NAME = 255
KERNEL_SYMBOL = "simpler_kernel"
"""The symbol that the shared object of a core kernel exports."""

INCLUDE_DIR = Path(__file__).parent / "include"
"""Where the headers are."""


class ChipStatus(enum.IntEnum):
    """Error codes of the L2 ABI; `include/simpler_l2.h` describes each."""

    OK = 0
    STATE = 1
    SLOT = 2
    BLOB = 3
    LOAD = 4
    ARGS = 5
    CONFIG = 6
    MEMORY = 7
    ADDRESS = 8
    KERNEL = 9
    FAULT = 10
    ORCHESTRATION = 11
    SYSTEM = 12
    RECORDING = 13
    CLOSED = 64
    VIEW = 65


class ChipError(RuntimeError):
    """A chip, or its runtime, reported an error.

    Its `code` is a `ChipStatus`, or whatever another runtime returned; 0 if no runtime could be loaded.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        known = code in ChipStatus._value2member_map_
        self.code = ChipStatus(code) if known else code


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


class ChipStorageTaskArgs(ctypes.Structure):
    """The arguments of one run at the L2 ABI, 6152 bytes: a container of tensors, then scalars."""

    _fields_ = _fields(structures.CHIP_STORAGE_TASK_ARGS, ContinuousTensorStorage)

    def add_tensor(self, tensor: ContinuousTensor) -> None:
        """Append a tensor.

        Raises
        ------
        RuntimeError
            After `add_scalar`: tensors come first.
        ValueError
            There are 128.
        """
        if self.scalar_count_:
            raise RuntimeError(TENSOR_AFTER_SCALAR)
        _require_room(self.tensor_count_, CHIP_MAX_TENSOR_ARGS, "tensors")
        if not isinstance(tensor, ContinuousTensor):
            raise TypeError(f"expected a ContinuousTensor, got {type(tensor).__name__}")
        require_plain([[tensor._wire]], "the arguments of a chip")
        self.tensors_[self.tensor_count_] = ContinuousTensorStorage.from_buffer_copy(tensor._wire)
        self.tensor_count_ += 1

    def add_scalar(self, value: Any) -> None:
        """Append a scalar, as the 64 bits of `scalar_to_uint64`; ValueError if there are 128."""
        bits = scalar_to_uint64(value)
        _require_room(self.scalar_count_, CHIP_MAX_SCALAR_ARGS, "scalars")
        self.scalars_[self.scalar_count_] = bits
        self.scalar_count_ += 1

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`; IndexError if there is none."""
        position("tensor", i, self.tensor_count_)
        return ContinuousTensor._from_wire(bytes(self.tensors_[i]))

    def scalar(self, i: int) -> int:
        """Return the 64 bits of scalar `i`; IndexError if there is none."""
        position("scalar", i, self.scalar_count_)
        return int(self.scalars_[i])

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return int(self.tensor_count_)

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return int(self.scalar_count_)

    def task_args(self) -> TaskArgs:
        """Return the same as TaskArgs; what the task does with each tensor is not known: INOUT."""
        args = TaskArgs()
        for i in range(self.tensor_count()):
            args.add_tensor(self.tensor(i), TensorArgType.INOUT)
        for i in range(self.scalar_count()):
            args.add_scalar(self.scalar(i))
        return args

    def clear(self) -> None:
        """Remove everything."""
        self.tensor_count_ = self.scalar_count_ = 0

    def __len__(self) -> int:
        return self.tensor_count() + self.scalar_count()

    def __ptr__(self) -> int:
        """Return the address of the structure."""
        return ctypes.addressof(self)

    @classmethod
    def sizeof(cls) -> int:
        """Return the bytes of the structure."""
        return ctypes.sizeof(cls)


def _require_room(count: int, most: int, what: str) -> None:
    if count >= most:
        raise ValueError(f"a run takes at most {most} {what}, and these arguments have {count}")


class CoreArgsStorage(ctypes.Structure):
    """The arguments of one block of a kernel, 920 bytes."""

    _fields_ = _fields(structures.CORE_ARGS, ContinuousTensorStorage)
