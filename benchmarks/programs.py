"""Takes the example programs and their counterparts with other libraries in turns; prints ratios.

Each program runs in a process of its own, on more data than in the examples. Its work is timed several
times, of which the shortest counts: other programs can only make it longer. Starting workers and making
data are not part of it. The environments are those of the peers.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from peers.catalogue import PEERS
from peers.environments import ROOT, Environments

EXAMPLES = ROOT / "examples"
ROUNDS, REPEATS = 3, 5
"""Processes of each program, and how often each does its work; the shortest time counts."""
TIMEOUT_S = 300


class Program(NamedTuple):
    """An example that has counterparts."""

    name: str
    function: str
    """What does the work: it is timed."""
    sizes: dict[str, object]
    """The module's constants that are changed."""
    others: tuple[str, ...]


PROGRAMS = [
    Program("word_count", "count_words", {"TEXTS": 5_000}, ("joblib",)),
    Program("image_filter", "denoised", {"SIZE": 4096}, ("joblib", "dask")),
    Program("k_means", "k_means", {"POINTS": 400_000, "PART": 10_000}, ("ray",)),
    Program("monte_carlo", "estimate", {"TASKS": 5_000}, ("futures",)),
    Program("parameter_sweep", "sweep", {"POINTS": 20_000, "DEGREES": range(1, 31)}, ("joblib",)),
    Program("dynamic_graph", "integrate", {"LOW": 0.0005}, ("ray",)),
    Program("tiled_cholesky", "cholesky", {"SIZE": 3072}, ("dask",)),
]


# ---------------------------------------------------------------- in a program's process
def be_program(name: str, function: str, sizes: dict[str, object]) -> list[float]:
    """Run a program on more data; return how long its work took each time."""
    module = importlib.import_module(name)
    vars(module).update(sizes)
    seconds = []
    work = getattr(module, function)

    def timed(*arguments: object) -> object:
        for _ in range(REPEATS):
            start = time.perf_counter()
            value = work(*arguments)
            seconds.append(time.perf_counter() - start)
        return value

    setattr(module, function, timed)
    module.main()
    return seconds


# ---------------------------------------------------------------- all of them
def run(python: str, program: Program, name: str) -> float:
    """Return how many seconds the work of a program takes, in a process of its own."""
    folders = [EXAMPLES, EXAMPLES / "counterparts"]
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [python, __file__, name, program.name],
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        start_new_session=True,  # the system shares cores among sessions, and Ray has several
    )
    if done.returncode:
        raise RuntimeError(f"{name} has failed:\n{done.stderr}")
    return min(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Take all programs, and print how many times as long their counterparts take."""
    environments = Environments(ROOT / ".peers", install=True)
    pythons = {name: str(environments._python(PEERS[name])) for name in ("dask", "ray")}
    for program in PROGRAMS:
        names = [program.name, *(f"{program.name}_{other}" for other in program.others)]
        taken: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name in names:
                python = pythons.get(name.rpartition("_")[2], sys.executable)
                taken[name].append(run(python, program, name))
        own, *others = (min(taken[name]) for name in names)
        print(f"{program.name:<18}{own:8.3f} s", end="")
        for other, seconds in zip(program.others, others, strict=True):
            print(f"   {other} {seconds:.3f} s, {seconds / own:.1f} ×", end="")
        print(flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        [wanted] = [one for one in PROGRAMS if one.name == sys.argv[2]]
        print(json.dumps(be_program(sys.argv[1], wanted.function, wanted.sizes)))
    else:
        main()
