"""Gives functions of this process other code: that of a mutant, or one that notes which statements run.

Whoever holds the functions sees it, and what is forked from this process; what starts a new interpreter
does not.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from ..spec_rules import ROOT
from .sweep_changes import Mutant, functions, made, statements

PACKAGE = ROOT / "simpler_ref"

Changes = list[tuple[FunctionType, CodeType]]
"""Functions, and the code that each is to get."""


class Unfit(ValueError):
    """No function can get the code of a mutant."""


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield all code within that of a module."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from codes(const)


@functools.cache
def functions_of(path: Path) -> list[FunctionType]:
    """Return the functions of a file that there are: also methods, and those that others wrap."""
    every = [one for one in gc.get_objects() if type(one) is FunctionType]
    return [one for one in every if one.__code__.co_filename == str(path)]


def changes(file: str, tree: ast.Module) -> Changes:
    """Compile a file anew; return what is to change then."""
    path = PACKAGE / file
    module = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    new = {(code.co_name, code.co_firstlineno): code for code in codes(module)}
    found = []
    for function in functions_of(path):
        code = function.__code__
        other = new.get((code.co_name, code.co_firstlineno), code)
        if other != code and code.co_name != "<lambda>":
            if other.co_freevars != code.co_freevars:
                raise Unfit(f"{file} {code.co_name}: a variable of an outer function is gone")
            found.append((function, other))
    return found


def of_mutant(mutant: Mutant) -> Changes:
    """Return what makes this process a mutant."""
    with made(mutant.change):
        found = changes(mutant.key.file, mutant.tree)
    if not found:
        raise Unfit(f"{mutant.key.file} {mutant.key.function}: nothing has this code")
    return found


def put_in(those: Changes) -> None:
    """Change the functions, for good."""
    for function, code in those:
        function.__code__ = code


# ---------------------------------------------------------------- noting what runs
NOTES = "_ran_"
"""The name by which a module knows its `Notes`."""


class Notes:
    """A byte for each line of some files, in memory that processes share: 1 if a statement there ran."""

    def __init__(self, files: Sequence[str]) -> None:
        sources = {file: (PACKAGE / file).read_text() for file in files}
        self._ran = {file: mmap.mmap(-1, text.count("\n") + 2) for file, text in sources.items()}
        self._modules = {file: module_of(file) for file in files}
        self._changes = [
            change for file, source in sources.items() for change in changes(file, noting(source))
        ]

    def put_in(self) -> None:
        """Have this process and those that it forks take notes."""
        for file, module in self._modules.items():
            setattr(module, NOTES, self._ran[file])
        put_in(self._changes)

    def clear(self) -> None:
        for ran in self._ran.values():
            ran[:] = bytes(len(ran))

    def read(self) -> dict[str, list[int]]:
        """Return file → lines whose statements have run since the last `clear`."""
        lines = {f: [i for i, one in enumerate(ran[:]) if one] for f, ran in self._ran.items()}
        return {file: some for file, some in lines.items() if some}


def module_of(file: str) -> object:
    return importlib.import_module("simpler_ref." + file.removesuffix(".py").replace("/", "."))


def noting(source: str) -> ast.Module:
    """Return a source in which each statement of a function first notes that it runs."""
    tree = ast.parse(source)
    places = [place for _, function in functions(tree) for place in statements(function)]
    for place in reversed(places):  # what is put in moves only what comes after it
        note = ast.parse(f"{NOTES}[{place.what.lineno}] = 1").body[0]
        for node in ast.walk(note):
            ast.copy_location(node, place.what)
        getattr(place.node, place.field).insert(place.index, note)
    return tree
