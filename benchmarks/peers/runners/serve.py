"""What every runner in Python has in common: it is asked, it times, it checks, it answers.

A runner is a program for one peer. When its workers are up and warm, it prints a JSON line that says so.
Then it reads a line for each request, ``workload key=value …``, and answers each with a JSON line:
``seconds`` (a list) and ``tasks``, or ``unsupported`` with a word saying why, or ``error``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import dags
from dags import Dag

WORKERS = 2
DEPTH = 32
"""Tasks that may wait at a worker of `simpler_ref`."""


PLACED_AFTER = 13
"""Replays after which `simpler_ref` knows the fastest placement over two endpoints."""
MOST_RECORDED = 200_000
"""Tasks of a graph that is recorded: recording goes through Python, and takes longer than all else."""


class UnsupportedError(Exception):
    """The peer has no such notion; the text says what is missing."""


def require_short(graph: Sized) -> None:
    """Refuse to record a graph that is too large for that."""
    if len(graph) > MOST_RECORDED:
        raise UnsupportedError(f"{len(graph)} tasks are not recorded: that goes through Python")


@dataclass
class Job:
    """One graph, ready to be run again and again."""

    run: Callable[[], Any]
    """What is timed; if it returns a float, those seconds count."""
    agrees: Callable[[], bool]
    """Says whether the last run gave the right result."""
    tasks: int
    reset: Callable[[], Any] = lambda: None
    """Called before each run, untimed."""


def leaving(
    right: Any, cells: Any, run: Callable[[], Any], tasks: int, where: Any = slice(None)
) -> Job:
    """Return a Job whose tasks leave these numbers in some cells of shared memory, which are 0 before."""
    return Job(run, lambda: bool((cells[where] == right).all()), tasks, lambda: cells.fill(0))


class Peer(Protocol):
    """A peer, started and warm."""

    versions: dict[str, str]

    def job(self, workload: str, parameters: dict[str, Any]) -> Any:
        """Return a context manager that gives a Job; raise UnsupportedError for what it cannot do."""


def seconds_of(job: Job, repeats: int, budget_s: float) -> list[float]:
    """Return the time of several runs, each one checked; the first warms up unless it is long."""
    taken: list[float] = []
    begin = time.perf_counter()
    while True:
        job.reset()
        start = time.perf_counter()
        part = job.run()
        taken.append(time.perf_counter() - start if not isinstance(part, float) else part)
        if not job.agrees():
            raise AssertionError("the result is wrong")
        spent = time.perf_counter() - begin
        if len(taken) > repeats or spent + taken[-1] > budget_s:
            break
    return taken[1:] or taken


def parse(line: str) -> tuple[str, dict[str, Any]]:
    """Return workload and parameters of a request."""
    workload, *pairs = line.split()
    parameters: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        parameters[key] = value
        for number in (float, int):
            with suppress(ValueError):
                parameters[key] = number(value)
    return workload, parameters


def answer(peer: Peer, line: str) -> dict[str, Any]:
    """Carry out a request."""
    workload, parameters = parse(line)
    repeats, budget = parameters.pop("repeats"), parameters.pop("budget")
    try:
        with peer.job(workload, parameters) as job:
            return {"seconds": seconds_of(job, repeats, budget), "tasks": job.tasks}
    except UnsupportedError as why:
        return {"unsupported": str(why)}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def serve(start: Callable[[], Any], spin: Callable[[], float] = dags.seconds_per_spin) -> None:
    """Answer requests until there are no more; `start` gives a context manager with the Peer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a peer prints does not get between the answers

    def say(words: dict[str, Any]) -> None:
        answers.write(json.dumps(words) + "\n")
        answers.flush()

    with start() as peer:
        say({"versions": peer.versions, "seconds_per_spin": spin()})
        for line in sys.stdin:
            say(answer(peer, line))


# ---------------------------------------------------------------- peers that return values
Execute = Callable[[Dag], Sequence[Any]]


class DagPeer:
    """A peer that runs a Dag and returns the values of its sinks.

    `prepare` turns a Dag into what is run; it is not timed.
    """

    def __init__(
        self,
        versions: dict[str, str],
        prepare: Callable[[Dag], Callable[[], Sequence[Any]]],
    ) -> None:
        self.versions = versions
        self._prepare = prepare
        self._values: list[Any] = []

    @contextmanager
    def job(self, workload: str, parameters: dict[str, Any]) -> Iterator[Job]:
        """Give a Job of a graph of `dags`."""
        if workload == "group":
            raise UnsupportedError("no tasks that run on several workers at once")
        if workload not in dags.GRAPHS:
            raise UnsupportedError("submitting is not apart from running")
        dag = dags.GRAPHS[workload](**parameters)
        prepared = self._prepare(dag)

        def run() -> None:
            self._values = list(prepared())

        def forget() -> None:
            self._values = []

        yield Job(run, lambda: dag.agrees(self._values), len(dag), forget)
        forget()


Call = tuple[Callable[..., Any], tuple[Any, ...]]


def call(task: Call) -> Any:
    """Call a function on its arguments; what is sent to pools that map over a list."""
    function, arguments = task
    return function(*arguments)


def of_one_function(calls: list[Call]) -> tuple[Callable[..., Any] | None, list[tuple[Any, ...]]]:
    """Return the function of all calls, None if they have several, and the arguments of each."""
    functions = {function for function, _ in calls}
    return functions.pop() if len(functions) == 1 else None, [arguments for _, arguments in calls]


def by_levels(each: Callable[[list[Call]], Sequence[Any]]) -> Callable[[Dag], Execute]:
    """Return how to run a Dag on a pool whose tasks cannot wait for each other.

    The tasks of a level run at the same time; the caller waits for them and passes their values on.
    """

    def prepare(dag: Dag) -> Any:
        levels = dag.levels()

        def run() -> list[Any]:
            values: list[Any] = [None] * len(dag)
            for level in levels:
                calls = [
                    (
                        dag.functions[task],
                        (
                            *dag.constants[task],
                            *[values[producer] for producer in dag.producers[task]],
                        ),
                    )
                    for task in level
                ]
                for task, value in zip(level, each(calls), strict=True):
                    values[task] = value
            return [values[sink] for sink in dag.sinks]

        return run

    return prepare


def by_futures(
    submit: Callable[..., Any], gather: Callable[[list[Any]], Sequence[Any]]
) -> Callable[[Dag], Execute]:
    """Return how to run a Dag on a peer that takes futures as arguments."""

    def prepare(dag: Dag) -> Any:
        tasks = list(zip(dag.functions, dag.constants, dag.producers, strict=True))

        def run() -> Sequence[Any]:
            futures: list[Any] = []
            for function, constants, producers in tasks:
                futures.append(submit(function, *constants, *[futures[one] for one in producers]))
            return gather([futures[sink] for sink in dag.sinks])

        return run

    return prepare


def versions(*names: str) -> dict[str, str]:
    """Return the versions of Python and of some installed packages."""
    from importlib.metadata import version

    return {"Python": sys.version.split()[0], **{name: version(name) for name in names}}
