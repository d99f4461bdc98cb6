"""A hierarchical task runtime: dependencies from tags, buffers from shared rings, forked workers."""

from .callable_identity import CallableHandle
from .errors import (
    CallableError,
    LocalSlotExhaustedError,
    RemoteTraceback,
    RingFullError,
    TaskError,
    WorkerLostError,
    WorkerStartError,
)
from .orchestrator import Orchestrator
from .task_interface import CallConfig, ContinuousTensor, DataType, TaskArgs, TensorArgType
from .version import __version__
from .worker import RunTiming, Worker

__all__ = [
    "CallConfig",
    "CallableError",
    "CallableHandle",
    "ContinuousTensor",
    "DataType",
    "LocalSlotExhaustedError",
    "Orchestrator",
    "RemoteTraceback",
    "RingFullError",
    "RunTiming",
    "TaskArgs",
    "TaskError",
    "TensorArgType",
    "Worker",
    "WorkerLostError",
    "WorkerStartError",
    "__version__",
]
