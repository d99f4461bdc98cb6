"""Traces: what ran when and why. `Trace.open` reads a file that ``Worker(trace=…)`` has written."""

from .graphs import GraphArgument, GraphEdge, GraphMember, GraphTask, TaskGraph
from .history import Race
from .reader import Trace
from .tables import TraceFileError
from .timeline import Argument, Dependency, TracedTask

__all__ = [
    "Argument",
    "Dependency",
    "GraphArgument",
    "GraphEdge",
    "GraphMember",
    "GraphTask",
    "Race",
    "TaskGraph",
    "Trace",
    "TraceFileError",
    "TracedTask",
]
