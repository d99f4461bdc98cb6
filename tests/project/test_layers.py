"""Every module imports from its own folder and from those below it, and no modules import each other.

Where a word of the engine stands, only the kernels and the view of them know.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import simpler_ref
from simpler_ref.jit import layout as L

PACKAGE = Path(simpler_ref.__file__).parent
LAYERS = [
    *({"errors", "version"}, {"check"}, {"jit"}, {"system"}, {"model"}, {"engine"}, {"trace"}),
    *({"callables"}, {"workers"}, {"native_chip"}, {"orch"}, {"calls"}, {"remote"}),
    {
        *("worker", "orchestrator", "task_interface", "callable_identity", "remote_l3_protocol"),
        *("stepping", "step_trace"),
    },
    *({"", "__main__", "compat", "endpoint"}, {"adapters"}, {"extras"}),
]
"""From the lowest to the highest: what is imported and what is run, and extras, which nothing imports."""
ABSOLUTE = re.compile(r"^ *(?:from|import) simpler_ref\b", re.MULTILINE)
LATE = {
    ("workers.fresh_interpreter", "compat"),
    ("remote.spec", "compat"),
    ("remote.session", "worker"),
}
"""What looks up when it is called, or for types: the original's names; a Worker that endpoints serve."""


def name_of(path: Path) -> str:
    """Return a module's name within the package, "" for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def is_for_types(node: ast.AST) -> bool:
    """Say whether it is the block of what only type checkers import."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST, late: bool = False) -> Iterator[tuple[ast.ImportFrom, bool]]:
    """Yield the relative imports below a node, each with whether it is late: in functions, for types."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.level:
            yield child, late
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            yield from imports(child, late or inside or is_for_types(child))


def targets(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """Yield the modules that an import statement in a module names."""
    path = MODULES[module]
    base = [] if path.parent == PACKAGE else list(path.parent.relative_to(PACKAGE).parts)
    base = base[: len(base) - node.level + 1] + (node.module.split(".") if node.module else [])
    for one in node.names:
        whole = ".".join([*base, one.name])
        yield whole if whole in MODULES else ".".join(base)


@functools.cache
def arrows(late: bool) -> list[tuple[str, str]]:
    """Return who imports whom, as it is imported or when it is called."""
    return [
        (module, target)
        for module in MODULES
        for node, when in imports(tree(module))
        if when == late
        for target in targets(module, node)
    ]


def is_kernels(module: str) -> bool:
    return module.split(".")[0] == "jit"


def layer(module: str) -> int:
    (found,) = (i for i, names in enumerate(LAYERS) if module.split(".")[0] in names)
    return found


@pytest.mark.slow("imports every module in an interpreter of its own")
def test_no_import_looks_up():
    for late in (False, True):
        found = arrows(late)
        assert len(found) > (5 if late else 300)
        up = {(a, b) for a, b in found if layer(a) < layer(b)}
        assert up == (LATE if late else set())


def test_kernels_import_only_kernels():
    """And all imports within the package are relative, so that they are found here."""
    found = {*arrows(late=False), *arrows(late=True)}
    assert {(a, b) for a, b in found if is_kernels(a) and not is_kernels(b)} == set()
    assert not any(ABSOLUTE.search(path.read_text()) for path in MODULES.values())


def test_an_extra_imports_no_other():
    found = {*arrows(late=False), *arrows(late=True)}
    pairs = {(a, b) for a, b in found if a.startswith("extras.") and b.startswith("extras.")}
    assert len(pairs) > 5
    assert {(a, b) for a, b in pairs if a.split(".")[1] != b.split(".")[1]} == set()


@pytest.mark.slow("imports every module in an interpreter of its own")
def test_the_rest_works_without_extras(tmp_path):
    """Delete both folders in a copy, import all that is left, and ask for an extra."""
    without = shutil.ignore_patterns("extras", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "simpler_ref", ignore=without)
    shutil.copytree(PACKAGE.parent / "tests", tmp_path / "tests", ignore=without)
    left = [name for name in MODULES if name.split(".")[0] != "extras"]
    program = f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
# an editable installation would find extras among the sources
sys.meta_path[:] = [one for one in sys.meta_path if "editable" not in repr(one)]
for name in {left!r}:
    importlib.import_module(f"simpler_ref.{{name}}".rstrip("."))
assert not [name for name in sys.modules if name.startswith("simpler_ref.extras")]
import simpler_ref, tests.spec_rules
assert simpler_ref.__path__ == [{str(tmp_path / "simpler_ref")!r}]
with simpler_ref.Worker(3, num_sub_workers=1, child_mode="thread") as w:
    w.run(lambda orch, *_: None)
    config = simpler_ref.CallConfig(enable_dep_gen=1, output_prefix={str(tmp_path / "out")!r})
    try:
        w.run(lambda orch, *_: None, None, config)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},  # nothing is compiled for a few calls
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("simpler_ref has no diagnostics here: install the package again")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("late", [False, True])
def test_no_modules_import_each_other(late):
    """Those of a folder not even late."""
    graph: dict[str, set[str]] = {}
    for module, target in (*arrows(late=False), *(arrows(late=True) if late else ())):
        if target != module and (not late or module.split(".")[0] == target.split(".")[0]):
            graph.setdefault(module, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1]))


# ---------------------------------------------------------------- who knows where a word stands
WORDS = {
    name for one in L.RECORDS.values() for field in one.fields for name in (field.name, *field.also)
}
SHARED = {"TENSOR_WORDS", "SCALAR_WORDS", "SCALAR_KIND", "round_up"}
"""Of arguments as they travel, which submit and mailbox share; and what computes sizes."""


def is_place(name: str) -> bool:
    """Say whether a name of the layout says where something stands, and not what it may be."""
    if name in SHARED:
        return False
    if name in {*WORDS, "LINE", "ORCH", "SCHED"} or name.startswith(("A_", "MAILBOX_OFF_")):
        return True
    return name.endswith("_WORDS") or not isinstance(getattr(L, name), int | float | tuple)


PLACES_USED = {
    *(("engine.memory", one) for one in ("plan", "PRIVATE", "initialise")),
    ("model.enums", "MAILBOX_OFF_ERROR_MSG"),  # a name of the documents, which programs import
}
INDEXING = {"workers.loop"}
"""What indexes the engine's words by what it was told: a worker's leaf word."""


def knows_places(module: str) -> bool:
    return is_kernels(module) or module.startswith("engine.view")


def layout_names(tree: ast.Module) -> set[str]:
    """Return the names of the layout that a module uses."""
    aliases, found = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            if (node.module or "").endswith("layout"):
                found |= {one.name for one in node.names}
            aliases |= {one.asname or one.name for one in node.names if one.name == "layout"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in aliases:
            found.add(node.attr)
    return found


def test_only_the_kernels_and_the_view_know_where_a_word_stands():
    used = {
        (module, name)
        for module in MODULES
        if not knows_places(module)
        for name in layout_names(tree(module))
    }
    assert len(used) > 100
    places = {(module, name) for module, name in used if is_place(name)}
    assert places == PLACES_USED, "have the view offer what is wanted of these"


def test_only_the_kernels_and_the_view_index_the_engines_words():
    found = {
        module
        for module in MODULES
        if not knows_places(module)
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Subscript)
        and (getattr(node.value, "attr", None) or getattr(node.value, "id", "")) in ("mem", "_mem")
    }
    assert found == INDEXING
