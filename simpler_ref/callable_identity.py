"""The documents' names of which callable a task runs; `callables/` has them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .callables.identity import (
    CALLABLE_HASH_DIGEST_BYTES,
    CallableHandle,
    CallableKind,
    CallableKindName,
    TargetNamespace,
    TargetNamespaceName,
    build_chip_callable_descriptor,
    build_chip_signature_schema,
    build_python_import_descriptor,
    build_python_serialized_descriptor,
    build_signature_schema,
    compute_callable_hashid,
    hashid_to_digest,
    parse_python_import_target,
    validate_hashid,
)
from .callables.payloads import parse_python_callable_payload

__all__ = [
    "CALLABLE_HASH_DIGEST_BYTES",
    "CallableHandle",
    "CallableKind",
    "CallableKindName",
    "TargetNamespace",
    "TargetNamespaceName",
    "build_chip_callable_descriptor",
    "build_chip_signature_schema",
    "build_python_import_descriptor",
    "build_python_serialized_descriptor",
    "build_signature_schema",
    "compute_callable_hashid",
    "hashid_to_digest",
    "parse_python_callable_payload",
    "parse_python_import_target",
    "validate_hashid",
]
