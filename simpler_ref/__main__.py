"""``python -m simpler_ref [workers]``: what a Worker with `workers` workers, by default 1, would find.

``python -m simpler_ref trace FILE`` shows a trace, see `trace/reader.py`.
``python -m simpler_ref top PID`` shows what a running process does, see `workers/top.py`.
``python -m simpler_ref compile`` puts compiled kernels into the package, for images and wheels.
``python -m simpler_ref check FILE`` judges a scheduler trace by the rules, see `check/checker.py`.

Rule     SPEED-WAIT-1
"""

from __future__ import annotations

import sys

from .system.cores import Placement
from .version import __version__


def main(arguments: list[str]) -> int:
    """Print the version and the placement, or do what a command says; return the exit code."""
    if arguments[:1] == ["trace"]:
        from .trace.reader import main as show_trace

        return show_trace(arguments[1:])
    if arguments[:1] == ["top"]:
        from .workers.top import main as show_top

        return show_top(arguments[1:])
    if arguments == ["compile"]:
        from .jit.entries import pack

        print(pack())
        return 0
    if arguments[:1] == ["check"]:
        from .check.checker import main as check_trace

        return check_trace(arguments[1:])
    if len(arguments) > 1 or not all(word.isdigit() for word in arguments):
        print(
            "usage: python -m simpler_ref [workers | trace FILE | top PID | check FILE | compile]",
            file=sys.stderr,
        )
        return 2
    workers = int(arguments[0]) if arguments else 1
    print(f"simpler_ref {__version__}")
    print(Placement.find(1 + workers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
