"""The examples: what they print, that they notice a wrong result, and what they refuse."""

import importlib
import importlib.util
import os
import pty
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support import sample
from tests.system.programs import Fork

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
DEADLINE_S = 100


@pytest.fixture
def run(capfd):
    """Return what runs an example away from the project's directory, and says how it ended.

    It runs in a fork, which has no need to import the package. `change` is a line of Python that changes
    something in the module `example` before.
    """

    def run_example(name, *options, change=""):
        def be_example():
            os.chdir(tempfile.gettempdir())
            sys.path.insert(0, str(EXAMPLES))
            sys.argv = [name, *options]
            example = importlib.import_module(name.removesuffix(".py"))
            exec(change, {"example": example})
            assert not example.main()
            sys.stdout.flush()

        with Fork(be_example) as program:
            return program.wait(), *capfd.readouterr()

    return run_example


@pytest.fixture
def output_of(run):
    """Return what runs an example that must succeed without a word on stderr, and says what it prints."""

    def output(name, *options):
        code, out, err = run(name, *options)
        assert (code, err) == (0, "")
        return out

    return output


def output_for_a_stranger(name, *options):
    """Run an example that must succeed, as somebody does who has just installed the package."""
    command = [sys.executable, EXAMPLES / name, *options]
    where = tempfile.gettempdir()
    done = subprocess.run(command, capture_output=True, text=True, cwd=where, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_in_terminal(*command):
    """Run Python on a command in a terminal of its own; return its exit code and what it showed."""
    ours, theirs = pty.openpty()
    try:
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
        program = subprocess.Popen(
            [sys.executable, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # nobody holds the other end any more
            pass
        return program.wait(DEADLINE_S), shown.decode()
    finally:
        os.close(ours)


def figure(output, name):
    """Return the first number of the line that begins with `name`."""
    found = re.search(rf"^{re.escape(name)} +([\d.,e+-]+)", output, re.MULTILINE)
    assert found, f"no line {name!r} in:\n{output}"
    return float(found[1].replace(",", ""))


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------- the first programs
FIRST = ["first_calls.py", "first_program.py"]


def test_the_readme_has_the_first_programs_all_examples_and_no_dead_links():
    assert code_blocks("python") == [(EXAMPLES / name).read_text() for name in FIRST]
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert all(f"examples/{path.name})" in README for path in EXAMPLES.glob("*.py"))


def test_the_first_programs_print_what_the_readme_says():
    assert [output_for_a_stranger(name) for name in FIRST] == code_blocks("text")


# ---------------------------------------------------------------- calls, here and with other libraries
COUNTERPARTS = sorted(path.stem for path in (EXAMPLES / "counterparts").glob("*.py"))
LIBRARIES = {"futures": "concurrent.futures"}
"""Whose name is not that in the name of the counterpart's file."""
PAIRS_PAGE = (ROOT / "docs/howto/from-other-libraries.md").read_text()


def length(path):
    """Return how many lines a program has, without blank ones, imports and the text at its top."""
    lines = path.read_text().splitlines()[1:]
    return sum(bool(line) and not line.startswith(("import ", "from ")) for line in lines)


@pytest.mark.parametrize("name", sample(COUNTERPARTS, 3))
def test_a_counterpart_prints_what_the_example_prints(name, output_of):
    example, _, library = name.rpartition("_")
    path = EXAMPLES / "counterparts" / f"{name}.py"
    compile(path.read_text(), path, "exec")
    library = LIBRARIES.get(library, library)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; the program compiles")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, output_of(f"{example}.py")), done.stderr


def test_an_example_is_as_short_as_its_counterpart_and_the_page_has_the_figures():
    for name in COUNTERPARTS:
        example = name.rpartition("_")[0]
        own, other = (length(EXAMPLES / f"{p}.py") for p in (example, f"counterparts/{name}"))
        has_it_built_in = name == "image_filter_dask"
        assert own <= other or has_it_built_in, name
        row = rf"^\| `{example}` \| {own} \| .*\b{other}\b"
        assert re.search(row, PAIRS_PAGE, re.MULTILINE), name
        assert f"counterparts/{name}.py" in PAIRS_PAGE


# ---------------------------------------------------------------- the Gaussian process
@pytest.mark.parametrize(
    "sizes", sample([(400, 64, 2), (300, 100, 1), (90, 256, 3), (1500, 128, 2)], 1)
)
def test_the_gaussian_process_agrees_with_numpy_and_recognises_digits(sizes, output_of):
    size, tile, where = sizes
    out = output_of("gaussian_process.py", f"--size={size}", f"--tile={tile}", f"--workers={where}")
    rows, blocks = -(-size // tile), -(-360 // min(tile, 128))
    upper = rows * (rows - 1) // 2
    factorisation = rows + 2 * upper + rows * (rows - 1) * (rows - 2) // 6
    solves = 2 * (rows + upper)
    assert figure(out, "tasks") == rows + upper + factorisation + solves + 4 * rows * blocks
    assert figure(out, "edges") > 0
    assert figure(out, "rings 0 to 3 at their peak") > 0
    assert figure(out, "time") > 0
    assert figure(out, "plain numpy") > 0
    assert figure(out, "deviation from numpy") < 1e-10
    assert figure(out, "digits recognised") > 85
    assert figure(out, "always the commonest digit") < 15
    assert not set("\r\x1b━─") & set(out), "away from a terminal it prints plain lines"


def test_a_traced_gaussian_process_says_where_its_page_lies(tmp_path, output_of):
    file = tmp_path / "demo.trace"
    out = output_of("gaussian_process.py", "--size=100", "--tile=50", f"--trace={file}")
    assert f"open {file}.html in a browser" in out.replace("\n", " ")
    assert "potrf" in Path(f"{file}.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_gaussian_process_on_endpoints_does_too(output_of):
    out = output_of("gaussian_process.py", "--size=400", "--tile=64", "--endpoints=2")
    assert figure(out, "tasks") > 0
    assert figure(out, "tensors moved") > 0
    assert figure(out, "deviation from numpy") < 1e-10
    assert figure(out, "digits recognised") > 85


@pytest.mark.parametrize("where", ["", "--endpoints=2"])
@pytest.mark.parametrize("what", sample(["calls", "cholesky", "stencil", "training"], 1))
def test_programs_that_say_nothing_of_places_run_anywhere(what, where, output_of):
    out = output_of(f"spread_{what}.py", *where.split())
    assert re.match(r"as (numpy's|in numpy): True", out), out
    assert ("tensors moved: 0," in out) == (not where)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_endpoints_are_on_both_nodes_of_a_ray_cluster(output_of):
    out = output_of("ray_endpoints.py")
    assert "as in numpy" in out and "nodes: 2, moved between them: 8,000,000 bytes" in out


@pytest.mark.slow("runs the demonstration")
def test_in_a_terminal_the_gaussian_process_shows_how_far_it_is():
    code, shown = run_in_terminal(EXAMPLES / "gaussian_process.py", "--size", "400", "--tile", "64")
    assert code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"running ━+", text) and re.search(r"done ━+ (\d+)/\1 tasks", text)
    assert figure(re.sub(r"\r", "", text).replace("\n ", "\n"), "deviation from numpy") < 1e-10


def test_a_failing_step_of_the_gaussian_process_shows_the_worker_s_traceback(run):
    change = "example.NOISE_VARIANCE = -2.0"
    code, _, err = run("gaussian_process.py", "--size", "100", "--tile", "50", change=change)
    assert code == 1 and "in potrf" in err
    assert "the kernel matrix is not positive definite (row 1)" in err


def test_streaming_needs_no_more_than_its_rings_and_equals_numpy(output_of):
    batches, ring_mib = 12, 1
    out = output_of("streaming.py", f"--batches={batches}", f"--ring-mib={ring_mib}")
    rings = re.findall(r"^\d \(\w+\) +([\d.]+) MiB +([\d.]+) MiB +([\d.]+) MiB$", out, re.M)
    assert len(rings) == 3
    for through, peak, size in (map(float, ring) for ring in rings):
        assert 0 < peak <= size == ring_mib < through
    assert f"{batches} batches, {4 * batches} tasks" in out
    assert figure(out, "tasks alive at a time") < 4 * batches
    assert "memory taken by the run" in out
    assert re.search(r"^tones found at +\[100, 230\]", out, re.M)
    assert re.search(r"^equal to numpy, bit by bit +yes$", out, re.M)


NUMBER = r"([\d.e+-]+)"
RUNS = {
    "chips_vector_add.py --size=10001 --blocks=3": (
        "10001 elements on 2 chips, blocks: 3",
        r"numba +4 +2 +[\d.]+ ms +[\d.]+ ms +0\nC +4 +2 +[\d.]+ ms +[\d.]+ ms +0$",
        "equal to numpy: yes$",
    ),
    "nested_workers.py --rows=1000 --columns=6 --block=64 --workers=2 --top=thread": (
        "1000 × 6 numbers in 16 blocks, top: thread$",
        "tasks at level 4 +6, with 5 edges$",
        "tasks at level 3 +34, in 4 runs$",
        "processes that scaled +[2-4]$",
    ),
    "compiled_leaves.py --size=10001 --blocks=7": (
        "10001 values in 7 blocks, 13 tasks, 12 edges; equal to numpy: yes$",
    ),
    "recorded_graph.py --size=100 --parts=3 --steps=7": (
        "7 steps, 28 tasks from one recording; equal to numpy within 0.0001: yes$",
    ),
    "task_flow.py": (
        "1 task on the chip, wrong elements found two levels down: 0; equal to numpy: yes$",
    ),
    "scene_vector_add.py": (
        r"TestVectorAdd::small … passed, [\d.]+ ms\nTestVectorAdd::large … passed, [\d.]+ ms$",
        "2 passed, 0 failed$",
    ),
    "feed_forward.py --chips=3 --width=5 --hidden=7 --tokens=1 --batches=2": (
        "tasks +12, buffers from alloc included$",
        "edges +10$",
        f"between tasks, at most +{NUMBER}",
    ),
    "all_reduce.py --chips=3 --size=300001": (
        r"copies +[^\n]*\ndirect +[^\n]*\nring +[^\n]*$",
        "equal to numpy: yes$",
    ),
    "overlapping_domains.py --rows=2 --columns=2 --height=11 --width=7": (
        "domains: 4, each chip in 2$",
    ),
    "expert_parallel.py --chips=3 --tokens=7 --width=5": (
        r"expert 0: \d+ tokens\nexpert 1: \d+ tokens\nexpert 2: \d+ tokens$",
    ),
    "tensor_parallel.py --chips=3 --width=5 --hidden=7 --tokens=4 --layers=2": (
        "the same on every chip: yes$",
    ),
    "paged_attention.py --steps=6 --sequences=3 --heads=2 --length=40": (
        rf" *5 +\d+ +\d+ +\d+ +\d+ +{NUMBER} ms +{NUMBER}$",
    ),
    "divide_and_conquer.py": (r"the integral is 0\.503982, from 863 intervals$",),
    "many_in_a_call.py --tiles=6 --tile=9": (
        r"distance \d+ of 54 letters, 36 tasks, 60 edges; equal to numpy: yes$",
    ),
}
"""Commands, and lines that they print; each compares its result with that of numpy."""
QUICK = (
    *("scene_vector_add", "nested_workers", "compiled_leaves", "recorded_graph"),
    "chips_vector_add",
)
"""Of many examples, those that `make test` runs."""


@pytest.mark.parametrize(
    "command",
    [
        one if one.partition(".")[0] in QUICK else pytest.param(one, marks=pytest.mark.long)
        for one in RUNS
    ],
)
def test_an_example_agrees_with_numpy_and_says_what_it_did(command, output_of):
    out = output_of(*command.split())
    for line in RUNS[command]:
        assert re.search(f"^{line}", out, re.MULTILINE), out


REFUSED = {
    "gaussian_process.py --size=20000": "--size 20000 is too large: there are 12933 images",
    "gaussian_process.py --size=0": "argument --size: 0 is not a positive number",
    "gaussian_process.py --size=many": "argument --size: invalid number value: 'many'",
    "gaussian_process.py --size=1000 --tile=5": "give a --tile of at least 8",
    "gaussian_process.py --sise 10": "unrecognized arguments: --sise 10",
    "streaming.py --ring-mib=4096": "--ring-mib 4096 is too large",
    "nested_workers.py --rows=3": "--rows 3 is not enough: at least 4",
    "nested_workers.py --rows=1000 --block=1": "give a larger --block",
    "nested_workers.py --top=fiber": "argument --top: invalid choice: 'fiber'",
    "compiled_leaves.py --size=3 --blocks=4": "--blocks 4 is too many for 3 values",
    "recorded_graph.py --parts=101": "--parts 101 is too many: at most 100",
    "many_in_a_call.py --tiles=1 --tile=100001": "the texts are too long",
}


def test_wrong_options_are_explained(monkeypatch, capsys):
    """An example refuses them as it parses them: a process of its own would show the same, later."""
    for command, complaint in REFUSED.items():
        example, *options = command.split()
        monkeypatch.setattr(sys, "argv", [example, *options])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / example), run_name="__main__")
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (2, ""), command
        assert complaint in printed.err
