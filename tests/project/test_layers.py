"""Every module imports from its own folder and from those below it, and no modules import each other."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import simpler_ref

PACKAGE = Path(simpler_ref.__file__).parent
LAYERS = [
    {"errors", "version"},
    {"jit"},
    {"system"},
    {"model"},
    {"engine"},
    {"callables"},
    {"native_chip"},
    {"workers"},
    {"orch"},
    {"worker", "orchestrator", "task_interface", "callable_identity"},
    {"", "__main__"},
]
"""From the lowest to the highest; the last ones are what is imported and what is run."""
LATE = {("workers.fresh_interpreter", "worker")}
"""What looks up when it is called: a child Worker travels to a fresh interpreter."""


def name_of(path: Path) -> str:
    """Return a module's name within the package, "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_for_types(node: ast.AST) -> bool:
    """Say whether it is the block of what only type checkers import."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.ImportFrom, bool]]:
    """Yield the relative imports below a node, each with whether a function makes it when called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.level:
            yield child, late
        elif not is_for_types(child):
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from imports(child, late or inside)


def targets(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """Yield the modules that an import statement in a module names."""
    path = MODULES[module]
    base = [] if path.parent == PACKAGE else list(path.parent.relative_to(PACKAGE).parts)
    base = base[: len(base) - node.level + 1] + (node.module.split(".") if node.module else [])
    for one in node.names:
        whole = ".".join([*base, one.name])
        yield whole if whole in MODULES else ".".join(base)


def arrows(late: bool) -> Iterator[tuple[str, str]]:
    for module, path in MODULES.items():
        for node, when in imports(ast.parse(path.read_text())):
            if when == late:
                yield from ((module, target) for target in targets(module, node))


def layer(module: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if module.split(".")[0] in names)
    return found


@pytest.mark.parametrize("late", [False, True], ids=["when imported", "when called"])
def test_no_import_looks_up(late):
    found = list(arrows(late))
    assert len(found) > (10 if late else 300)
    up = {(a, b) for a, b in found if layer(a) < layer(b)}
    assert up == (LATE if late else set())


def test_no_modules_import_each_other():
    graph: dict[str, set[str]] = {}
    for module, target in arrows(late=False):
        if target != module:
            graph.setdefault(module, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))
