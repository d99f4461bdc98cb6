"""``python -m simpler_ref top PID``: what the Workers of a running process do, again and again.

Rule     SEE-TOP-4, -5, -9
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence

from .asking import DEADLINE_S, NoAnswerError, SilentError, ask

_CLEAR = "\x1b[H\x1b[J"
"""Tells a terminal to begin again in its upper left corner."""
_LONGEST_S = 86400.0
"""Bound of `--interval`."""


def main(arguments: Sequence[str]) -> int:
    """Print tables until the process ends or Ctrl-C comes, as the options say; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref top",
        description="Show what the open Workers of a running process do: the task of each worker and how "
        "long it has run, what waits for what, and what is in use of the rings. It ends with the "
        "process, or with Ctrl-C.",
    )
    parser.add_argument("pid", type=int, help="the process of the program, which must be yours")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("--once", action="store_true", help="look once, for scripts")
    given = parser.parse_args(arguments)
    try:
        return _show(given.pid, given.once, given.interval)
    except NoAnswerError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 0


def _show(pid: int, once: bool, interval: float) -> int:
    print(_table(pid, once), flush=True)
    while not once:
        time.sleep(interval)
        try:
            text = _table(pid, once)
        except SilentError as error:  # it may answer later
            text = f"\n{error}"
        except NoAnswerError as error:  # it has ended
            print(error)
            return 0
        print(text, flush=True)
    return 0


def _table(pid: int, once: bool) -> str:
    """Return the tables of a process, for a terminal to show in place of the last ones."""
    text = "\n\n".join(map(str, ask(pid, DEADLINE_S)))
    if once:
        return text
    return _CLEAR + text if sys.stdout.isatty() else text + "\n"


def _seconds(text: str) -> float:
    """Return a time that is above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds above 0 and below a day")
    return seconds
