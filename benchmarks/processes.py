"""What the system says about processes: memory, time on a core, children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import psutil


def pss(pid: int) -> int:
    """Return a process's memory, in bytes, shared pages divided by the number of sharers."""
    return psutil.Process(pid).memory_full_info().pss


def own(pid: int) -> int:
    """Return the bytes that only this process has."""
    return psutil.Process(pid).memory_full_info().uss


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return psutil.Process().memory_info().rss


def children() -> set[int]:
    """Return the processes started by this one, and those started by them."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def core_seconds(pid: int) -> float:
    """Return the time the threads of a process have had a core, the calling one left out."""
    caller = str(threading.get_native_id())
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != caller]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


def new_process() -> dict[str, float]:
    """Run `fresh_process.py` and return what it prints."""
    script = Path(__file__).with_name("fresh_process.py")
    done = subprocess.run(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    return json.loads(done.stdout)
