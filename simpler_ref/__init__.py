"""Python functions as tasks on worker processes, which wait for each other where their arrays say so.

After ``import simpler_ref as sr``:

    @sr.task
    def add(y: sr.InOut, x: sr.In):     # runs in a worker, on shared memory
        y += x

    with sr.Worker() as w:              # a worker for each core
        x, y = w.share(array), w.zeros(array.shape)
        add(y, x)                       # returns a future at once
        add(y, x).result()              # waits for both: they update the same array
        values = list(w.map(function, items))

`task`, `Worker` and `map` are what such programs use; `Orchestrator`, `TaskArgs` and others are the
interface of the documents of a hierarchical task runtime, on the same engine.
"""

from typing import TYPE_CHECKING

from .callables.identity import CallableHandle
from .calls.futures import Future
from .calls.signatures import In, InOut, Out
from .calls.tasks import local, task
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
from .system import lazy as _lazy
from .version import __version__
from .worker import RunTiming, Worker
from .worker import map as map
from .workers.kinds import WorkerKind

if TYPE_CHECKING:
    from .callables.leaves import leaf
    from .native_chip import ChipCallable, ChipError, ChipWorker, CoreCallable
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

__getattr__ = _lazy.names_from(
    globals(),
    {
        ".callables.leaves": "leaf",
        ".native_chip": "ChipCallable ChipError ChipWorker CoreCallable",
        ".remote": "ProcessFleet RemoteBufferHandle RemoteCallable RemoteTaskArgs RemoteTensorRef "
        "RemoteWorkerSpec get_inner_handle",
        ".trace": "Trace",
    },
)

__all__ = [
    "CallConfig",
    "CallableError",
    "CallableHandle",
    "CallableTypeError",
    "ChipCallable",
    "ChipError",
    "ChipWorker",
    "ContinuousTensor",
    "ControlError",
    "ControlTimeoutError",
    "CoreCallable",
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
    "register_joblib",
    "task",
]


def __dir__() -> list[str]:  # for who completes names
    return sorted({*globals(), *__all__})


def register_joblib() -> None:
    """Make the backend "simpler_ref" known to joblib.

    Then ``with joblib.parallel_config(backend="simpler_ref"):`` runs `Parallel`, and `n_jobs` of
    scikit-learn, on workers of this package: of the innermost open Worker if it has as many sub workers,
    else of one that is kept until the end of the program.

    Raises ModuleNotFoundError if joblib is not installed.
    """
    _lazy.load("joblib").register()
