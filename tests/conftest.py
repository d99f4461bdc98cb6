"""What all tests share: no test leaks, every test cites rules that exist, one small engine."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from multiprocessing import resource_tracker

import psutil
import pytest
from hypothesis import HealthCheck, settings

from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.workers import start_method

from . import spec_results, spec_rules

pytest.register_assert_rewrite("tests.support", "tests.ahead_model")

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


# a shell's background job ignores Ctrl-C, one under nohup the hang-up, and so would its children
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# ---------------------------------------------------------------- rules and tests
def pytest_configure(config):
    """Keep the results of conformance tests for `make spec`."""
    if not hasattr(config, "workerinput"):  # of processes that share a session, one hears of all
        mode = "interpreted" if INTERPRETED else "compiled"
        config.pluginmanager.register(spec_results.Recorder(mode))


def refuse(complaints):
    if complaints:
        raise pytest.UsageError("\n".join(complaints))


def pytest_sessionstart(session):
    """Refuse to run a whole suite when anything does not fit."""
    shares = hasattr(session.config, "workerinput")
    if not shares and spec_rules.whole_conformance(session.config):
        refuse(spec_rules.complaints())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Refuse to run tests that cite unknown rules."""
    if not spec_rules.whole_conformance(config):
        files = {item.path for item in items}
        tests = [test for path in sorted(files) for test in spec_rules.read_tests(path)]
        refuse(spec_rules.unknown_rules(tests))


# ---------------------------------------------------------------- leaks
LEAK_DEADLINE_S = 10.0
"""How long what a test started may take to go away: a guard against hangs, not a measurement."""

_marker, _marker_end = os.pipe()
_MARKER_NAME = os.readlink(f"/proc/self/fd/{_marker}")


def _tracker() -> tuple[int | None, int | None]:
    """Return process and descriptor of multiprocessing's resource tracker."""
    tracker = resource_tracker._resource_tracker
    return tracker._pid, tracker._fd


def _processes() -> dict[int, str]:
    """Return every process below this one, and every orphan that was forked from it."""
    tracker, _ = _tracker()
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            found[child.pid] = f"process {child.pid} {child.name()} ({child.status()})"
        except psutil.NoSuchProcess:
            continue
    for pid in psutil.pids():
        try:
            if os.readlink(f"/proc/{pid}/fd/{_marker}") == _MARKER_NAME:
                found.setdefault(pid, f"process {pid} (an orphan)")
        except OSError:
            continue
    return {pid: what for pid, what in found.items() if pid not in (tracker, os.getpid())}


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
    return {id(thread): f"thread {thread.name}" for thread in threading.enumerate()}


def _segments() -> dict[str, str]:
    return {name: f"/dev/shm/{name}" for name in segments()}


_failed = pytest.StashKey[bool]()
_KINDS = (_processes, _descriptors, _threads, _segments)


def held_resources() -> list[dict]:
    """Return everything that outlives a careless test, kind by kind."""
    return [kind() for kind in _KINDS]


def leaked(before: list[dict]) -> list[str]:
    """Return what is there now and was not before."""
    return [
        what
        for old, new in zip(before, held_resources(), strict=True)
        for key, what in new.items()
        if key not in old
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def _no_leaks(request):
    """Fail a test that leaves a process, a descriptor, a thread or a shared-memory name behind."""
    before = held_resources()
    yield
    if request.node.stash.get(_failed, False):  # its traceback keeps what its frames hold
        return
    if not leaked(before):
        return
    gc.collect()  # what goes with its last reference is no leak
    deadline = time.monotonic() + LEAK_DEADLINE_S
    while left := leaked(before):
        if time.monotonic() > deadline:
            pytest.fail("the test left behind: " + ", ".join(left), pytrace=False)
        time.sleep(0.01)


# ---------------------------------------------------------------- the way workers start
@pytest.fixture(autouse=True)
def _workers_are_forked(monkeypatch):
    """Keep what one test has computed with OpenMP from the way the next one's workers start."""
    monkeypatch.setattr(start_method, "why_not_fork", lambda: None)


# ---------------------------------------------------------------- engines
@pytest.fixture
def engine():
    """Give a small engine without processes: 64 KiB rings, 64 live tasks, two sub workers."""
    made = small_engine()
    yield made
    unmap(made)


@pytest.fixture
def driver():
    """Give a `Driver` over a small engine: a run is open and both workers are idle."""
    made = Driver()
    yield made
    made.close()
