"""The leak check sees what a test leaves in /dev/shm, and nothing that others leave there."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

from tests.segments import FOLDER, segments

OUTSIDER = """
import os, sys
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None
if os.fork():
    os._exit(0)  # so the other is nobody's child
os.setsid()
made = shared_memory.SharedMemory(create=True, size=64)
print(made.name, flush=True)
sys.stdin.read()
made.unlink()
"""


@pytest.fixture
def outsider():
    """Give the name of a segment of a process that this one has nothing to do with."""
    program = subprocess.Popen(
        [sys.executable, "-c", OUTSIDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    program.wait()
    yield program.stdout.readline().strip()
    program.stdin.close()
    program.stdout.read()  # to the end: it is gone
    program.stdout.close()


@pytest.mark.parametrize("beginning, counts", [("unrelated-", 0), ("simpler-", 1), ("sem.mp-", 1)])
def test_a_name_counts_that_the_package_could_have_left(beginning, counts):
    path = Path(FOLDER, f"{beginning}{os.getpid()}")
    try:
        path.write_text("")
        assert (path.name in segments()) == bool(counts)
    finally:
        path.unlink()


def test_shared_memory_of_a_process_outside_is_not_counted(outsider):
    assert Path(FOLDER, outsider).exists() and outsider not in segments()


def test_shared_memory_of_this_process_counts_while_it_is_open_and_when_it_is_left(monkeypatch):
    for name in ("register", "unregister"):  # or a process would stay that keeps the list
        monkeypatch.setattr(resource_tracker, name, lambda *_: None)
    made = shared_memory.SharedMemory(create=True, size=64)
    try:
        assert made.name in segments()
        made.close()
        assert made.name in segments()
    finally:
        made.unlink()
    assert made.name not in segments()
