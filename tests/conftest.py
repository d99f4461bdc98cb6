"""What all tests share: no test leaks, one small engine."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import time
from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.workers import processes as worker_processes

pytest.register_assert_rewrite("tests.support")

from .segments import segments  # noqa: E402
from .support import Driver, small_engine, unmap  # noqa: E402

settings.register_profile(
    "simpler",
    deadline=None,
    max_examples=10 if INTERPRETED else 60,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("simpler")


# a job in the background ignores Ctrl-C and Ctrl-\, under nohup the hang-up: so would its children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


# ---------------------------------------------------------------- marks
STEPPED = {"engine", "driver", "make_driver", "one"}
"""Fixtures of tests that drive kernels step by step."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if not STEPPED.isdisjoint(item.fixturenames):
            item.add_marker("kernels")


# ---------------------------------------------------------------- time
SLOW_S = 3.0


def pytest_terminal_summary(terminalreporter):
    """List tests of `make test` that take long and do not say why; a busy machine lists more."""
    for report in terminalreporter.getreports("passed"):
        unexplained = report.keywords.keys().isdisjoint({"long", "slow"})
        if report.when == "call" and report.duration > SLOW_S and unexplained:
            terminalreporter.write_line(
                f"{report.nodeid} took {report.duration:.1f} s: make it quicker, mark it `long`, "
                "or say why with the mark `slow`"
            )


# ---------------------------------------------------------------- leaks
LEAK_DEADLINE_S = 10.0
"""How long what a test started may take to go away: a guard against hangs, not a measurement."""


def _tracker() -> tuple[int | None, int | None]:
    """Return process and descriptor of multiprocessing's resource tracker."""
    tracker = resource_tracker._resource_tracker
    return tracker._pid, tracker._fd


def _may_have_children() -> bool:
    """Look for children of this process alone, which is much quicker than through all processes."""
    tracker, _ = _tracker()
    children = set()
    try:
        for task in Path("/proc/self/task").iterdir():
            children.update((task / "children").read_text().split())
    except OSError:  # a kernel that does not tell, or a thread that has just ended
        return True
    return bool(children - {str(tracker)})


def processes() -> dict[int, str]:
    """Return every process below this one."""
    tracker, _ = _tracker()
    found = {}
    for child in psutil.Process().children(recursive=True) if _may_have_children() else []:
        with suppress(psutil.NoSuchProcess):
            found[child.pid] = f"process {child.pid} {child.name()} ({child.status()})"
    found.pop(tracker, None)
    return found


def _descriptors() -> dict[tuple[int, str], str]:
    _, tracker_fd = _tracker()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if int(name) != tracker_fd:
            found[int(name), target] = f"descriptor {name} → {target}"
    return found


def _threads() -> dict[int, str]:
    """Return all threads of the process by the system's numbers; "" is one that Python has not started.

    Python makes an entry for such a thread, too, if code that runs there asks for its thread, as
    finalizers do wherever the garbage collector is at work. So an entry is no sign that a thread is new,
    or that it still exists.
    """
    found = dict.fromkeys(map(int, os.listdir("/proc/self/task")), "")
    for thread in threading.enumerate():
        if thread.name.startswith(("pytest_timeout", "simpler_ref-failures")):  # of an open Worker
            continue
        if thread.native_id is None:  # it is just being started
            found[id(thread)] = f"thread {thread.name}"
        elif thread.native_id in found:
            found[thread.native_id] = f"thread {thread.name}"
    return found


def _segments() -> dict[str, str]:
    return {name: f"/dev/shm/{name}" for name in segments()}


_KINDS = (processes, _descriptors, _threads, _segments)


class _Watch:
    """Tells what has come since it was made and is still there, kind by kind.

    Every process that is forked meanwhile inherits one end of a pipe. So it is found when it is an
    orphan, and there is none to be looked for when nobody has that end.
    """

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        self._before = [kind() for kind in _KINDS]

    def left(self) -> list[str]:
        """Return what is left, once nothing new is to come."""
        found = self._orphans()
        for old, kind in zip(self._before, _KINDS, strict=True):
            found |= {key: what for key, what in kind().items() if what and key not in old}
        return list(found.values())

    def end(self) -> None:
        """Mark no more processes: what is left now is too much."""
        os.close(self._in)

    def close(self) -> None:
        os.close(self._out)

    def _orphans(self) -> dict[object, str]:
        found: dict[object, str] = {}
        if select.select([self._out], [], [], 0)[0]:
            return found
        name = os.readlink(f"/proc/self/fd/{self._out}")
        for pid in psutil.pids():
            with suppress(OSError):
                if pid != os.getpid() and os.readlink(f"/proc/{pid}/fd/{self._in}") == name:
                    found[pid] = f"process {pid} (an orphan)"
        return found


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for node in item.listchain():
            node.stash[_failed] = True
    return report


def _watched(node):
    """Fail what leaves a process, a descriptor, a thread or a shared-memory name behind."""
    watch = _Watch()
    yield
    watch.end()
    try:
        if node.stash.get(_failed, False):  # its traceback keeps what its frames hold
            return
        if not watch.left():
            return
        gc.collect()  # what goes with its last reference is no leak
        deadline = time.monotonic() + LEAK_DEADLINE_S
        while left := watch.left():
            if time.monotonic() > deadline:
                pytest.fail(f"{node.name} left behind: " + ", ".join(left), pytrace=False)
            time.sleep(0.01)
    finally:
        watch.close()


@pytest.fixture(autouse=True, scope="module")
def _no_leaks_of_modules(request):
    yield from _watched(request.node)


@pytest.fixture(autouse=True)
def _no_leaks(request):
    yield from _watched(request.node)


# ---------------------------------------------------------------- the way workers start
@pytest.fixture(autouse=True)
def _workers_are_forked(monkeypatch):
    """Keep what one test has computed with OpenMP from the way the next one's workers start."""
    monkeypatch.setattr(worker_processes, "why_not_fork", lambda: None)


# ---------------------------------------------------------------- engines
@pytest.fixture
def engine():
    """Give a small engine without processes: 64 KiB rings, 64 live tasks, two sub workers."""
    made = small_engine()
    yield made
    unmap(made)


@pytest.fixture(params=["process", "thread"])
def mode(request):
    """Have a test run with workers that are processes, and with threads."""
    return request.param


@pytest.fixture
def make_driver():
    """Give a way to make drivers, e.g. ``make_driver(sub=1)``, which are closed at the end."""
    made = []

    def make_driver(**size):
        made.append(Driver(**size))
        return made[-1]

    yield make_driver
    for driver in made:
        driver.close()


@pytest.fixture
def driver():
    """Give a `Driver` over a small engine: a run is open and both workers are idle."""
    made = Driver()
    yield made
    made.close()


@pytest.fixture
def one(make_driver):
    return make_driver(sub=1)
