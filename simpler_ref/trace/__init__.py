"""Traces: what ran when and why. `Trace.open` reads a file that ``Worker(trace=…)`` has written."""

from typing import TYPE_CHECKING

from ..system.lazy import names_from as _names_from

if TYPE_CHECKING:
    from .graphs import GraphArgument, GraphEdge, GraphMember, GraphTask, TaskGraph
    from .reader import Trace
    from .tables import TraceFileError
    from .timeline import Argument, Dependency, TracedTask

__getattr__ = _names_from(
    globals(),
    {
        ".graphs": "GraphArgument GraphEdge GraphMember GraphTask TaskGraph",
        ".reader": "Trace",
        ".tables": "TraceFileError",
        ".timeline": "Argument Dependency TracedTask",
    },
)

__all__ = [
    "Argument",
    "Dependency",
    "GraphArgument",
    "GraphEdge",
    "GraphMember",
    "GraphTask",
    "TaskGraph",
    "Trace",
    "TraceFileError",
    "TracedTask",
]
