"""Reading a trace: what ran when and why, and what to make of it for people and other programs.

Rule     SEE-EXPORT-1, SEE-PAGE-1, SEE-RACE-1, SEE-RACE-3
"""

from __future__ import annotations

import os
from typing import Any

from . import exports
from .history import Race, races
from .tables import TraceFile
from .timeline import Timeline


class Trace(Timeline):
    """What a trace file says, as tables.

    Attributes
    ----------
    tasks : numpy.ndarray
        A row for each task, of number 1 first; times in ns of the monotonic clock, 0 where unknown.
    edges, arguments : numpy.ndarray
        Who depends on whom, through which tensor; the tensors of tasks. Sorted by consumer and task.
    ran, waits, held, scopes, runs : numpy.ndarray
        What workers ran; sleeps and waits of threads; bytes of rings; scopes; runs.
    wrote : numpy.ndarray
        With ``check=True``: tensors tagged INPUT that changed while their tasks ran.
    frames, moves : numpy.ndarray
        Frames of endpoints, sent and received; tensors that were moved, see `transfers`.
    parts : tuple
        Of a `whole` trace: those it was made of.
    about : dict
        What the program told of itself and its Worker.
    dropped : int
        Notes that had no room in their journals: so many may be missing anywhere.
    submits_dropped : int
        Those of them about what was submitted: tensors, tags and edges may be missing.
    is_whole : bool
        Whether the trace was ended, and not cut off when the program was killed.
    """

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Trace:
        """Read a trace; see `whole` for those of the Workers below.

        Raises
        ------
        TraceFileError
            It is none, or of another version.
        TypeError
            `path` is no path.
        """
        return Trace(TraceFile(path))

    def races(self) -> list[Race]:
        """Return the tasks that could have raced for memory, and those that used memory given back.

        Of two tasks of a run that use the same bytes, one of them writing, one has to wait for the other;
        when they happened to run does not matter. ``Worker(check=True)`` refuses the same. Of those that
        the same lines have submitted there is one.

        Raises
        ------
        ValueError
            The trace does not have all tensors of its tasks.
        """
        return races(self)

    def summary(self) -> str:
        """Return a summary for a terminal."""
        return exports.summary(self)

    def table(self) -> dict[str, Any]:
        """Return the columns of a table of all tasks: names as strings, times in ns since the start.

        ``pandas.DataFrame(trace.table())`` makes a data frame of it. An unknown time is -1.
        """
        return exports.table(self.whole)

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write a page of HTML that needs no other file."""
        exports.write_page(self.whole, path)

    def write_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write JSON for Perfetto, and for the viewer of Chrome."""
        exports.write_chrome(self.whole, path)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of `table`."""
        exports.write_csv(self.whole, path)

    def write_dot(self, path: str | os.PathLike[str]) -> None:
        """Write the graph for graphviz, with what each edge is owed to; at most 5000 tasks."""
        exports.write_dot(self, path)

    def __repr__(self) -> str:
        return f"<Trace of {len(self.tasks)} tasks on {self.worker_count} workers: {self.path}>"
