"""The documents' names of what a task is made of; `model/` has them.

Rule     HIER-API-1
"""

from typing import TYPE_CHECKING

from .system.lazy import pass_on as _pass_on

if TYPE_CHECKING:
    from .model.arguments import *
    from .model.config import *
    from .model.enums import *
    from .model.scalars import *
    from .model.tensor import *
    from .model.visibility import *
    from .native_chip import *
    from .orch.domains import *
    from .orch.runs import *
    from .remote import *

_pass_on(
    globals(),
    {
        ".model.arguments": "TaskArgs read_args_from_blob",
        ".model.config": "CallConfig RuntimeEnv",
        ".model.enums": "CONTINUOUS_TENSOR_MAX_DIMS MAILBOX_ERROR_MSG_SIZE MAILBOX_OFF_ERROR_MSG "
        "MAILBOX_SIZE MAX_REGISTERED_CALLABLE_IDS ArgDirection DataType MailboxState TaskState "
        "TensorArgType WorkerType arg_direction_name get_dtype_name get_element_size "
        "numpy_dtype to_dtype",
        ".model.scalars": "scalar_to_uint64",
        ".model.tensor": "ContinuousTensor DescribedTensor",
        ".model.visibility": "make_tensor",
        ".native_chip": "COMM_MAX_RANK_NUM ChipCallable ChipStorageTaskArgs ChipWorker "
        "CoreCallable",
        ".orch.domains": "ChipDomainContext CommBufferSpec CommDomainHandle",
        ".orch.runs": "RunTiming",
        ".remote": "RemoteBufferHandle RemoteCallable RemoteTaskArgs RemoteTensorRef "
        "RemoteWorkerSpec get_inner_handle",
    },
)
