"""Stand-ins for sessions: what they do is in the manifest's options of the Worker."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path

from simpler_ref.remote.fleets import Manifest
from simpler_ref.version import __version__

from .support import DEADLINE_S

NUMBERS = itertools.count(os.getpid() << 16)
"""No two processes ask a daemon for the same session."""

PROGRAM = """#!{python}
import os, signal, sys, types

def serve(manifest, announce, ended, interface, make_worker):
    from simpler_ref.remote.fleets import Announcement
    do = manifest.worker
    print(do.get("prints", ""), flush=True)
    if do.get("child") and not os.fork():
        os.read(ended, 1)
        os._exit(0)
    if "raises" in do:
        raise ValueError(do["raises"])
    if "exits" in do:
        os._exit(do["exits"])
    if not do.get("silent"):
        where = f"tcp://{{interface}}:1"
        announce(Announcement(where, where, where, host=repr(manifest), pid=os.getpid()))
    os.read(ended, 1)
    if do.get("stays"):
        signal.pause()

stub = types.ModuleType("simpler_ref.remote.session")
stub.serve, stub.get_inner_handle = serve, None
sys.modules[stub.__name__] = stub
from simpler_ref.endpoint import main
sys.exit(main(sys.argv[sys.argv.index("simpler_ref.endpoint") + 1 :]))
"""


def stand_in(folder: Path) -> str:
    """Return an interpreter that runs a stand-in instead of a session."""
    path = folder / "python"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def manifest(more: dict | None = None, **do) -> Manifest:
    """Return a manifest that tells the stand-in what to do."""
    keys = (one * 40 for one in "pgs")
    one = Manifest(next(NUMBERS), 0, __version__, *keys, start_timeout_s=DEADLINE_S)
    return replace(one, worker=do, **(more or {}))
