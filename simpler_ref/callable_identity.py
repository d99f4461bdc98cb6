"""The documents' names of which callable a task runs; `callables/` has them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .callables.handles import CallableHandle
from .callables.identity import (
    CallableKind,
    TargetNamespace,
    build_chip_callable_descriptor,
    build_python_import_descriptor,
    build_python_serialized_descriptor,
    build_signature_schema,
    compute_callable_hashid,
    hashid_to_digest,
    validate_hashid,
)

__all__ = [
    "CallableHandle",
    "CallableKind",
    "TargetNamespace",
    "build_chip_callable_descriptor",
    "build_python_import_descriptor",
    "build_python_serialized_descriptor",
    "build_signature_schema",
    "compute_callable_hashid",
    "hashid_to_digest",
    "validate_hashid",
]
