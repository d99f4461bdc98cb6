"""Structures in bytes: tensors, configurations and arguments.

Everything is little-endian. The C header `native_chip/include/simpler_layout.h`, the structures for
ctypes and the formats for `struct` come from these tables.

Rule     FLOW-DATA-3, CHIP-LAYOUT-1
"""

from __future__ import annotations

from typing import NamedTuple

from .constants import (
    CHIP_MAX_SCALAR_ARGS,
    CHIP_MAX_TENSOR_ARGS,
    CONTINUOUS_TENSOR_MAX_DIMS,
    CORE_MAX_SCALAR_ARGS,
    CORE_MAX_TENSOR_ARGS,
    MAX_RING_DEPTH,
)


class CType(NamedTuple):
    """A type of C."""

    in_c: str
    code: str
    """Its code for `struct`."""
    size: int


class Member(NamedTuple):
    """One of a structure's members."""

    name: str
    kind: CType | Structure
    elements: int | None = None
    """Its length, if it is an array."""
    macro: str = ""
    """The constant of the header for the length, if there is one."""
    meaning: str = ""

    @property
    def size(self) -> int:
        """Bytes."""
        return self.kind.size * (1 if self.elements is None else self.elements)

    @property
    def declaration(self) -> str:
        """The member in C, without a semicolon."""
        array = "" if self.elements is None else f"[{self.macro or self.elements}]"
        return f"{self.kind.in_c} {self.name}{array}"


class Structure(NamedTuple):
    """Members that follow each other without gaps."""

    in_c: str
    meaning: str
    members: tuple[Member, ...]
    packed: bool = False
    """Whether it may begin at any address."""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(member.size for member in self.members)

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each member, in bytes."""
        found, at = {}, 0
        for member in self.members:
            found[member.name] = at
            at += member.size
        return found

    @property
    def format(self) -> str:
        """The format for `struct`, which skips padding; no member is a structure."""
        codes = []
        for name, kind, elements, *_ in self.members:
            assert isinstance(kind, CType)
            code = "x" if name == "padding" else "s" if kind is CHAR else kind.code
            codes.append(f"{'' if elements is None else elements}{code}")
        return "<" + "".join(codes)


U8 = CType("uint8_t", "B", 1)
U32 = CType("uint32_t", "I", 4)
I32 = CType("int32_t", "i", 4)
U64 = CType("uint64_t", "Q", 8)
CHAR = CType("char", "c", 1)

OUTPUT_PREFIX_SIZE = 1024

TENSOR = Structure(
    "SimplerContinuousTensor",
    "A contiguous row-major tensor",
    (
        Member("data", U64, meaning="address of the first element"),
        Member("shapes", U32, CONTINUOUS_TENSOR_MAX_DIMS, "SIMPLER_MAX_DIMS"),
        Member("ndims", U32, meaning="dimensions in use"),
        Member("dtype", U8, meaning="an enum SimplerDataType"),
        Member("child_memory", U8, meaning="1: `data` is an address on the device"),
        Member(
            "padding",
            U8,
            6,
            meaning="0; the tag, on its way into submit; then 1 if marked for dumps",
        ),
    ),
)

CALL_CONFIG = Structure(
    "SimplerCallConfig",
    "Execution knobs of one run",
    (
        Member("block_dim", I32, meaning="cores to run on; 0: the runtime chooses"),
        Member("aicpu_thread_num", I32, meaning="threads that feed them"),
        Member("enable_l2_swimlane", I32, meaning="diagnostics: 0 (off) to 4 (full)"),
        Member("enable_dump_tensor", I32, meaning="0: off"),
        Member("enable_pmu", I32, meaning="0: off"),
        Member("enable_dep_gen", I32, meaning="0: off"),
        Member("enable_scope_stats", I32, meaning="0: off"),
        Member(
            "output_prefix",
            CHAR,
            OUTPUT_PREFIX_SIZE,
            "SIMPLER_OUTPUT_PREFIX_SIZE",
            meaning="where they write: at most 1023 bytes and a NUL",
        ),
    ),
    packed=True,
)

RUNTIME_ENV = Structure(
    "SimplerRuntimeEnv",
    "Sizes that a run asks for, of each ring; 0: the runtime chooses",
    (
        Member("ring_task_window", U64, MAX_RING_DEPTH, "SIMPLER_MAX_RINGS", "tasks"),
        Member("ring_heap", U64, MAX_RING_DEPTH, meaning="bytes"),
        Member("ring_dep_pool", U64, MAX_RING_DEPTH, meaning="dependencies"),
    ),
)

CHIP_STORAGE_TASK_ARGS = Structure(
    "SimplerChipStorageTaskArgs",
    "The arguments of one run, initialised only as far as the counts say",
    (
        Member("tensors_", TENSOR, CHIP_MAX_TENSOR_ARGS, "SIMPLER_CHIP_MAX_TENSOR_ARGS"),
        Member("scalars_", U64, CHIP_MAX_SCALAR_ARGS, "SIMPLER_CHIP_MAX_SCALAR_ARGS"),
        Member("tensor_count_", I32),
        Member("scalar_count_", I32),
    ),
)

CORE_ARGS = Structure(
    "SimplerCoreArgs",
    "What one block of a launch gets, a copy of its own",
    (
        Member("block_idx", I32, meaning="0 to block_dim - 1"),
        Member("block_dim", I32, meaning="blocks of this launch"),
        Member("tensor_count", I32),
        Member("scalar_count", I32),
        Member("tensors", TENSOR, CORE_MAX_TENSOR_ARGS, "SIMPLER_CORE_MAX_TENSOR_ARGS"),
        Member("scalars", U64, CORE_MAX_SCALAR_ARGS, "SIMPLER_CORE_MAX_SCALAR_ARGS"),
        Member("runtime_env", U64, meaning="address of the run's SimplerRuntimeEnv"),
    ),
)

STRUCTURES = (TENSOR, CALL_CONFIG, RUNTIME_ENV, CHIP_STORAGE_TASK_ARGS, CORE_ARGS)
