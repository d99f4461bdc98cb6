"""The names in /dev/shm that a test could have made: other programs of the machine make names there, too.

The runtime itself makes none. What would make one, were it used, gives names that begin as those below;
a name with such a beginning that a process outside this tree has open or mapped is that one's.
"""

from __future__ import annotations

import os
from pathlib import Path

import psutil

BEGINNINGS = ("simpler", "psm_", "sem.", "mp-", "torch_", "joblib_", "loky-")
"""This package, multiprocessing's shared memory and semaphores, torch, joblib."""
FOLDER = "/dev/shm/"


def segments() -> set[str]:
    """Return the names that this process, or one below it, could have made."""
    found = {entry.name for entry in os.scandir(FOLDER) if _may_be_ours(entry)}
    return found - _held_elsewhere() if found else found


def _may_be_ours(entry: os.DirEntry) -> bool:
    try:
        return entry.name.startswith(BEGINNINGS) and entry.stat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _held_elsewhere() -> set[str]:
    """Return the names that processes outside this tree have open or mapped."""
    here = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    held = set()
    for pid in set(psutil.pids()) - here:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            paths = [line.partition("/")[1] + line.partition("/")[2] for line in lines]
            paths += [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has ended, or is another user's, and so are its names
            continue
        held |= {path.removeprefix(FOLDER) for path in paths if path.startswith(FOLDER)}
    return held
