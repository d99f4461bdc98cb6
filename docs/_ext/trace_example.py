"""Traces an example once the pages are built, and puts the page of its trace beside them.

`howto/trace` links to it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tiled_cholesky.py"
PAGE = "trace-example.html"


def make(app, error):
    """Run the example with a trace, and copy its page; `check_links` comes later."""
    if error is not None or app.builder.name != "html":
        return
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "cholesky.trace")
        kept = {name: text for name, text in os.environ.items() if name != "NUMBA_DISABLE_JIT"}
        for command in [str(EXAMPLE)], ["-m", "simpler_ref", "trace", str(trace)]:
            subprocess.run(
                [sys.executable, *command],
                env={**kept, "SIMPLER_REF_TRACE": str(trace)},
                check=True,
                stdout=subprocess.DEVNULL,
            )
        shutil.copy(f"{trace}.html", Path(app.outdir, PAGE))


def setup(app):
    """Register with Sphinx."""
    app.connect("build-finished", make, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
