"""The documents' names of which callable a task runs; `callables/` has them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .callables.identity import (
    CALLABLE_DESCRIPTOR_SCHEMA_VERSION as CALLABLE_DESCRIPTOR_SCHEMA_VERSION,
    CALLABLE_HASH_DIGEST_BYTES as CALLABLE_HASH_DIGEST_BYTES,
    CallableHandle as CallableHandle,
    CallableKind as CallableKind,
    CallableKindName as CallableKindName,
    TargetNamespace as TargetNamespace,
    TargetNamespaceName as TargetNamespaceName,
    build_chip_callable_descriptor as build_chip_callable_descriptor,
    build_chip_signature_schema as build_chip_signature_schema,
    build_python_import_descriptor as build_python_import_descriptor,
    build_python_serialized_descriptor as build_python_serialized_descriptor,
    build_signature_schema as build_signature_schema,
    compute_callable_hashid as compute_callable_hashid,
    hashid_to_digest as hashid_to_digest,
    parse_python_import_target as parse_python_import_target,
    validate_hashid as validate_hashid,
)
from .callables.payloads import (
    parse_python_callable_payload as parse_python_callable_payload,
)

CALLABLE_KIND_CHIP = CallableKind.CHIP_CALLABLE
CALLABLE_KIND_PYTHON_SERIALIZED = CallableKind.PYTHON_SERIALIZED
CALLABLE_KIND_PYTHON_IMPORT = CallableKind.PYTHON_IMPORT
TARGET_NAMESPACE_LOCAL_CHIP = TargetNamespaceName.LOCAL_CHIP
TARGET_NAMESPACE_LOCAL_PYTHON = TargetNamespaceName.LOCAL_PYTHON
TARGET_NAMESPACE_REMOTE_TASK_DISPATCHER = TargetNamespaceName.REMOTE_TASK_DISPATCHER
