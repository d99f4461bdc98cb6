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
from .remote import (
    RemoteBufferHandle,
    RemoteCallable,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    get_inner_handle,
)

_CHIP_NAMES = ("ChipCallable", "ChipStorageTaskArgs", "ChipWorker", "CoreCallable")


def __getattr__(name: str) -> Any:
    """Return a name of chips, which are imported only on access: most programs need none."""
    if name in _CHIP_NAMES:
        from . import native_chip

        return getattr(native_chip, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    *_CHIP_NAMES,
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
    "RemoteBufferHandle",
    "RemoteCallable",
    "RemoteTaskArgs",
    "RemoteTensorRef",
    "RemoteWorkerSpec",
    "RunTiming",
    "RuntimeEnv",
    "TaskArgs",
    "TaskState",
    "TensorArgType",
    "WorkerType",
    "arg_direction_name",
    "get_dtype_name",
    "get_element_size",
    "get_inner_handle",
    "make_tensor",
    "numpy_dtype",
    "read_args_from_blob",
    "scalar_to_uint64",
    "to_dtype",
]
