"""``python -m simpler_ref trace FILE``: a summary, and the trace as a page or for other programs.

Rule     SEE-EXPORT-1, SEE-PAGE-1, SEE-RACE-3
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .reader import Trace

WRITERS = {
    "chrome": (Trace.write_chrome, ".json", "JSON for Perfetto and Chrome's trace viewer"),
    "csv": (Trace.write_csv, ".csv", "a table of tasks"),
    "dot": (Trace.write_dot, ".dot", "the graph, for graphviz"),
}


def main(arguments: Sequence[str]) -> int:
    """Print a summary and write FILE.html, or what the options say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref trace",
        description="Show a trace that Worker(trace=FILE), Worker.trace or SIMPLER_REF_TRACE has "
        "written: print a summary, and write FILE.html, a page for any browser.",
    )
    parser.add_argument("file", help="the trace")
    for name, (_, ending, what) in WRITERS.items():
        parser.add_argument(f"--{name}", action="store_true", help=f"write FILE{ending}: {what}")
    parser.add_argument("--why", type=int, metavar="ID", help="tell the story of a task")
    parser.add_argument("--run", type=int, metavar="N", help="the run of that task, from 0 on")
    parser.add_argument(
        "--check", action="store_true", help="look for tasks that could race; status 1 if there are"
    )
    given = parser.parse_args(arguments)
    if given.run is not None and given.why is None:
        parser.error("--run is the run of the task of --why: give both")
    try:
        trace = Trace.open(given.file)
        if given.why is not None:
            print(trace.find(given.why, given.run or 0).why())
            return 0
        if given.check:
            found = trace.races()
            print("\n".join(map(str, found)) or "no races")
            return int(bool(found))
        print(trace.summary())
        asked = [name for name in WRITERS if getattr(given, name)]
        for name in asked:
            write, ending, _ = WRITERS[name]
            write(trace, given.file + ending)
            print(f"written: {given.file}{ending}")
        if not asked:
            trace.write_page(given.file + ".html")
            print(f"written: {given.file}.html")
    except (OSError, ValueError, KeyError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return 1
    return 0
