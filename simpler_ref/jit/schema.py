"""How a record is described: which words it has, who writes and reads them, and what makes that right.

A record hands out offsets in the order in which its words are declared, so no two of them overlap. The
offsets are plain numbers, which kernels freeze; the description is what the ownership tables, the
drawings and the tests of the documentation are made from.

    SLOT = Record("slot")
    SLOT.line("the Scheduler's", written_by="Scheduler", read_by="Scheduler", ordering="lock")
    S_STATE = SLOT.word("S_STATE", "the state")
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from .constants import LINE


class Field(NamedTuple):
    """Some words of a record that have a name."""

    name: str
    at: int
    """Offset within the record, in words."""
    words: int
    meaning: str
    written_by: str
    read_by: str
    ordering: str
    """What makes these accesses right; the page on ownership lists the possibilities."""
    rare: bool
    """It changes so rarely that another party may write words of the same line."""
    also: str = ""
    """Its second name: what it is called where it means something else."""

    @property
    def lines(self) -> range:
        """The cache lines it stands on, if the record begins with one."""
        return range(self.at // LINE, (self.at + self.words - 1) // LINE + 1)


class Section(NamedTuple):
    """Words of a record under one heading, and what is so for those that say nothing else."""

    title: str
    note: str
    written_by: str
    read_by: str
    ordering: str
    rare: bool
    begins_a_line: bool
    fields: list[Field]


class Record:
    """Words that stand together: the header, a slot, an entry of a table."""

    def __init__(self, name: str, after: int = 0) -> None:
        """Begin a record; `after` so many words of another, with which it begins."""
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
        """Put the words that follow under a heading of their own; return where it begins.

        Parties, ordering and `rare` are those of every word in it that does not say otherwise. What
        stands after a semicolon in `written_by` happens rarely.
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
        """Add a field to the section that is open; return its offset, in words."""
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
        """Give the field before it a second name, for its other meaning; return its offset."""
        fields = self.sections[-1].fields
        last = fields[-1]
        fields[-1] = last._replace(
            also=name, meaning=f"{last.meaning}; {meaning} it is called `{name}`"
        )
        return last.at

    def skip(self, words: int) -> None:
        """Leave so many words without a name."""
        self.size += words

    def align(self) -> int:
        """Leave out what is left of a cache line; return the size that the record has then."""
        self.size = -(-self.size // LINE) * LINE
        return self.size

    @property
    def fields(self) -> Iterator[Field]:
        """Every field, in order."""
        for section in self.sections:
            yield from section.fields
