"""The documents' names of what a task is made of; `model/` has them.

Rule     HIER-API-1
"""

from __future__ import annotations

from typing import Any

from .model.arguments import TaskArgs, read_args_from_blob
from .model.config import CallConfig, RuntimeEnv
from .model.enums import (
    CONTINUOUS_TENSOR_MAX_DIMS,
    MAILBOX_ERROR_MSG_SIZE,
    MAILBOX_OFF_ERROR_MSG,
    MAILBOX_SIZE,
    MAX_REGISTERED_CALLABLE_IDS,
    ArgDirection,
    DataType,
    MailboxState,
    TaskState,
    TensorArgType,
    WorkerType,
    arg_direction_name,
    get_dtype_name,
    get_element_size,
    numpy_dtype,
    to_dtype,
)
from .model.scalars import scalar_to_uint64
from .model.tensor import ContinuousTensor, DescribedTensor
from .model.visibility import make_tensor
from .orch.domains import ChipDomainContext, CommBufferSpec, CommDomainHandle
from .orch.runs import RunTiming

_CHIP_NAMES = ("ChipCallable", "ChipStorageTaskArgs", "ChipWorker", "CoreCallable")


_REMOTE_NAMES = (
    *("RemoteBufferHandle", "RemoteCallable", "RemoteTaskArgs", "RemoteTensorRef"),
    *("RemoteWorkerSpec", "get_inner_handle"),
)


def __getattr__(name: str) -> Any:
    """Return the names that belong to chips and endpoints, which are imported only on access."""
    if name in _CHIP_NAMES:
        from . import native_chip

        return getattr(native_chip, name)
    if name in _REMOTE_NAMES:
        from . import remote

        return getattr(remote, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    *_CHIP_NAMES,
    *_REMOTE_NAMES,
    "CONTINUOUS_TENSOR_MAX_DIMS",
    "MAILBOX_ERROR_MSG_SIZE",
    "MAILBOX_OFF_ERROR_MSG",
    "MAILBOX_SIZE",
    "MAX_REGISTERED_CALLABLE_IDS",
    "ArgDirection",
    "CallConfig",
    "ChipDomainContext",
    "CommBufferSpec",
    "CommDomainHandle",
    "ContinuousTensor",
    "DataType",
    "DescribedTensor",
    "MailboxState",
    "RunTiming",
    "RuntimeEnv",
    "TaskArgs",
    "TaskState",
    "TensorArgType",
    "WorkerType",
    "arg_direction_name",
    "get_dtype_name",
    "get_element_size",
    "make_tensor",
    "numpy_dtype",
    "read_args_from_blob",
    "scalar_to_uint64",
    "to_dtype",
]
