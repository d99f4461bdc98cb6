"""A hierarchical task runtime: dependencies from tags, buffers from shared rings, forked workers."""

from typing import Any

from .callables.identity import CallableHandle
from .callables.leaves import leaf
from .calls.futures import Future
from .calls.local import local
from .calls.signatures import In, InOut, Out
from .calls.tasks import task
from .errors import (
    CallableError,
    CallableTypeError,
    ControlError,
    ControlTimeoutError,
    HandleMutatedError,
    HazardError,
    LocalSlotExhaustedError,
    NoMemoryError,
    NoPythonWorkerError,
    RemoteError,
    RemoteTraceback,
    RingFullError,
    TaskCancelledError,
    TaskError,
    TaskTimeoutError,
    TransferError,
    WorkerLostError,
    WorkerStartError,
)
from .model.arguments import TaskArgs
from .model.config import CallConfig
from .model.enums import DataType, TensorArgType
from .model.tensor import ContinuousTensor
from .orch.columns import Rows
from .orch.orchestrator import Orchestrator
from .orch.recording import Graph
from .remote import (
    ProcessFleet,
    RemoteBufferHandle,
    RemoteCallable,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    get_inner_handle,
)
from .trace import Trace
from .version import __version__
from .worker import RunTiming, Worker
from .workers.kinds import WorkerKind

_CHIP_NAMES = ("ChipCallable", "ChipError", "ChipWorker", "CoreCallable")


def __getattr__(name: str) -> Any:
    """Return a name of chips, which are imported only on access: most programs need none."""
    if name not in _CHIP_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import native_chip

    return getattr(native_chip, name)


__all__ = [
    "CallConfig",
    "CallableError",
    "CallableHandle",
    "CallableTypeError",
    "ContinuousTensor",
    "ControlError",
    "ControlTimeoutError",
    "DataType",
    "Future",
    "Graph",
    "HandleMutatedError",
    "HazardError",
    "In",
    "InOut",
    "LocalSlotExhaustedError",
    "NoMemoryError",
    "NoPythonWorkerError",
    "Orchestrator",
    "Out",
    "ProcessFleet",
    "RemoteBufferHandle",
    "RemoteCallable",
    "RemoteError",
    "RemoteTaskArgs",
    "RemoteTensorRef",
    "RemoteTraceback",
    "RemoteWorkerSpec",
    "RingFullError",
    "Rows",
    "RunTiming",
    "TaskArgs",
    "TaskCancelledError",
    "TaskError",
    "TaskTimeoutError",
    "TensorArgType",
    "Trace",
    "TransferError",
    "Worker",
    "WorkerKind",
    "WorkerLostError",
    "WorkerStartError",
    "__version__",
    "get_inner_handle",
    "leaf",
    "local",
    "task",
]
