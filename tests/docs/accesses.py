"""Finds out, from the source of the kernels, who writes and who reads which word of the engine."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

JIT = Path(__file__).resolve().parents[2] / "simpler_ref" / "jit"
ATOMIC_WRITES = ("store", "exchange", "compare_exchange", "fetch_add")
ATOMIC_READS = ("load", "load_sc", "exchange", "compare_exchange", "fetch_add", "futex_wait")
LOCKS = ("try_lock", "become_scheduler")
UNLOCKS = ("unlock", "hand_over")
"""Between one of the first and one of the second a thread is the Scheduler."""

Accesses = Callable[[str], list[tuple[int, ast.expr]]]
"""What returns line and index of each access of a function."""


class Sources:
    """All functions of the kernels, by ``module.name``, and what the names in them refer to."""

    def __init__(self, folder: Path = JIT) -> None:
        self.written = functools.cache(lambda where: list(self._accesses(where, ATOMIC_WRITES)))
        self.read = functools.cache(lambda where: list(self._accesses(where, ATOMIC_READS)))
        self.fields = functools.cache(self._fields)
        self.own_words = functools.cache(self._own_words)
        self.origins = functools.cache(self._origins)
        self.places = functools.cache(self._places)
        self.followed = functools.cache(lambda where: list(self._followed(where)))
        self.functions: dict[str, ast.FunctionDef] = {}
        self._names: dict[str, dict[str, str]] = {}
        entries: dict[str, ast.expr] = {}
        for path in sorted(folder.glob("*.py")):
            if path.stem == "steps":  # one thread plays all others with them
                continue
            tree = ast.parse(path.read_text())
            names = self._names[path.stem] = {}
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    self.functions[f"{path.stem}.{node.name}"] = node
                    names[node.name] = f"{path.stem}.{node.name}"
                elif isinstance(node, ast.ImportFrom) and node.level == 1:
                    for alias in node.names:
                        target = f"{node.module}.{alias.name}" if node.module else alias.name
                        names[alias.asname or alias.name] = target
                elif isinstance(node, ast.Assign) and "entry_of(" in ast.unparse(node.value):
                    entries[f"{path.stem}.{ast.unparse(node.targets[0])}"] = node.value.args[0]
        for where, kernel in entries.items():  # what calls the kernel
            arguments = ast.unparse(self.functions[ast.unparse(kernel)].args)
            text = (
                f"def {where.split('.')[1]}({arguments}): return {ast.unparse(kernel)}({arguments})"
            )
            self.functions[where] = ast.parse(text).body[0]

    def called(self, where: str, call: ast.Call) -> str | None:
        """Return the function that a call in function `where` refers to, if it is one of these."""
        names = self._names[where.split(".")[0]]
        if isinstance(call.func, ast.Name):
            found = names.get(call.func.id)
        elif isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            found = f"{names.get(call.func.value.id)}.{call.func.attr}"
        else:
            found = None
        return found if found in self.functions else None

    # ------------------------------------------------------------ where an index leads
    def _fields(self, where: str, index: ast.expr, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return the names of the layout that an index into `mem` is made of."""
        found: set[str] = set()
        for node in without_look_ups(index):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "L":
                found.add(node.attr)
            elif isinstance(node, ast.Name) and node.id not in seen:
                for value in assigned(self.functions[where], node.id):
                    found |= self.fields(where, value, seen | {node.id})
            elif isinstance(node, ast.Call) and (callee := self.called(where, node)):
                for value in returned(self.functions[callee]):
                    found |= self.fields(callee, value)
        return found

    def _accesses(self, where: str, atomics: Sequence[str]) -> Iterator[tuple[int, ast.expr]]:
        """Yield line and index of all that a function writes, or reads, or has a callee do so for it."""
        writes = atomics is ATOMIC_WRITES
        for node in ast.walk(self.functions[where]):
            if is_look_up(node) and isinstance(node.ctx, ast.Store if writes else ast.Load):
                yield node.lineno, node.slice
            elif isinstance(node, ast.AugAssign) and is_look_up(node.target) and not writes:
                yield node.lineno, node.target.slice
            elif isinstance(node, ast.Call):
                if getattr(node.func, "id", "") in atomics:
                    yield node.lineno, node.args[1]
                elif callee := self.called(where, node):
                    for position in self.own_words(callee, self.written if writes else self.read):
                        yield node.lineno, node.args[position]

    def _own_words(self, where: str, accesses: Accesses) -> set[int]:
        """Return the parameters of a function that say by themselves which word it accesses."""
        parameters = [one.arg for one in self.functions[where].args.args]
        return {
            parameters.index(node.id)
            for _, index in accesses(where)
            if not self.fields(where, index)
            for node in without_look_ups(index)
            if isinstance(node, ast.Name) and node.id in parameters
        }

    # ------------------------------------------------------------ what an index comes from
    def _followed(self, where: str) -> Iterator[tuple[int, str]]:
        """Yield line and name of each word whose value a function, or a callee for it, takes for a place.

        What it has read as the Scheduler was handed over to it by the lock.
        """
        accesses = [*self.written(where), *self.read(where)]
        for line, index in accesses:
            for field in self.origins(where, index):
                yield line, field
        for node in ast.walk(self.functions[where]):
            if isinstance(node, ast.Call) and (callee := self.called(where, node)):
                for position in self.places(callee):
                    if position < len(node.args):
                        for field in self.origins(where, node.args[position]):
                            yield node.lineno, field

    def _places(self, where: str) -> set[int]:
        """Return the parameters of a function that it takes for places, or has a callee take."""
        parameters = [one.arg for one in self.functions[where].args.args]
        indices = [index for _, index in (*self.written(where), *self.read(where))]
        for node in ast.walk(self.functions[where]):
            callee = self.called(where, node) if isinstance(node, ast.Call) else None
            if callee and callee != where:
                indices += [node.args[k] for k in self.places(callee) if k < len(node.args)]
        return {
            parameters.index(name)
            for index in indices
            for name in self.names_in(where, index)
            if name in parameters[1:]
        }

    def names_in(self, where: str, index: ast.expr, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return the names that an expression is made of, and those that these are made of."""
        found: set[str] = set()
        for node in ast.walk(index):
            if isinstance(node, ast.Name) and node.id not in seen:
                found.add(node.id)
                for value in assigned(self.functions[where], node.id):
                    found |= self.names_in(where, value, seen | {node.id})
        return found

    def _origins(self, where: str, value: ast.expr, seen: frozenset[str] = frozenset()) -> set[str]:
        """Return the words of the layout from whose values an expression is made."""
        found: set[str] = set()
        if value.lineno in lines_under_the_lock(self.functions[where]):
            return found
        for node in ast.walk(value):
            if is_look_up(node):
                found |= self.fields(where, node.slice)
            elif isinstance(node, ast.Name) and node.id not in seen:
                for other in assigned(self.functions[where], node.id):
                    found |= self._origins(where, other, seen | {node.id})
            elif isinstance(node, ast.Call):
                if getattr(node.func, "id", "") in ATOMIC_READS:
                    found |= self.fields(where, node.args[1])
                elif callee := self.called(where, node):
                    for answer in returned(self.functions[callee]):
                        found |= self.origins(callee, answer)
        return found

    def followers(self, callers: dict[str, str]) -> Iterator[tuple[str, str, str]]:
        """Yield party, word and line wherever a value is taken for a place without the lock."""
        for where, who in self.reached(callers).items():
            locked = lines_under_the_lock(self.functions[where])
            for line, field in self.followed(where):
                for party in {"Scheduler"} if line in locked else who:
                    if party != "Scheduler":
                        yield party, field, f"{where}:{line}"

    # ------------------------------------------------------------ who gets there
    def reached(self, callers: dict[str, str]) -> dict[str, set[str]]:
        """Return the parties that run each function; `callers` says who calls which entry or kernel."""
        found: dict[str, set[str]] = {name: set() for name in self.functions}
        todo = [(n if "." in n else f"entries.{n}", party) for n, party in callers.items()]
        while todo:
            where, party = todo.pop()
            if party in found[where]:
                continue
            found[where].add(party)
            locked = lines_under_the_lock(self.functions[where])
            for node in ast.walk(self.functions[where]):
                if isinstance(node, ast.Call) and (callee := self.called(where, node)):
                    todo.append((callee, "Scheduler" if node.lineno in locked else party))
        return found

    def parties(self, callers: dict[str, str], accesses: Accesses) -> dict[str, set[str]]:
        """Return the parties that access each word."""
        found: dict[str, set[str]] = {}
        for where, who in self.reached(callers).items():
            locked = lines_under_the_lock(self.functions[where])
            for line, index in accesses(where) if who else ():
                for field in self.fields(where, index):
                    found.setdefault(field, set()).update({"Scheduler"} if line in locked else who)
        return found


def is_look_up(node: ast.AST) -> bool:
    """Say whether this is `mem[…]`."""
    return isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "mem"


def without_look_ups(index: ast.expr) -> Iterator[ast.AST]:
    """Yield the parts of an index, but not what stands inside of another look into an array."""
    if not isinstance(index, ast.Subscript):
        yield index
        for child in ast.iter_child_nodes(index):
            yield from without_look_ups(child)


@functools.cache
def assignments(function: ast.FunctionDef) -> dict[str, list[ast.expr]]:
    """Return all that a function assigns to each name of its own."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def assigned(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    """Return all that a function assigns to a name of its own."""
    return assignments(function).get(name, [])


def returned(function: ast.FunctionDef) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value


@functools.cache
def lines_under_the_lock(function: ast.FunctionDef) -> set[int]:
    """Return the lines of a function that it runs as the Scheduler."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    taken = [one.lineno for one in calls if getattr(one.func, "id", "") in LOCKS]
    given = [one.lineno for one in calls if getattr(one.func, "id", "") in UNLOCKS]
    if not given:
        return set()
    first = min(taken) if taken else function.lineno  # its caller has taken it
    return set(range(first + 1, max(given)))
