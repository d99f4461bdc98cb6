"""The description of a record: its words, the parties that write and read them, and the orderings.

A record assigns offsets in the order of declaration, so no two words overlap. The offsets are plain
numbers, which kernels freeze; the ownership tables, the drawings and the tests of the documentation are
made from the description.

    SLOT = Record("slot")
    SLOT.line("the Scheduler's", written_by="Scheduler", read_by="Scheduler", ordering="lock")
    S_STATE = SLOT.word("S_STATE", "the state")
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

    def __init__(self, name: str, after: int = 0) -> None:
        """Begin a record, which starts with `after` words of another."""
        self.name = name
        self.size = after
        """Words so far; at the end, those of the whole record."""
        self.sections: list[Section] = []

    def section(
        self,
        title: str = "",
        *,
        written_by: str,
        read_by: str,
        ordering: str,
        note: str = "",
        rare: bool = False,
        begins_a_line: bool = False,
    ) -> int:
        """Begin a heading for the words that follow; return its offset.

        Parties, ordering and `rare` are the defaults for its words. Parties after a semicolon in
        `written_by` write rarely.
        """
        self.sections.append(
            Section(title, note, written_by, read_by, ordering, rare, begins_a_line, [])
        )
        return self.size

    def line(self, title: str, **about: Any) -> int:
        """Begin a section, as `section` does, on a cache line of its own."""
        self.align()
        return self.section(title, begins_a_line=True, **about)

    def word(
        self,
        name: str,
        meaning: str,
        *,
        words: int = 1,
        written_by: str = "",
        read_by: str = "",
        ordering: str = "",
        rare: bool = False,
    ) -> int:
        """Add a field to the open section; return its offset, in words."""
        here, at = self.sections[-1], self.size
        here.fields.append(
            Field(
                name,
                at,
                words,
                meaning,
                written_by or here.written_by,
                read_by or here.read_by,
                ordering or here.ordering,
                rare or here.rare,
            )
        )
        self.size += words
        return at

    def also(self, name: str, meaning: str) -> int:
        """Give the last field a further name, for another meaning; return its offset."""
        fields = self.sections[-1].fields
        last = fields[-1]
        fields[-1] = last._replace(
            also=(*last.also, name), meaning=f"{last.meaning}; {meaning} it is called `{name}`"
        )
        return last.at

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
