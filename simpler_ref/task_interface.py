"""The documents' names of what a task is made of; `model/` has them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .model.arguments import (
    TaskArgs as TaskArgs,
    read_args_from_blob as read_args_from_blob,
)
from .model.config import (
    CallConfig as CallConfig,
    RuntimeEnv as RuntimeEnv,
)
from .model.enums import (
    CONTINUOUS_TENSOR_MAX_DIMS as CONTINUOUS_TENSOR_MAX_DIMS,
    MAILBOX_ERROR_MSG_SIZE as MAILBOX_ERROR_MSG_SIZE,
    MAILBOX_OFF_ERROR_MSG as MAILBOX_OFF_ERROR_MSG,
    MAILBOX_SIZE as MAILBOX_SIZE,
    MAX_REGISTERED_CALLABLE_IDS as MAX_REGISTERED_CALLABLE_IDS,
    ArgDirection as ArgDirection,
    DataType as DataType,
    MailboxState as MailboxState,
    TaskState as TaskState,
    TensorArgType as TensorArgType,
    WorkerType as WorkerType,
    arg_direction_name as arg_direction_name,
    get_dtype_name as get_dtype_name,
    get_element_size as get_element_size,
    numpy_dtype as numpy_dtype,
    to_dtype as to_dtype,
)
from .model.scalars import (
    scalar_to_uint64 as scalar_to_uint64,
)
from .model.tensor import (
    ContinuousTensor as ContinuousTensor,
    DescribedTensor as DescribedTensor,
)
from .model.visibility import (
    make_tensor as make_tensor,
)
from .native_chip import (
    COMM_MAX_RANK_NUM as COMM_MAX_RANK_NUM,
    ChipCallable as ChipCallable,
    ChipStorageTaskArgs as ChipStorageTaskArgs,
    ChipWorker as ChipWorker,
    CoreCallable as CoreCallable,
)
from .orch.domains import (
    ChipDomainContext as ChipDomainContext,
    CommBufferSpec as CommBufferSpec,
    CommDomainHandle as CommDomainHandle,
)
from .orch.runs import (
    RunTiming as RunTiming,
)
from .remote import (
    RemoteBufferHandle as RemoteBufferHandle,
    RemoteCallable as RemoteCallable,
    RemoteTaskArgs as RemoteTaskArgs,
    RemoteTensorRef as RemoteTensorRef,
    RemoteWorkerSpec as RemoteWorkerSpec,
    get_inner_handle as get_inner_handle,
)
