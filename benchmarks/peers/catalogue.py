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

PEERS: dict[str, Peer] = {
    "own": Peer("simpler_ref", "processes", INFERRED, OWN, ("processes",), own=True),
    "own_threads": Peer("simpler_ref, threads", "threads", INFERRED, OWN, ("threads",), own=True),
    "own_calls": Peer("simpler_ref, calls", "processes", FUTURES, CALLS, ("futures",), own=True),
    "own_map": Peer("simpler_ref, map", "processes", WAITING, CALLS, ("map",), own=True),
    "own_executor": Peer(
        "simpler_ref, executor", "processes", WAITING, "run_futures.py", ("simpler_ref",), own=True
    ),
    "own_python_again": Peer(
        "simpler_ref, run again", "processes", INFERRED, OWN, ("again",), own=True
    ),
    "own_python_again_far": Peer(
        "simpler_ref, run again at endpoints",
        "processes",
        INFERRED,
        OWN,
        ("again at endpoints",),
        own=True,
    ),
    "own_many": Peer(
        "simpler_ref, many in a call",
        "processes",
        INFERRED,
        BULK,
        ("many", "processes"),
        own=True,
        stays=True,
    ),
    "own_again": Peer(
        "simpler_ref, compiled, run again",
        "processes",
        INFERRED,
        BULK,
        ("again", "processes"),
        own=True,
        stays=True,
    ),
    "own_many_threads": Peer(
        "simpler_ref, many in a call, threads",
        "threads",
        INFERRED,
        BULK,
        ("many", "threads"),
        own=True,
        stays=True,
    ),
    "own_again_far": Peer(
        "simpler_ref, compiled, run again at endpoints",
        "processes",
        INFERRED,
        BULK,
        ("again", "endpoints"),
        own=True,
    ),
    "own_calls_far": Peer(
        "simpler_ref, calls at endpoints",
        "processes",
        FUTURES,
        CALLS,
        ("futures", "endpoints"),
        own=True,
    ),
    "own_map_far": Peer(
        "simpler_ref, map at endpoints",
        "processes",
        WAITING,
        CALLS,
        ("map", "endpoints"),
        own=True,
    ),
    "own_endpoint": Peer(
        "simpler_ref, an endpoint", "processes", INFERRED, ENDPOINTS, ("encrypted",), own=True
    ),
    "own_endpoint_open": Peer(
        "simpler_ref, an endpoint, in the open",
        "processes",
        INFERRED,
        ENDPOINTS,
        ("open",),
        own=True,
    ),
    "starpu": Peer(
        "StarPU", "threads", INFERRED, "starpu.cpp", system=("libstarpu-dev", "libopenblas-dev")
    ),
    "openmp": Peer("OpenMP tasks", "threads", INFERRED, "openmp.cpp", system=("libopenblas-dev",)),
    "taskflow": Peer("Taskflow", "threads", BY_HAND, "taskflow.cpp", system=("libopenblas-dev",)),
    "taskflow_again": Peer(
        "Taskflow, run again",
        "threads",
        BY_HAND,
        "taskflow.cpp",
        ("again",),
        system=("libopenblas-dev",),
    ),
    "onetbb": Peer(
        "oneTBB flow graph",
        "threads",
        BY_HAND,
        "onetbb.cpp",
        system=("libtbb-dev", "libopenblas-dev"),
    ),
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
    "executorlib": Peer(
        "executorlib",
        "processes",
        WAITING,
        "run_executorlib.py",
        packages=("executorlib", *NUMBERS),
    ),
    "mpire": Peer("mpire", "processes", WAITING, "run_mpire.py", packages=("mpire", *NUMBERS)),
    "loky": Peer("loky", "processes", WAITING, "run_loky.py", packages=("loky", *NUMBERS)),
    "joblib": Peer("joblib", "processes", WAITING, "run_joblib.py", packages=("joblib", *NUMBERS)),
    "dask": Peer(
        "dask.distributed", "processes", FUTURES, "run_dask.py", packages=("distributed", *NUMBERS)
    ),
    "ray": Peer("Ray", "processes", FUTURES, "run_ray.py", packages=("ray", *NUMBERS)),
    "parsl": Peer("Parsl", "processes", FUTURES, "run_parsl.py", packages=("parsl", *NUMBERS)),
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
class Bound(NamedTuple):
    """A figure of ours that shall not exceed a value, in the unit of the workload."""

    title: str
    peer: str
    workload: str
    at_most: float


class Ahead(NamedTuple):
    """How many times cheaper ours shall be than the best of some peers; below 1: how near."""

    title: str
    peer: str
    others: tuple[str, ...]
    workloads: tuple[str, ...]
    factor: float


class Growth(NamedTuple):
    """How a figure of ours may grow from one workload to another."""

    title: str
    peer: str
    over: str
    under: str
    at_most: float


class Touching(NamedTuple):
    """Passing memory shall cost no more than touching it, as `plain` does; `slack` is noise."""

    title: str
    peer: str
    workloads: tuple[str, ...]
    slack: float


PER_TASK = ("independent", "chain", "stencil", "tree", "random_1e3", "random_1e4", "random_1e5")
SHORTEST = ("metg_2", "metg_8")
POOLS = ("pool", "futures", "mpire", "loky", "joblib")
DISTRIBUTED = ("ray", "dask", "parsl")
NATIVE = ("openmp", "onetbb", "taskflow")

Target = Bound | Ahead | Growth | Touching
TARGETS: tuple[Target, ...] = (
    Bound("many in one call, per task", "own_many", "submit", 0.1),
    Bound("chain of compiled leaves", "own_many", "chain", 0.5),
    Bound("independent compiled leaves, one worker", "own_many", "one_worker", 0.35),
    Bound("METG(50 %), width 8, compiled leaves", "own_many", "metg_8", 1.5),
    Bound("METG(50 %), width 2, compiled leaves", "own_many", "metg_2", 1.5),
    Bound("METG(50 %), width 8, Python leaves", "own", "metg_8", 5.0),
    Bound("METG(50 %), width 2, Python leaves", "own", "metg_2", 5.0),
    Bound("METG(50 %), width 8, Python leaves, run again", "own_python_again", "metg_8", 5.0),
    Bound("METG(50 %), width 2, Python leaves, run again", "own_python_again", "metg_2", 5.0),
    Growth(
        "10⁶ random tasks beside 10³, many in a call", "own_many", "random_1e6", "random_1e3", 1.2
    ),
    Growth("10⁶ random tasks beside 10³, Python leaves", "own", "random_1e6", "random_1e3", 1.2),
    Touching("64 MiB in or out of a task: touching it once", "own", ("send", "receive"), 1.1),
    Ahead(
        "ahead of StarPU on every row",
        "own_many",
        ("starpu",),
        ("submit", *PER_TASK, *SHORTEST),
        1.0,
    ),
    Ahead(
        "within 2 × of OpenMP, oneTBB and Taskflow, processes",
        "own_many",
        NATIVE,
        (*PER_TASK, *SHORTEST),
        0.5,
    ),
    Ahead(
        "level with OpenMP, oneTBB and Taskflow, threads",
        "own_many_threads",
        NATIVE,
        (*PER_TASK, *SHORTEST),
        0.9,
    ),
    Ahead("10 × the best pool, Python leaves", "own", POOLS, ("independent", "chain"), 10.0),
    Ahead("10 × Pool, calls", "own_calls", ("pool",), ("independent", "chain"), 10.0),
    Ahead("10 × Pool, map", "own_map", ("pool",), ("independent",), 10.0),
    Ahead(
        "50 × joblib and dask, calls",
        "own_calls",
        ("joblib", "dask"),
        ("independent", "chain"),
        50.0,
    ),
    Ahead(
        "200 × Ray, dask and Parsl, Python leaves",
        "own",
        DISTRIBUTED,
        ("independent", "chain"),
        200.0,
    ),
)
