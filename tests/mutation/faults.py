"""Faults as small changes of the source: what such programs have really had, or tests once let pass.

They stand in `faults.txt`. A fault has its name, with ``(hangs)`` if a test of it may hang instead of
failing; what it is; the tests that catch it; and its changes, as lines of a diff with no more around them
than makes them unique in the file. So a change of the source that a fault was made for is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Patch(NamedTuple):
    """Text of a file of the package, and what stands there instead."""

    file: str
    old: str
    new: str


class Fault(NamedTuple):
    """A fault, and the tests that catch it: each of them fails, or hangs if `hangs` says so."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    caught_by: tuple[str, ...]
    hangs: bool = False


def read_fault(text: str) -> Fault:
    """Read what follows a ``==``."""
    head, *changes = re.split(r"^(?=--- |\.\.\.$)", text.rstrip() + "\n", flags=re.MULTILINE)
    title, *lines = head.splitlines()
    name, _, hangs = title.partition(" ")
    tests = tuple(line for line in lines if line.startswith("tests/"))
    what = " ".join(line for line in lines if line not in tests)
    return Fault(name, what, tuple(read_patches(changes)), tests, hangs == "(hangs)")


def read_patches(changes: list[str]) -> Iterator[Patch]:
    """Read changes, each with the name of its file or ``...`` for the file of the one before."""
    file = ""
    for change in changes:
        first, *lines = change.splitlines(keepends=True)
        file = first[4:].strip() or file
        old, new = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
        yield Patch(file, old, new)


TEXT = Path(__file__).with_name("faults.txt").read_text()
FAULTS = tuple(map(read_fault, re.split(r"^== ", TEXT, flags=re.MULTILINE)[1:]))
