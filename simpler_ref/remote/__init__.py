"""Level 3 Workers on other machines: what a program needs for them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callable_target import RemoteCallable
    from .fleets import Fleet, ProcessFleet
    from .host_fleet import HostFleet
    from .references import (
        RemoteBufferExport,
        RemoteBufferHandle,
        RemoteTaskArgs,
        RemoteTensorRef,
    )
    from .session import get_inner_handle
    from .spec import RemoteWorkerSpec

_NAMES = {
    "Fleet": "fleets",
    "HostFleet": "host_fleet",
    "ProcessFleet": "fleets",
    "RemoteBufferExport": "references",
    "RemoteBufferHandle": "references",
    "RemoteCallable": "callable_target",
    "RemoteTaskArgs": "references",
    "RemoteTensorRef": "references",
    "RemoteWorkerSpec": "spec",
    "get_inner_handle": "session",
}


def __getattr__(name: str) -> Any:
    """Return a name whose module is imported only on access."""
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)


__all__ = [
    "Fleet",
    "HostFleet",
    "ProcessFleet",
    "RemoteBufferExport",
    "RemoteBufferHandle",
    "RemoteCallable",
    "RemoteTaskArgs",
    "RemoteTensorRef",
    "RemoteWorkerSpec",
    "get_inner_handle",
]
