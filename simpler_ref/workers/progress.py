"""A progress bar for a run: of rich or tqdm, whichever is installed, else a line of text on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from ..engine.view import View

if TYPE_CHECKING:
    from .session import Session


class Bar(Protocol):
    """What shows how many tasks have ended."""

    def draw(self, ended: int, submitted: int) -> None:
        """Show this."""

    def close(self) -> None:
        """Leave what was shown last, and the rest of the terminal as it was."""


class RichBar:
    """A bar of rich."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        columns = "{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(
            *columns,
            console=Console(stderr=True),
            auto_refresh=False,  # which would be a thread
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task(escape(name), total=None)
        self._bar.start()

    def draw(self, ended: int, submitted: int) -> None:
        """Show how many have ended."""
        self._bar.update(self._task, completed=ended, total=submitted, refresh=True)

    def close(self) -> None:
        """Leave it."""
        self._bar.stop()


class TqdmBar:
    """A bar of tqdm."""

    def __init__(self, name: str) -> None:
        from tqdm.auto import tqdm

        self._bar: Any = tqdm(total=0, desc=name, unit="tasks")

    def draw(self, ended: int, submitted: int) -> None:
        """Show how many have ended."""
        self._bar.total, self._bar.n = submitted, ended
        self._bar.refresh()

    def close(self) -> None:
        """Leave it."""
        self._bar.close()


class Line:
    """A line of text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def draw(self, ended: int, submitted: int) -> None:
        """Show how many have ended."""
        text = f"\r{self._name}: {ended} of {submitted} tasks"
        print(text, end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave it."""
        print(file=sys.stderr)


def _bar(name: str) -> Bar:
    for kind in (RichBar, TqdmBar):
        try:
            return kind(name)
        except ImportError:
            pass
    return Line(name)


class Progress:
    """Shows how many tasks of a run have ended, of those submitted so far; buffers do not count.

    The thread that waits shows it between its sleeps.

    Rule     SEE-BAR-1, -2
    """

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._before = view.pushed
        self._bar = _bar(name)

    def show(self) -> None:
        """Show where the run is."""
        self._bar.draw(self._view.ended, self._view.pushed - self._before)

    def end(self, succeeded: bool) -> None:
        """Show the end; of a run that has failed, what was shown last stays."""
        if succeeded:
            submitted = self._view.pushed - self._before
            self._bar.draw(submitted, submitted)
        self._bar.close()


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
