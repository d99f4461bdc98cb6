"""Level 3 Workers on other machines: what a program needs for them."""

from typing import TYPE_CHECKING

from ..system.lazy import names_from as _names_from

if TYPE_CHECKING:
    from .callables import RemoteCallable
    from .daemon import HostFleet
    from .fleets import Fleet, ProcessFleet
    from .memory import (
        RemoteBufferExport,
        RemoteBufferHandle,
        RemoteTaskArgs,
        RemoteTensorRef,
    )
    from .session import get_inner_handle
    from .spec import RemoteWorkerSpec

__getattr__ = _names_from(
    globals(),
    {
        ".callables": "RemoteCallable",
        ".fleets": "Fleet ProcessFleet",
        ".daemon": "HostFleet",
        ".memory": "RemoteBufferExport RemoteBufferHandle RemoteTaskArgs RemoteTensorRef",
        ".session": "get_inner_handle",
        ".spec": "RemoteWorkerSpec",
    },
)

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
