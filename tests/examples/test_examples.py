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
from typing import NamedTuple

import numpy as np
import pytest

from simpler_ref.jit.entries import entries

entries()  # bound here and now, so that no fork has to do it

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text()
DEADLINE_S = 100


class Done(NamedTuple):
    """A program that has ended."""

    returncode: int
    stdout: str
    stderr: str


def run(name, *options, change=""):
    """Run an example away from the project's directory; return what became of it.

    It runs in a fork, which has no need to import the package. `change` is a line of Python that changes
    something in the module `example` before.
    """
    places = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        os._exit(be_example(name, options, change, places))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    said = []
    for place in places:
        with place:
            place.seek(0)
            said.append(place.read())
    return Done(code, *said)


def be_example(name, options, change, places):
    """Do in a fork what a new interpreter does with an example; return its exit code."""
    for fd, place in enumerate(places, 1):
        os.dup2(place.fileno(), fd)
    sys.stdout, sys.stderr = (open(fd, "w", closefd=False) for fd in (1, 2))  # noqa: SIM115
    os.chdir(tempfile.gettempdir())
    sys.path.insert(0, str(EXAMPLES))
    sys.argv = [name, *options]
    try:
        example = importlib.import_module(name.removesuffix(".py"))
        exec(change, {"example": example})
        return example.main() or 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def output_of(name, *options):
    """Run an example that must succeed without a word on stderr; return what it prints."""
    done = run(name, *options)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def output_for_a_stranger(name, *options):
    """Run an example that must succeed, as somebody does who has just installed the package."""
    command = [sys.executable, EXAMPLES / name, *options]
    where = tempfile.gettempdir()
    done = subprocess.run(command, capture_output=True, text=True, cwd=where, timeout=DEADLINE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def sizes(names, short, *more, ids):
    """Parametrise over sizes: `make test` takes those of the first, `make test-long` all others too."""
    cases = [short, *(pytest.param(*values, marks=pytest.mark.long) for values in more)]
    return pytest.mark.parametrize(names, cases, ids=ids)


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


def test_the_programs_in_the_readme_are_the_examples():
    assert code_blocks("python") == [(EXAMPLES / name).read_text() for name in FIRST]


def test_the_first_programs_print_what_the_readme_says():
    assert [output_for_a_stranger(name) for name in FIRST] == code_blocks("text")


def test_every_file_that_the_readme_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_example_is_in_the_readme():
    assert [
        path.name for path in EXAMPLES.glob("*.py") if f"examples/{path.name})" not in README
    ] == []


# ---------------------------------------------------------------- calls, here and with other libraries
COUNTERPARTS = sorted(path.stem for path in (EXAMPLES / "counterparts").glob("*.py"))
LIBRARIES = {"futures": "concurrent.futures"}
"""Whose name is not that in the name of the counterpart's file."""
PAIRS_PAGE = (ROOT / "docs/howto/from-other-libraries.md").read_text()


def length(path):
    """Return how many lines a program has, without blank ones, imports and the text at its top."""
    lines = path.read_text().splitlines()[1:]
    return sum(bool(line) and not line.startswith(("import ", "from ")) for line in lines)


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_a_counterpart_prints_what_the_example_prints(name):
    example, _, library = name.rpartition("_")
    path = EXAMPLES / "counterparts" / f"{name}.py"
    compile(path.read_text(), path, "exec")
    library = LIBRARIES.get(library, library)
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; the program compiles")
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout) == (0, output_of(f"{example}.py")), done.stderr


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_an_example_is_as_short_as_its_counterpart_and_the_page_has_the_figures(name):
    example = name.rpartition("_")[0]
    own, other = (length(EXAMPLES / path) for path in (f"{example}.py", f"counterparts/{name}.py"))
    has_it_built_in = name == "image_filter_dask"
    assert own <= other or has_it_built_in
    assert re.search(rf"^\| `{example}` \| {own} \| .*\b{other}\b", PAIRS_PAGE, re.MULTILINE)


def test_every_counterpart_is_on_the_page():
    assert [name for name in COUNTERPARTS if f"counterparts/{name}.py" not in PAIRS_PAGE] == []


def test_k_means_agrees_with_numpy():
    rng = np.random.default_rng(0)
    truth = np.array([[1, 1], [9, 1], [1, 9], [9, 9]])
    points = truth[rng.integers(4, size=20_000)] + rng.standard_normal((20_000, 2))
    centres = truth + 2.0
    for _ in range(10):
        nearest = np.linalg.norm(points[:, None] - centres, axis=2).argmin(1)
        centres = np.array([points[nearest == one].mean(0) for one in range(4)])
    assert output_of("k_means.py") == f"{centres.round(1).tolist()}\n"


# ---------------------------------------------------------------- the Gaussian process
@sizes(
    ("size", "tile", "workers"),
    (400, 64, 2),
    (300, 100, 1),
    (90, 256, 3),
    (1500, 128, 2),
    ids=["ragged tiles", "one worker", "a single tile", "moved images"],
)
def test_the_gaussian_process_agrees_with_numpy_and_recognises_digits(size, tile, workers):
    out = output_of(
        "gaussian_process.py", f"--size={size}", f"--tile={tile}", f"--workers={workers}"
    )
    rows = -(-size // tile)
    blocks = -(-360 // min(tile, 128))
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


def test_a_traced_gaussian_process_says_where_its_page_lies(tmp_path):
    file = tmp_path / "demo.trace"
    out = output_of("gaussian_process.py", "--size=100", "--tile=50", f"--trace={file}")
    assert f"open {file}.html in a browser" in out.replace("\n", " ")
    assert "potrf" in Path(f"{file}.html").read_text(encoding="utf-8")


@sizes(
    ("size", "tile", "endpoints"),
    (400, 64, 2),
    (300, 256, 3),
    ids=["two endpoints", "more endpoints than columns"],
)
def test_the_gaussian_process_on_endpoints_does_too(size, tile, endpoints):
    out = output_of(
        "gaussian_process.py", f"--size={size}", f"--tile={tile}", f"--endpoints={endpoints}"
    )
    assert figure(out, "tasks") > 0
    assert figure(out, "tensors moved") > 0
    assert figure(out, "deviation from numpy") < 1e-10
    assert figure(out, "digits recognised") > 85


@pytest.mark.parametrize("where", [(), ("--endpoints=2",)], ids=["here", "two endpoints"])
@pytest.mark.parametrize("what", ["cholesky", "stencil", "training", "calls"])
def test_programs_that_say_nothing_of_places_run_anywhere(what, where):
    out = output_of(f"spread_{what}.py", *where)
    assert re.match(r"as (numpy's|in numpy): True", out), out
    assert ("tensors moved: 0," in out) == (not where)


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_endpoints_are_on_both_nodes_of_a_ray_cluster():
    out = output_of("ray_endpoints.py")
    assert "as in numpy" in out
    assert "nodes: 2, moved between them: 8,000,000 bytes" in out


def test_in_a_terminal_the_gaussian_process_shows_how_far_it_is():
    code, shown = run_in_terminal(EXAMPLES / "gaussian_process.py", "--size", "400", "--tile", "64")
    assert code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert re.search(r"running ━+", text)
    assert re.search(r"done ━+ (\d+)/\1 tasks", text)
    assert figure(re.sub(r"\r", "", text).replace("\n ", "\n"), "deviation from numpy") < 1e-10


def test_a_failing_step_of_the_gaussian_process_shows_the_worker_s_traceback():
    change = "example.NOISE_VARIANCE = -2.0"
    done = run("gaussian_process.py", "--size", "100", "--tile", "50", change=change)
    assert done.returncode == 1
    assert "in potrf" in done.stderr
    assert "the kernel matrix is not positive definite (row 1)" in done.stderr


# ---------------------------------------------------------------- streaming
@sizes(("batches", "ring_mib"), (12, 1), (40, 4), ids=["small rings", "usual rings"])
def test_streaming_needs_no_more_than_its_rings_and_equals_numpy(batches, ring_mib):
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


# ---------------------------------------------------------------- chips, and Workers below Workers
@sizes(("size", "blocks"), (10_001, 3), (1, 8), ids=["ragged blocks", "one element"])
def test_chips_add_vectors_with_kernels_in_python_and_in_c(size, blocks):
    out = output_of("chips_vector_add.py", f"--size={size}", f"--blocks={blocks}")
    assert f"{size} elements on 2 chips, blocks: {blocks}" in out
    rows = re.findall(r"^(\w+) +(\d+) +(\d+) +[\d.]+ ms +([\d.]+) ms +(\d+)$", out, re.M)
    assert [(name, tasks, edges, wrong) for name, tasks, edges, _, wrong in rows] == [
        ("numba", "4", "2", "0"),
        ("C", "4", "2", "0"),
    ]
    assert re.search(r"^equal to numpy: yes$", out, re.M)


@sizes(
    ("chips", "width", "hidden", "tokens", "batches"),
    (3, 5, 7, 1, 2),
    (2, 32, 64, 8, 3),
    (1, 8, 8, 4, 1),
    ids=["ragged slices", "two chips", "one chip"],
)
def test_a_layer_over_chips_agrees_with_numpy(chips, width, hidden, tokens, batches):
    wanted = {"chips": chips, "width": width, "hidden": hidden, "tokens": tokens}
    options = [f"--{name}={value}" for name, value in wanted.items()]
    out = output_of("feed_forward.py", *options, f"--batches={batches}")
    assert figure(out, "tasks") == batches * (3 + chips)
    assert figure(out, "edges") == batches * (2 + chips)
    assert figure(out, "weights on each chip") >= 0
    assert figure(out, "between tasks, at most") > 0
    assert figure(out, "deviation from numpy") < 1e-5


@sizes(("chips", "size"), (3, 300_001), (2, 1), (1, 5), ids=["ragged", "one element", "one chip"])
def test_chips_add_up_their_arrays_in_both_ways(chips, size):
    out = output_of("all_reduce.py", f"--chips={chips}", f"--size={size}")
    rows = re.findall(r"^(\w+) +[\d.]+ ms +[\d.]+ × the copies$", out, re.M)
    assert rows == ["copies", "direct", "ring"]
    assert re.search(r"^equal to numpy: yes$", out, re.M)


@sizes(
    ("rows", "columns", "height", "width"),
    (2, 2, 11, 7),
    (1, 3, 7, 5),
    (3, 1, 3, 1),
    ids=["ragged tiles", "one row", "one column"],
)
def test_a_matrix_on_a_grid_agrees_with_numpy(rows, columns, height, width):
    options = [f"--rows={rows}", f"--columns={columns}", f"--height={height}", f"--width={width}"]
    out = output_of("overlapping_domains.py", *options)
    assert figure(out, "domains:") == rows + columns
    assert figure(out, "deviation from numpy:") < 1e-5


@sizes(
    ("chips", "tokens", "width"),
    (3, 7, 5),
    (4, 1, 1),
    (1, 3, 2),
    ids=["several", "one token each", "one chip"],
)
def test_experts_on_chips_agree_with_numpy(chips, tokens, width):
    options = [f"--chips={chips}", f"--tokens={tokens}", f"--width={width}"]
    out = output_of("expert_parallel.py", *options)
    shares = re.findall(r"^expert \d+: (\d+) tokens$", out, re.M)
    assert (len(shares), sum(map(int, shares))) == (chips, chips * tokens)
    assert figure(out, "deviation from numpy:") < 1e-5


@sizes(
    ("chips", "width", "hidden", "tokens", "layers"),
    (3, 5, 7, 4, 2),
    (2, 32, 64, 1, 3),
    (1, 8, 8, 4, 1),
    ids=["ragged slices", "two chips", "one chip"],
)
def test_layers_that_chips_add_up_agree_with_numpy(chips, width, hidden, tokens, layers):
    wanted = {"chips": chips, "width": width, "hidden": hidden, "tokens": tokens}
    options = [f"--{name}={value}" for name, value in wanted.items()]
    out = output_of("tensor_parallel.py", *options, f"--layers={layers}")
    assert f"tasks {layers}, edges {layers - 1}" in out
    assert re.search(r"^the same on every chip: yes$", out, re.M)
    assert figure(out, "deviation from numpy:") < 1e-5


@sizes(
    ("steps", "sequences", "heads", "length"),
    (6, 3, 2, 40),
    (3, 2, 1, 1),
    (20, 1, 3, 18),
    ids=["several", "of a single token", "across a page's end"],
)
def test_paged_attention_agrees_with_numpy_at_every_step(steps, sequences, heads, length):
    options = [f"--steps={steps}", f"--sequences={sequences}", f"--heads={heads}"]
    out = output_of("paged_attention.py", *options, f"--length={length}")
    number = r"([\d.e+-]+)"
    rows = re.findall(rf"^ *(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +{number} ms +{number}$", out, re.M)
    assert [int(row[0]) for row in rows] == list(range(steps))
    most = sequences * -(-length // 16)
    for _, tokens, pages, _, tasks, _, deviation in rows:
        assert int(tokens) <= 16 * int(pages) <= 16 * most
        assert int(tasks) == 2 * (2 * sequences + int(pages))
        assert float(deviation) < 1e-5
    ended = [int(row[3]) for row in rows]
    if length == 1:
        assert ended == [sequences * step for step in range(steps)]
    assert figure(out, "deviation from numpy:") == max(float(row[6]) for row in rows)


@pytest.mark.parametrize("top", ["process", "thread"])
@sizes(
    ("rows", "columns", "block", "workers", "blocks"),
    (1000, 6, 64, 2, 16),
    (5, 1, 9, 1, 2),
    ids=["ragged blocks", "one block each"],
)
def test_nested_workers_agree_with_numpy(rows, columns, block, workers, blocks, top):
    options = [f"--rows={rows}", f"--columns={columns}", f"--block={block}", f"--top={top}"]
    out = output_of("nested_workers.py", *options, f"--workers={workers}")
    assert f"{rows} × {columns} numbers in {blocks} blocks, top: {top}" in out
    assert figure(out, "tasks at level 4") == 6
    assert figure(out, "tasks at level 3") == 2 * blocks + 2
    assert 2 <= figure(out, "processes that scaled") <= 2 * workers
    assert figure(out, "deviation from numpy") < 1e-4


# ---------------------------------------------------------------- compiled and recorded
@sizes(
    ("size", "blocks"), (10_001, 7), (5, 5), (9, 1), ids=["ragged blocks", "single", "one block"]
)
def test_a_histogram_of_compiled_leaves_agrees_with_numpy(size, blocks):
    assert output_of("compiled_leaves.py", f"--size={size}", f"--blocks={blocks}") == (
        f"{size} values in {blocks} blocks, {2 * blocks - 1} tasks, {2 * blocks - 2} edges; "
        "equal to numpy: yes\n"
    )


@sizes(("size", "parts", "steps"), (100, 3, 7), (2, 2, 1), ids=["ragged parts", "one step"])
def test_a_graph_recorded_once_and_run_for_each_step_agrees_with_numpy(size, parts, steps):
    options = [f"--size={size}", f"--parts={parts}", f"--steps={steps}"]
    assert output_of("recorded_graph.py", *options) == (
        f"{steps} steps, {steps * (parts + 1)} tasks from one recording; "
        "equal to numpy within 0.0001: yes\n"
    )


def test_compiled_orchestration_computes_the_edit_distance_that_numpy_does():
    assert re.fullmatch(
        r"distance \d+ of 54 letters, 36 tasks, 60 edges; equal to numpy: yes\n",
        output_of("compiled_orchestration.py", "--tiles=6", "--tile=9"),
    )


def test_the_task_flow_of_the_documents_runs_from_end_to_end():
    assert output_of("task_flow.py") == (
        "1 task on the chip, wrong elements found two levels down: 0; equal to numpy: yes\n"
    )


def test_a_scene_passes_in_all_its_cases():
    assert re.fullmatch(
        r"TestVectorAdd::small … passed, [\d.]+ ms\nTestVectorAdd::large … passed, [\d.]+ ms\n"
        r"2 passed, 0 failed\n",
        output_of("scene_vector_add.py"),
    )


# ---------------------------------------------------------------- results that are wrong
WRONG = {
    "a count of words": (
        "word_count.py",
        "example.words_of = lambda text: example.Counter(text.split()[1:])",
        "AssertionError",
    ),
    "an image": (
        "image_filter.py",
        "example.median_filter, usual = lambda x, size: usual(x, size) + (x.shape[0] < 500), "
        "example.median_filter",
        "AssertionError",
    ),
    "an estimate": ("monte_carlo.py", "example.hits = lambda seed: 1", "AssertionError"),
    "a sweep": (
        "parameter_sweep.py",
        "usual = example.sweep\n"
        "example.sweep = lambda *x: {k: v / 2 for k, v in usual(*x).items()}",
        "AssertionError",
    ),
    "an integral": (
        "dynamic_graph.py",
        "usual = example.integrate\nexample.integrate = lambda low, high: usual(low, high / 2)",
        "AssertionError",
    ),
    "centres": (
        "k_means.py",
        "example.STEPS = 0",
        "AssertionError",
    ),
    "a scene": (
        "scene_vector_add.py",
        "example.TestVectorAdd.CALLABLE['callables'][1]['callable'] = lambda args: None",
        r"1 of 1 elements differ; the first is \[0\]: got 0.0, not 136.0",
    ),
    "escape times": (
        "escape_times.py",
        "example.image, usual = lambda w: usual(w) + 1, example.image",
        "AssertionError",
    ),
    "a factorisation": (
        "tiled_cholesky.py",
        "example.subtract = lambda *x: None",
        "AssertionError",
    ),
    "a Gaussian process that deviates": (
        "gaussian_process.py --size=100 --tile=50",
        "example.TOLERANCE, usual = 1e-8, example.plain_numpy\n"
        "example.plain_numpy = lambda *data: [part + 1e-6 for part in usual(*data)]",
        "deviates too much",
    ),
    "a Gaussian process without numbers": (
        "gaussian_process.py --size=100 --tile=50",
        "example.plain_numpy = lambda images, *rest: (float('nan'), float('nan'))",
        "deviates too much",
    ),
    "a sum": (
        "chips_vector_add.py --size=500",
        "example.ADD_IN_C = example.ADD_IN_C.replace('x[i] + y[i]', 'x[i] - y[i]')",
        r"\nnumba .* 0\nC .* 500\n(.|\n)*equal to numpy: NO\n",
    ),
    "a layer": (
        "feed_forward.py --width=8 --hidden=8 --batches=1",
        "usual = example.plain_numpy\nexample.plain_numpy = lambda *data: usual(*data) + 1e-3",
        "deviates too much",
    ),
    "an all-reduce": (
        "all_reduce.py --size=9",
        "example.WAYS['direct'] = example.copy",
        r"equal to numpy: NO\n\Z",
    ),
    "a matrix on a grid": (
        "overlapping_domains.py --height=5 --width=4",
        "example.plain_numpy = lambda matrix, vector: matrix @ vector + 1",
        "deviates too much",
    ),
    "experts": (
        "expert_parallel.py --tokens=3 --width=2",
        "usual = example.plain_numpy\n"
        "example.plain_numpy = lambda x, choices, *rest: usual(x, (choices + 1) % 3, *rest)",
        "deviates too much",
    ),
    "layers": (
        "tensor_parallel.py --width=8 --hidden=8",
        "usual = example.plain_numpy\nexample.plain_numpy = lambda x, layers: usual(x, layers[:3])",
        "deviates too much",
    ),
    "attention": (
        "paged_attention.py --steps=1 --sequences=1 --length=5",
        "example.Sequence.attention = lambda self, query: query",
        "deviates too much",
    ),
    "nested Workers": (
        "nested_workers.py --rows=20 --columns=3",
        "example.plain_numpy = lambda matrix: matrix",
        "deviates too much",
    ),
    "a histogram": (
        "compiled_leaves.py --size=9 --blocks=3",
        "example.np.bincount = lambda *x, **y: 0",
        r"NO\n\Z",
    ),
    "a recording": (
        "recorded_graph.py --size=9 --steps=2",
        "example.plain_numpy = lambda x, *y: x",
        r"NO\n\Z",
    ),
    "compiled orchestration": (
        "compiled_orchestration.py --tiles=2",
        "example.plain_numpy = lambda *x: -1",
        r"NO\n\Z",
    ),
    "a task flow": (
        "task_flow.py",
        "usual = example.add_on_a_chip\nexample.add_on_a_chip = lambda a, b, c: usual(b, b, c)",
        r"NO\n\Z",
    ),
}
SLOW = ("a Gaussian process without numbers", "compiled orchestration", "attention")


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.long] * (what in SLOW)) for what in WRONG]
)
def test_a_wrong_result_is_reported(what):
    command, change, words = WRONG[what]
    done = run(*command.split(), change=change)
    assert done.returncode == 1
    assert re.search(words, done.stdout + done.stderr), done


@pytest.mark.long
@pytest.mark.parametrize("command", {command: None for command, *_ in WRONG.values()})
def test_every_example_runs_for_a_stranger(command):
    assert output_for_a_stranger(*command.split())


# ---------------------------------------------------------------- wrong options
@pytest.mark.parametrize(
    ("example", "options", "complaint"),
    [
        ("gaussian_process", "--size=20000", "--size 20000 is too large: there are 12933 images"),
        ("gaussian_process", "--size=0", "argument --size: 0 is not a positive number"),
        ("gaussian_process", "--size=many", "argument --size: invalid number value: 'many'"),
        ("gaussian_process", "--size=1000 --tile=5", "give a --tile of at least 8"),
        ("gaussian_process", "--workers=-1", "argument --workers: -1 is not a positive number"),
        ("gaussian_process", "--sise 10", "unrecognized arguments: --sise 10"),
        ("streaming", "--batches=0", "argument --batches: 0 is not a positive number"),
        ("streaming", "--ring-mib=4096", "--ring-mib 4096 is too large"),
        ("chips_vector_add", "--size=0", "argument --size: 0 is not a positive number"),
        ("feed_forward", "--chips=17", "--chips 17 is too many: at most 16"),
        ("feed_forward", "--chips=3 --hidden=2", "and one per hidden column"),
        ("all_reduce", "--chips=17", "--chips 17 is too many: at most 16"),
        ("overlapping_domains", "--rows=5 --columns=4", "5 × 4 chips are too many: at most 16"),
        ("overlapping_domains", "--height=3", "give every chip an element of the result"),
        ("expert_parallel", "--chips=17", "--chips 17 is too many: at most 16"),
        ("tensor_parallel", "--chips=3 --hidden=2", "and one per hidden column"),
        ("paged_attention", "--length=-1", "argument --length: -1 is not a positive number"),
        ("nested_workers", "--rows=3", "--rows 3 is not enough: at least 4"),
        ("nested_workers", "--rows=1000 --block=1", "give a larger --block"),
        ("nested_workers", "--top=fiber", "argument --top: invalid choice: 'fiber'"),
        ("compiled_leaves", "--size=3 --blocks=4", "--blocks 4 is too many for 3 values"),
        ("recorded_graph", "--parts=101", "--parts 101 is too many: at most 100"),
        ("compiled_orchestration", "--tiles=1 --tile=100001", "the texts are too long"),
    ],
)
def test_wrong_options_are_explained(monkeypatch, capsys, example, options, complaint):
    """An example refuses them as it parses them: a process of its own would show the same, later."""
    monkeypatch.setattr(sys, "argv", [example, *options.split()])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXAMPLES / f"{example}.py"), run_name="__main__")
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    assert complaint in printed.err
