"""What a program asks for when it adds an endpoint.

Rule     REMOTE-LINK-6, REMOTE-COPY-11, REMOTE-TRUST-1, REMOTE-TRUST-3, SPEED-WAIT-14,
         SPEED-DEPTH-1
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..jit import layout as L
from ..system.cores import find_cores
from ..system.values import filled, flag, seconds, text, texts, whole
from ..version import __version__
from ..workers.options import MOST_WORKERS, chips, require_options
from .fleets import Fleet, Manifest, ProcessFleet
from .limits import ANY_MODULE

if TYPE_CHECKING:
    from .connection import KeyPair

log = logging.getLogger("simpler_ref")

MOST_ENDPOINTS = 1024
_RUNTIME = "give the path of the runtime's library, or leave it out for the simulated chip"
_MODULES = "give a list of names"
ALONE_DEPTH = 4
"""Frames of a worker that is the only one of its endpoint: what it is given waits for no other."""


class RemoteWorkerSpec:
    """An endpoint that a program wants: a level 3 Worker on a machine of a fleet.

    Parameters
    ----------
    fleet : Fleet, optional
        Who starts it; None: a process of this machine.
    num_sub_workers : int
        Workers of its Worker that call Python functions.
    device_ids : Sequence[int]
        Its chips.
    platform, runtime, heap_ring_size : optional
        See `Worker`.
    options : Mapping[str, Any]
        More options of its Worker.
    modules : Sequence[str], optional
        The modules that callables may be imported from there, with those below them. None: any on this
        machine, none elsewhere.
    serialized : bool
        Whether it takes serialised callables, which can do anything there.
    secure : bool
        Whether connections are encrypted and authenticated. Without that, whoever reaches the ports can
        run what is registered, and read and write tensors.
    start_timeout_s : float
        How long it may take until it is ready.
    silence_s : float
        After how long without a sign of life it is lost, 0.5 to 3600.

    Raises
    ------
    TypeError, ValueError
        A value of the wrong type or out of range.
    """

    def __init__(
        self,
        fleet: Fleet | None = None,
        *,
        num_sub_workers: int = 0,
        device_ids: Sequence[int] = (),
        platform: str = "",
        runtime: str | None = None,
        heap_ring_size: int | None = None,
        options: Mapping[str, Any] | None = None,
        modules: Sequence[str] | None = None,
        serialized: bool = False,
        secure: bool = True,
        start_timeout_s: float = 60.0,
        silence_s: float = 2.0,
    ) -> None:
        fleet = ProcessFleet() if fleet is None else fleet
        if not isinstance(fleet, Fleet):
            raise TypeError(f"fleet={fleet!r} is no Fleet: give ProcessFleet(), for example")
        self.start_timeout_s = seconds("start_timeout_s", start_timeout_s, 0.5, 86400.0)
        self.silence_s = seconds("silence_s", silence_s, 0.5, 3600.0)  # ZeroMQ has 16 bits
        if not isinstance(options, Mapping | None):
            raise TypeError(f"options={options!r}: give names of options and their values")
        chosen = chips("device_ids", device_ids)
        require_options(options or {})
        if heap_ring_size is not None:
            require_options({"heap_ring_size": heap_ring_size})
        self.fleet = fleet
        self.worker: dict[str, Any] = {
            "num_sub_workers": whole("num_sub_workers", num_sub_workers, 0, MOST_WORKERS),
            "device_ids": list(chosen),
            "platform": text("platform", platform),
            "runtime": None if runtime is None else filled("runtime", runtime, _RUNTIME),
            "heap_ring_size": heap_ring_size,
            **(options or {}),
        }
        if num_sub_workers == 1 and not chosen:
            self.worker.setdefault("mailbox_depth", ALONE_DEPTH)
        self.modules = None if modules is None else tuple(texts("modules", modules, _MODULES))
        self.serialized, self.secure = flag("serialized", serialized), flag("secure", secure)
        if not self.secure:
            log.warning(
                "secure=False: whoever reaches the ports of this endpoint commands it, and its tensors "
                "travel in the open"
            )

    @property
    def sub_workers(self) -> int:
        """How many workers that call functions a session has."""
        return int(self.worker["num_sub_workers"])

    @property
    def workers(self) -> int:
        """How many workers it has."""
        return self.sub_workers + len(self.worker["device_ids"])

    def manifest(
        self, session: int, number: int, pair: KeyPair | None, group: KeyPair | None
    ) -> Manifest:
        """Return what a new session of the endpoint is handed."""
        from ..compat import is_installed

        is_local = self.fleet.is_local
        modules = ((ANY_MODULE,) if is_local else ()) if self.modules is None else self.modules
        return Manifest(
            session,
            number,
            __version__,
            parent_key=pair.public if pair else "",
            group_key=group.public if group else "",
            group_secret=group.secret if group else "",
            worker=self.worker,
            modules=modules,
            serialized=self.serialized,
            # one without workers counts as one, for what passes its frames
            before=number * max(1, self.workers) if is_local else None,
            path=tuple(one for one in sys.path if one) if is_local else (),
            original_names=is_installed(),
            start_timeout_s=self.start_timeout_s,
            silence_s=self.silence_s,
        )


def spec_of(
    fleet: Any, num_sub_workers: int | None, endpoints: int | None
) -> tuple[RemoteWorkerSpec, int]:
    """Return what `Worker(fleet=…)` asks for, and how many endpoints; refuse what makes no sense."""
    if isinstance(fleet, RemoteWorkerSpec):
        if num_sub_workers is not None:
            raise ValueError(
                f"num_sub_workers={num_sub_workers} stands in the RemoteWorkerSpec already"
            )
        if not fleet.workers:
            raise ValueError(
                "fleet=RemoteWorkerSpec(…) has no workers to run functions: give it num_sub_workers=…, "
                "or add endpoints without workers with add_remote_worker"
            )
        spec, count = fleet, fleet.fleet.size if endpoints is None else endpoints
        return spec, whole("endpoints", count, 1, MOST_ENDPOINTS)
    if not isinstance(fleet, Fleet):
        raise TypeError(f"fleet={fleet!r} is neither a Fleet nor a RemoteWorkerSpec")
    count = whole("endpoints", fleet.size if endpoints is None else endpoints, 1, MOST_ENDPOINTS)
    if num_sub_workers is None:
        cores = find_cores().available
        num_sub_workers = max(1, cores // count) if fleet.is_local else cores
    return RemoteWorkerSpec(
        fleet, num_sub_workers=num_sub_workers, serialized=fleet.is_local
    ), count


def calls_ahead(spec: RemoteWorkerSpec) -> int:
    """Return how many calls an endpoint is given at once, if the program does not say.

    Each sub worker has another one to go on with, and the link two on their way: few enough to be lost
    with the endpoint.
    """
    return min(L.MAX_DEPTH, 2 * spec.sub_workers + 2)
