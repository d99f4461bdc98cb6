"""The documents' names of which callable a task runs; `callables/` has them.

Rule     HIER-API-1
"""

from typing import TYPE_CHECKING

from .system.lazy import pass_on as _pass_on

if TYPE_CHECKING:
    from .callables.identity import *
    from .callables.pickling import *

_pass_on(
    globals(),
    {
        ".callables.identity": "CALLABLE_DESCRIPTOR_SCHEMA_VERSION CALLABLE_HASH_DIGEST_BYTES "
        "CallableHandle CallableKind CallableKindName TargetNamespace TargetNamespaceName "
        "build_chip_callable_descriptor build_chip_signature_schema "
        "build_python_import_descriptor build_python_serialized_descriptor "
        "compute_callable_hashid hashid_to_digest "
        "parse_python_import_target validate_hashid",
        ".callables.pickling": "parse_python_callable_payload",
    },
)

CALLABLE_KIND_CHIP = CallableKind.CHIP_CALLABLE
CALLABLE_KIND_PYTHON_SERIALIZED = CallableKind.PYTHON_SERIALIZED
CALLABLE_KIND_PYTHON_IMPORT = CallableKind.PYTHON_IMPORT
TARGET_NAMESPACE_LOCAL_CHIP = TargetNamespaceName.LOCAL_CHIP
TARGET_NAMESPACE_LOCAL_PYTHON = TargetNamespaceName.LOCAL_PYTHON
TARGET_NAMESPACE_REMOTE_TASK_DISPATCHER = TargetNamespaceName.REMOTE_TASK_DISPATCHER
