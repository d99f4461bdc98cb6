"""How memory is described: structures in bytes, which others read, and records of words, which are ours.

Structures are tensors, configurations and arguments, little-endian. The C header
`native_chip/include/simpler_layout.h`, the structures for ctypes and the formats for `struct` come from
these tables.

A record has words, the parties that write and read them, and the orderings. It assigns offsets in the
order of declaration, so no two words overlap. The offsets are plain numbers, which kernels freeze; the
ownership tables, the drawings and the tests of the documentation are made from the description. `layout`
has the records.

    SLOT = Record("slot")
    SLOT.line("the Scheduler's", "Scheduler", "Scheduler", "lock")
    S_STATE = SLOT.word("the state")
    S_LEFT = S_FRAME = SLOT.word("of a group …; of a single task …")
    name_words(globals())

Rule     FLOW-DATA-3, CHIP-LAYOUT-1
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .constants import (
    CHIP_MAX_SCALAR_ARGS,
    CHIP_MAX_TENSOR_ARGS,
    CONTINUOUS_TENSOR_MAX_DIMS,
    CORE_MAX_SCALAR_ARGS,
    CORE_MAX_TENSOR_ARGS,
    LINE,
    MAX_RING_DEPTH,
)


# ---------------------------------------------------------------- structures
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
        return self.kind.size * (1 if self.elements is None else self.elements)

    @property
    def declaration(self) -> str:
        """The member in C, without a semicolon."""
        array = "" if self.elements is None else f"[{self.macro or self.elements}]"
        return f"{self.kind.in_c} {self.name}{array}"


class Structure(NamedTuple):
    """Members that follow each other without gaps; sizes and offsets are in bytes."""

    in_c: str
    meaning: str
    members: tuple[Member, ...]
    packed: bool = False
    """Whether it may begin at any address."""

    @property
    def size(self) -> int:
        return sum(member.size for member in self.members)

    @property
    def offsets(self) -> dict[str, int]:
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


# ---------------------------------------------------------------- records
class Field(NamedTuple):
    """A named field of a record, of one or more words."""

    name: str
    at: int
    """Offset within the record, in words."""
    words: int
    meaning: str
    written_by: str
    read_by: str
    ordering: str
    """What orders these accesses; the page on ownership lists the possibilities."""
    rare: bool
    """It changes so rarely that another party may write words of the same line."""
    also: tuple[str, ...] = ()
    """Its further names, for its further meanings."""

    @property
    def lines(self) -> range:
        """The cache lines it is on, if the record begins with one."""
        return range(self.at // LINE, (self.at + self.words - 1) // LINE + 1)


class Section(NamedTuple):
    """Words of a record under one heading, and the defaults for their declarations."""

    title: str
    note: str
    written_by: str
    read_by: str
    ordering: str
    rare: bool
    begins_a_line: bool
    fields: list[Field]


class Record:
    """Contiguous words: the header, a slot, an entry of a table."""

    def __init__(self, name: str, *parties: str) -> None:
        """Begin a record: one section, if the writers of its words, readers and ordering are given."""
        self.name = name
        self.size = 0
        """Words so far; at the end, those of the whole record."""
        self.sections: list[Section] = []
        if parties:
            self.section("", *parties)

    def section(
        self,
        title: str,
        by: str,
        read: str,
        order: str,
        *,
        note: str = "",
        rare: bool = False,
        begins_a_line: bool = False,
    ) -> int:
        """Begin a heading for the words that follow; return its offset.

        Who writes and reads its words, their ordering and `rare` are defaults. Parties after a semicolon
        in `by` write rarely.
        """
        self.sections.append(Section(title, note, by, read, order, rare, begins_a_line, []))
        return self.size

    def line(self, title: str, by: str, read: str, order: str, **about: Any) -> int:
        """Begin a section, as `section` does, on a cache line of its own."""
        self.align()
        return self.section(title, by, read, order, begins_a_line=True, **about)

    def parties(self, by: str = "", read: str = "", order: str = "") -> None:
        """Let others write or read the words that follow in the open section, or order that."""
        here = self.sections[-1]
        self.sections[-1] = here._replace(
            written_by=by or here.written_by,
            read_by=read or here.read_by,
            ordering=order or here.ordering,
        )

    def word(
        self,
        meaning: str,
        *,
        words: int = 1,
        by: str = "",
        read: str = "",
        hint: str = "",
        order: str = "",
        rare: bool = False,
    ) -> int:
        """Add a field to the open section; return its offset, in words.

        Who is in `hint` reads it as a hint, beside the section's readers.
        """
        here = self.sections[-1]
        field = Field(
            "",
            self.size,
            words,
            meaning,
            by or here.written_by,
            f"{here.read_by}; {hint} as hint" if hint else read or here.read_by,
            order or here.ordering,
            rare or here.rare,
        )
        here.fields.append(field)
        self.size += words
        return _Offset(here.fields)

    def skip(self, words: int) -> None:
        self.size += words

    def align(self) -> int:
        """Skip to the next cache line; return the size of the record."""
        self.size = -(-self.size // LINE) * LINE
        return self.size

    @property
    def fields(self) -> Iterator[Field]:
        for section in self.sections:
            yield from section.fields


class _Offset(int):
    """What `word` returns: the offset of a field whose name is not known yet."""

    fields: list[Field]
    which: int

    def __new__(cls, fields: list[Field]) -> _Offset:
        self = super().__new__(cls, fields[-1].at)
        self.fields, self.which = fields, len(fields) - 1
        return self

    def call(self, name: str) -> None:
        field = self.fields[self.which]
        named = {"also": (*field.also, name)} if field.name else {"name": name}
        self.fields[self.which] = field._replace(**named)


def name_words(names: dict[str, Any]) -> None:
    """Give the words that a module declares the names that they have there, `names` being its globals.

    It is the end of the module. Kernels freeze plain numbers, so that is what is left there.
    """
    for name, value in names.items():
        if isinstance(value, _Offset):
            value.call(name)
            names[name] = int(value)
