"""The pages tell the truth: their examples run, tables match the code, examples import public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import pydoc
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import simpler_ref
from simpler_ref.engine import memory
from simpler_ref.jit import layout as L
from tests import spec_rules
from tests.conformance.orchestrator.test_api import DOCUMENTED
from tests.spec_rules import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
DEADLINE_S = 600.0
"""A guard against hangs, not a measurement."""


@pytest.fixture(autouse=True)
def _kept_workers():
    """Close what the backend of joblib keeps for the next program of a page."""
    yield
    if backend := sys.modules.get("simpler_ref.adapters.joblib_backend"):
        backend.close()


# ---------------------------------------------------------------- examples
class Block(NamedTuple):
    """A fenced block of a page, and the block of output right after it, if there is one."""

    line: int
    info: str
    text: str
    output: str | None


def fenced(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, each with the output that the page says it has.

    An output block follows its program with nothing but blank lines between, or with one paragraph
    that ends in a colon. Its language is ``output``, ``text`` or none.
    """
    blocks: list[Block] = []
    between: list[str] = []
    fence, info, start, body = "", "", 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        opening = re.fullmatch(r"(`{3,}) *(.*?) *", line)
        if not fence and opening:
            fence, info, start, body = opening[1], opening[2], number, []
        elif not fence:
            between.append(line)
        elif line.rstrip() == fence:
            fence = ""
            words = "\n".join(between).strip()
            announced = not words or (words.endswith(":") and "\n\n" not in words)
            if info in ("output", "text", "") and blocks and announced and is_program(blocks[-1]):
                blocks[-1] = blocks[-1]._replace(output="\n".join(body))
            else:
                blocks.append(Block(start, info, "\n".join(body), None))
            between = []
        else:
            body.append(line)
    assert not fence, f"{page.name}: the block of line {start} has no end"
    return blocks


def is_program(block: Block) -> bool:
    return block.info == "python" or block.info.startswith("{literalinclude}")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def same(printed: str, promised: str) -> bool:
    return printed.split() == promised.split()


def with_examples():
    """Yield each page with examples."""
    for page in PAGES:
        if any(block.info == "python" for block in fenced(page)):
            starts_endpoints = page.stem == "endpoints"  # takes longer than all others together
            yield pytest.param(page, marks=[pytest.mark.long] * starts_endpoints, id=name(page))


PROGRAMS = [
    (page, block)
    for page in PAGES
    for block in fenced(page)
    if block.info.startswith("{literalinclude}")
    and block.info.endswith(".py")
    and "/counterparts/" not in block.info  # with other libraries: tests/examples runs what it can
]


@pytest.mark.parametrize("page", [*with_examples()])
@pytest.mark.slow("runs the programs of a page one after another")
def test_every_example_on_a_page_runs_and_prints_what_it_says(page, capfd, tmp_path, monkeypatch):
    (tmp_path / "spec").symlink_to(Path(__file__).parents[2] / "spec")
    monkeypatch.chdir(tmp_path)  # for files that examples write; some read those of spec/
    namespace = {"__name__": "__main__"}  # one for the page: later examples build on earlier ones
    for block in fenced(page):
        if block.info != "python":
            continue
        code = compile("\n" * block.line + block.text, name(page), "exec", dont_inherit=True)
        exec(code, namespace)
        printed = capfd.readouterr().out
        assert same(printed, block.output or ""), f"line {block.line} prints\n{printed}"


def test_every_how_to_shows_what_a_program_prints_and_says_what_goes_wrong():
    for page in DOCS.glob("howto/*.md"):
        shows = any(block.info == "python" and block.output for block in fenced(page))
        assert shows, name(page)
        assert "\n## What goes wrong" in page.read_text(), name(page)


@pytest.mark.parametrize(
    ("page", "block"), PROGRAMS, ids=lambda x: name(x) if isinstance(x, Path) else Path(x.info).name
)
def test_every_program_shown_on_a_page_prints_what_the_page_says(page, block, capfd, monkeypatch):
    program = (page.parent / block.info.split()[1]).resolve()
    monkeypatch.setattr(sys, "argv", [str(program)])
    try:
        runpy.run_path(str(program), run_name="__main__")
    except SystemExit as end:
        assert not end.code
    printed = capfd.readouterr()
    assert printed.err == ""
    assert block.output is not None, f"{name(page)} does not say what {program.name} prints"
    assert same(printed.out, block.output), printed.out


# ---------------------------------------------------------------- what examples import
PUBLIC_MODULES = (
    *("worker", "orchestrator", "task_interface", "callable_identity", "remote_l3_protocol"),
    *("errors", "native_chip", "remote", "stepping", "extras.ray_fleet", "extras.scenes"),
)


def imports(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of every import of a file; no name for ``import module``."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
    return found


def is_public(module: str, what: str) -> bool:
    """Say whether a program may import this from the package."""
    if module == "simpler_ref":
        return what == "" or what in simpler_ref.__all__
    _, short = module.split(".", 1)
    if short not in PUBLIC_MODULES:
        return False
    return what == "" or (
        not what.startswith("_") and hasattr(importlib.import_module(module), what)
    )


def test_examples_import_only_public_names():
    hidden = [
        (path.name, module, what)
        for path in (ROOT / "examples").glob("*.py")
        for module, what in imports(path)
        if module.split(".")[0] == "simpler_ref" and not is_public(module, what)
    ]
    assert hidden == []


# ---------------------------------------------------------------- names of the engine's words
WORD = re.compile(
    r"`([SREWA]_[A-Z_]+|[A-Z]+_(?:CORE|NS|THREAD|DEPTH|HEAD|PUSHED|TAKEN|BASE|STACK))`"
)


def test_words_of_the_engine_that_a_page_names_exist():
    # the times that Python chooses are beside the engine's memory
    known = {*vars(memory), *vars(L)}
    named = {page: set(WORD.findall(page.read_text())) for page in PAGES}
    assert sum(map(bool, named.values())) > 5
    assert {name(page): words - known for page, words in named.items() if words - known} == {}


def test_the_table_of_modules_has_each_of_them_once():
    page, package = (DOCS / "architecture.md").read_text(), ROOT / "simpler_ref"
    table = page[page.index("## The modules") : page.index("(one-task)=")]
    there = [*package.rglob("*.py"), *package.rglob("*.c")]
    modules = [one.relative_to(package).as_posix() for one in there if one.name != "__init__.py"]
    assert sorted(re.findall(r"`([\w/]+\.(?:py|c))`", table)) == sorted(modules)


def test_every_field_of_a_slot_that_the_documents_have_is_in_the_table():
    page = (DOCS / "architecture.md").read_text()
    table = page[page.index("### `TaskSlotState`") : page.index("### Ring, Scope, TensorMap")]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| `")]
    fields = {field for row in rows for field in re.findall(r"`(\w+)", row[0])}
    assert fields >= DOCUMENTED | {"fanout_mu"}


GROUPS = spec_rules.read_groups()


def test_a_docstring_names_its_rules_last():
    for path in (ROOT / "simpler_ref").rglob("*.py"):
        if "jit" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                *before, _ = (ast.get_docstring(node) or "").split("\n\n")
                assert spec_rules.mentioned("\n\n".join(before), GROUPS) == set(), (path, node)


def shown_classes() -> list[type]:
    """Return the classes that the API page shows, and those that the package exports."""
    page = (DOCS / "api.md").read_text()
    paths = re.findall(r"^\.\. auto(?:class|exception):: ([\w.]+)", page, re.M)
    found = {getattr(simpler_ref, one) for one in simpler_ref.__all__}
    found |= {pydoc.locate(one) for one in paths}
    return sorted((one for one in found if isinstance(one, type)), key=lambda one: one.__qualname__)


def test_whatever_users_see_of_a_class_has_a_text():
    # without one it is missing on the API page, and in help()
    classes = shown_classes()
    assert len(classes) > 50
    silent = [
        f"{one.__qualname__}.{member}"
        for one in classes
        for base in one.__mro__
        if base.__module__.startswith("simpler_ref")
        for member, value in vars(base).items()
        if not member.startswith("_")
        and (inspect.isroutine(value) or isinstance(value, property | staticmethod | classmethod))
        and not inspect.getdoc(getattr(one, member))
        and f"\n{member} : " not in (inspect.getdoc(base) or "")
    ]
    assert silent == []


@pytest.mark.long  # as make docs does
@pytest.mark.timeout(DEADLINE_S)
def test_the_pages_build_without_a_warning(tmp_path):
    options = ["-W", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
