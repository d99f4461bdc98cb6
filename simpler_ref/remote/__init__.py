"""Level 3 Workers on other machines: what a program needs for them."""

from .callables import RemoteCallable
from .fleets import Fleet, ProcessFleet
from .host_fleet import HostFleet
from .references import RemoteBufferExport, RemoteBufferHandle, RemoteTaskArgs, RemoteTensorRef
from .session import get_inner_handle
from .spec import RemoteWorkerSpec

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
