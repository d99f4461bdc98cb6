"""A progress bar for a run: that of tqdm where it is installed, else a line of text on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..engine.view import View

if TYPE_CHECKING:
    from .session import Session


class Progress:
    """Shows how many tasks of a run have ended, of those submitted so far; buffers do not count.

    The thread that waits shows it between its sleeps.

    Rule     SEE-BAR-1, -2
    """

    def __init__(self, view: View, name: str) -> None:
        self._view, self._name = view, name
        self._before = view.pushed
        self._bar: Any = None
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self._bar = tqdm(total=0, desc=name, unit="tasks")

    def show(self) -> None:
        """Show where the run is."""
        self._draw(self._view.ended, self._view.pushed - self._before)

    def end(self, succeeded: bool) -> None:
        """Show the end; of a run that has failed, what was shown last stays."""
        if succeeded:
            submitted = self._view.pushed - self._before
            self._draw(submitted, submitted)
        if self._bar is not None:
            self._bar.close()
        else:
            print(file=sys.stderr)

    def _draw(self, ended: int, submitted: int) -> None:
        if self._bar is None:
            text = f"\r{self._name}: {ended} of {submitted} tasks"
            print(text, end="", file=sys.stderr, flush=True)
            return
        self._bar.total, self._bar.n = submitted, ended
        self._bar.refresh()


@contextmanager
def shown(session: Session, name: str) -> Iterator[None]:
    """Show the progress of what runs in the block."""
    session.progress = bar = Progress(session.engine.view, name)
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        session.progress = None
        bar.end(succeeded)
