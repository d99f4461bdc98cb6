"""The description of a record: its words, the parties that write and read them, and the orderings.

A record assigns offsets in the order of declaration, so no two words overlap. The offsets are plain
numbers, which kernels freeze; the ownership tables, the drawings and the tests of the documentation are
made from the description.

    SLOT = Record("slot")
    SLOT.line("the Scheduler's", "Scheduler", "Scheduler", "lock")
    S_STATE = SLOT.word("the state")
    S_LEFT = S_FRAME = SLOT.word("of a group …; of a single task …")
    name_words(globals())
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .constants import LINE


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
        """Leave `words` words without a name."""
        self.size += words

    def align(self) -> int:
        """Skip to the next cache line; return the size of the record."""
        self.size = -(-self.size // LINE) * LINE
        return self.size

    @property
    def fields(self) -> Iterator[Field]:
        """Every field, in order."""
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
