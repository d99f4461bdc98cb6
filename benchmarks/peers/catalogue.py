"""What is compared: the peers, the workloads, and the targets. Data only."""

from __future__ import annotations

from typing import NamedTuple

WORKERS = 2
NUMBERS = ("numpy>=2.0", "scipy>=1.13")
"""What every Python peer needs besides itself, for the arrays and the tiles of the Cholesky."""


class Peer(NamedTuple):
    """Something that runs tasks."""

    title: str
    workers: str
    """"processes", "threads", or "none"."""
    order: str
    """How it learns what has to wait for what."""
    runner: str
    """A program in ``runners/`` (.py) or ``native/`` (.cpp)."""
    arguments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    """Python packages, for an environment of its own; none: the running Python has all it needs."""
    system: tuple[str, ...] = ()
    """Packages of the system."""
    own: bool = False
    stays: bool = False
    """It lives from round to round: it compiles at first, and sleeps while it is not asked."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables it is started with."""
    oldest: tuple[int, int] = (3, 10)
    """The oldest Python that has it."""

    @property
    def is_first(self) -> bool:
        """Whether its first start on a machine is measured: of ours, that of the usual ones."""
        if self.own:
            return self.arguments[:1] in (("processes",), ("futures",)) and len(self.arguments) == 1
        return self.runner.endswith(".py") and self.workers != "none"


INFERRED = "inferred from what tasks read and write"
BY_HAND = "edges given by hand"
FUTURES = "futures as arguments"
WAITING = "none: the caller waits for each level"
NONE = "none: one after another"
OWN = "run_simpler_ref.py"
CALLS = "run_simpler_ref_calls.py"
BULK = "run_simpler_ref_bulk.py"
ENDPOINTS = "run_simpler_ref_endpoints.py"


def _own(
    title: str,
    runner: str,
    *arguments: str,
    workers: str = "processes",
    order: str = INFERRED,
    stays: bool = False,
) -> Peer:
    return Peer(f"simpler_ref{title}", workers, order, runner, arguments, own=True, stays=stays)


def _native(title: str, runner: str, order: str, *system: str, arguments: tuple[str, ...] = ()):
    return Peer(title, "threads", order, runner, arguments, system=(*system, "libopenblas-dev"))


def _installed(title: str, runner: str, order: str, package: str) -> Peer:
    return Peer(title, "processes", order, runner, packages=(package, *NUMBERS))


PEERS: dict[str, Peer] = {
    "own": _own("", OWN, "processes"),
    "own_threads": _own(", threads", OWN, "threads", workers="threads"),
    "own_calls": _own(", calls", CALLS, "futures", order=FUTURES),
    "own_map": _own(", map", CALLS, "map", order=WAITING),
    "own_executor": _own(", executor", "run_futures.py", "simpler_ref", order=WAITING),
    "own_python_again": _own(", run again", OWN, "again"),
    "own_python_again_far": _own(", run again at endpoints", OWN, "again at endpoints"),
    "own_many": _own(", many in a call", BULK, "many", "processes", stays=True),
    "own_again": _own(", compiled, run again", BULK, "again", "processes", stays=True),
    "own_many_threads": _own(
        ", many in a call, threads", BULK, "many", "threads", workers="threads", stays=True
    ),
    "own_again_far": _own(", compiled, run again at endpoints", BULK, "again", "endpoints"),
    "own_calls_far": _own(", calls at endpoints", CALLS, "futures", "endpoints", order=FUTURES),
    "own_map_far": _own(", map at endpoints", CALLS, "map", "endpoints", order=WAITING),
    "own_endpoint": _own(", an endpoint", ENDPOINTS, "encrypted"),
    "own_endpoint_open": _own(", an endpoint, in the open", ENDPOINTS, "open"),
    "starpu": _native("StarPU", "starpu.cpp", INFERRED, "libstarpu-dev"),
    "openmp": _native("OpenMP tasks", "openmp.cpp", INFERRED),
    "taskflow": _native("Taskflow", "taskflow.cpp", BY_HAND),
    "taskflow_again": _native("Taskflow, run again", "taskflow.cpp", BY_HAND, arguments=("again",)),
    "onetbb": _native("oneTBB flow graph", "onetbb.cpp", BY_HAND, "libtbb-dev"),
    "pool": Peer("multiprocessing.Pool", "processes", WAITING, "run_pool.py"),
    "futures": Peer("ProcessPoolExecutor", "processes", WAITING, "run_futures.py", ("processes",)),
    "futures_threads": Peer(
        "ThreadPoolExecutor", "threads", WAITING, "run_futures.py", ("threads",)
    ),
    "futures_interpreters": Peer(
        "InterpreterPoolExecutor",
        "threads",
        WAITING,
        "run_futures.py",
        ("interpreters",),
        oldest=(3, 14),
    ),
    "executorlib": _installed("executorlib", "run_executorlib.py", WAITING, "executorlib"),
    "mpire": _installed("mpire", "run_mpire.py", WAITING, "mpire"),
    "loky": _installed("loky", "run_loky.py", WAITING, "loky"),
    "joblib": _installed("joblib", "run_joblib.py", WAITING, "joblib"),
    "dask": _installed("dask.distributed", "run_dask.py", FUTURES, "distributed"),
    "ray": _installed("Ray", "run_ray.py", FUTURES, "ray"),
    "parsl": _installed("Parsl", "run_parsl.py", FUTURES, "parsl"),
    "plain": Peer("one process, no tasks", "none", NONE, "run_plain.py"),
    "numpy": Peer("numpy, one thread", "none", NONE, "run_plain.py", ("numpy",)),
    "numpy_threads": Peer(
        "numpy, two threads",
        "none",
        NONE,
        "run_plain.py",
        ("numpy",),
        environment=(("OPENBLAS_NUM_THREADS", str(WORKERS)),),
    ),
}
"""In the order of the table."""


OWN_PEERS = tuple(name for name, peer in PEERS.items() if peer.own)


class Workload(NamedTuple):
    """One graph, or a search over graphs."""

    title: str
    request: str
    """What a runner is asked; ``{size}`` stands for the size, ``{graph}`` for a random graph's file."""
    sizes: tuple[int, ...]
    """From small to the size that is meant: slow peers stop below it."""
    quick: tuple[int, ...]
    unit: str = "µs"
    per_task: bool = True
    only: tuple[str, ...] = ()
    """The peers that are asked; none: all."""
    limit_s: float = 1.0
    """How long a run may take: the largest size that is expected to take no longer is used."""


def _random(exponent: str, size: int, quick: int, limit_s: float = 4.0) -> Workload:
    return Workload(
        f"random graph, {exponent} tasks",
        "random path={graph}",
        (size,),
        (quick,),
        limit_s=limit_s,
    )


WORKLOADS: dict[str, Workload] = {
    "independent": Workload(
        "independent tasks", "independent n={size}", (64, 1024, 4096, 16384), (16, 64)
    ),
    "chain": Workload("chain", "chain n={size}", (64, 512, 4096), (16, 64)),
    "alone": Workload("one task, and back", "chain n={size}", (1,), (1,)),
    "stencil": Workload(
        "stencil, width 8, three neighbours",
        "stencil width=8 steps={size} spins=0",
        (8, 64, 256),
        (4, 8),
    ),
    "tree": Workload("tree reduction", "tree leaves={size}", (64, 512, 4096), (16, 64)),
    "random_1e3": _random("10³", 1000, 100),
    "random_1e4": _random("10⁴", 10_000, 200),
    "random_1e5": _random("10⁵", 100_000, 300),
    "random_1e6": _random("10⁶", 1_000_000, 400, 20.0),
    "submit": Workload(
        "submit alone, three tensors",
        "submit n={size}",
        (8192,),
        (64,),
        only=(*OWN_PEERS, "starpu"),
    ),
    "one_worker": Workload(
        "independent tasks, one worker",
        "independent n={size} workers=1",
        (16384,),
        (64,),
        only=OWN_PEERS,
    ),
    "group": Workload("groups of two, per group", "group n={size} members=2", (100, 2000), (5, 10)),
    "send": Workload("64 MiB into a task", "send mib={size}", (64,), (1,), "ms", False),
    "receive": Workload("64 MiB out of a task", "receive mib={size}", (64,), (1,), "ms", False),
    "cholesky": Workload(
        "Cholesky, 2048², tiles of 128²",
        "cholesky n={size} tile=128",
        (2048,),
        (256,),
        "ms",
        False,
        limit_s=8.0,
    ),
}
RANDOM = ("random_1e3", "random_1e4", "random_1e5", "random_1e6")


class Metg(NamedTuple):
    """A search for the smallest task length at which half of the time is useful work."""

    title: str
    width: int


METGS: dict[str, Metg] = {
    "metg_2": Metg("METG(50 %), stencil of width 2", 2),
    "metg_8": Metg("METG(50 %), stencil of width 8", 8),
}
TITLES: dict[str, str] = {
    name: one.title for table in (WORKLOADS, METGS) for name, one in table.items()
}
UNITS: dict[str, str] = {name: one.unit for name, one in WORKLOADS.items()} | dict.fromkeys(
    METGS, "µs"
)


# ---------------------------------------------------------------- targets
class Target(NamedTuple):
    """What figures of ours shall not exceed; the worst of the workloads decides."""

    title: str
    peer: str
    workloads: tuple[str, ...]
    at_most: float
    """In the unit of the workload, or a multiple of the best of the others."""
    others: tuple[str, ...] = ()
    beside: str = ""
    """The workload of the others, if it is not the same."""


PER_TASK = ("independent", "chain", "stencil", "tree", "random_1e3", "random_1e4", "random_1e5")
SHORTEST = ("metg_2", "metg_8")
POOLS = ("pool", "futures", "mpire", "loky", "joblib")
DISTRIBUTED = ("ray", "dask", "parsl")
NATIVE = ("openmp", "onetbb", "taskflow")

TARGETS: tuple[Target, ...] = (
    Target("many in one call, per task", "own_many", ("submit",), 0.1),
    Target("chain of compiled leaves", "own_many", ("chain",), 0.5),
    Target("independent compiled leaves, one worker", "own_many", ("one_worker",), 0.35),
    Target("METG(50 %), width 8, compiled leaves", "own_many", ("metg_8",), 1.5),
    Target("METG(50 %), width 2, compiled leaves", "own_many", ("metg_2",), 1.5),
    Target("METG(50 %), width 8, Python leaves", "own", ("metg_8",), 5.0),
    Target("METG(50 %), width 2, Python leaves", "own", ("metg_2",), 5.0),
    Target("METG(50 %), width 8, Python leaves, run again", "own_python_again", ("metg_8",), 5.0),
    Target("METG(50 %), width 2, Python leaves, run again", "own_python_again", ("metg_2",), 5.0),
    Target(
        "10⁶ random tasks beside 10³, many in a call",
        *("own_many", ("random_1e6",), 1.2, ("own_many",), "random_1e3"),
    ),
    Target(
        "10⁶ random tasks beside 10³, Python leaves",
        *("own", ("random_1e6",), 1.2, ("own",), "random_1e3"),
    ),
    Target(
        "64 MiB in or out of a task: touching it once in one process",
        *("own", ("send", "receive"), 1.1, ("plain",)),
    ),
    Target(
        "ahead of StarPU on every row",
        *("own_many", ("submit", *PER_TASK, *SHORTEST), 1.0, ("starpu",)),
    ),
    Target(
        "within 2 × of OpenMP, oneTBB and Taskflow, processes",
        *("own_many", (*PER_TASK, *SHORTEST), 2.0, NATIVE),
    ),
    Target(
        "level with OpenMP, oneTBB and Taskflow, threads",
        *("own_many_threads", (*PER_TASK, *SHORTEST), 1 / 0.9, NATIVE),
    ),
    Target("10 × the best pool, Python leaves", "own", ("independent", "chain"), 0.1, POOLS),
    Target("10 × Pool, calls", "own_calls", ("independent", "chain"), 0.1, ("pool",)),
    Target("10 × Pool, map", "own_map", ("independent",), 0.1, ("pool",)),
    Target(
        "50 × joblib and dask, calls",
        *("own_calls", ("independent", "chain"), 0.02, ("joblib", "dask")),
    ),
    Target(
        "200 × Ray, dask and Parsl, Python leaves",
        *("own", ("independent", "chain"), 0.005, DISTRIBUTED),
    ),
)
