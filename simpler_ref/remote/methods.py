"""What a Worker has for endpoints: methods of `Worker`.

Rule     REMOTE-LINK-1, REMOTE-LINK-10, REMOTE-MEM-1, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-MEM-5,
         REMOTE-COPY-8, REMOTE-COPY-11, REMOTE-HEALTH-2, REMOTE-HEALTH-3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.visibility import make_tensor
from ..system.values import whole
from . import tasks
from .frames import ControlName
from .memory import ACCESS, MOST_BYTES, RemoteBufferExport, RemoteBufferHandle, access_of
from .spec import RemoteWorkerSpec

if TYPE_CHECKING:
    from ..workers.life import Life
    from .endpoints import Endpoints


class RemoteMethods:
    """The methods of a Worker of level 4 or more with endpoints."""

    level: int
    _life: Life

    def add_remote_worker(self, spec: RemoteWorkerSpec) -> int:
        """Make a level 3 Worker on another machine a next-level worker, and return its id.

        Its session is started with the workers. Endpoints come after the Workers of this machine. A
        Worker that was initialised with an endpoint takes up to eight more between its runs.

        Raises
        ------
        TypeError
            Not a RemoteWorkerSpec.
        RuntimeError
            This Worker has a level below 4, was initialised without endpoints, is in a run, or runs its
            workers as threads.
        RemoteError
            pyzmq is not installed.
        """
        from .endpoints import Endpoints

        if not isinstance(spec, RemoteWorkerSpec):
            raise TypeError(
                f"add_remote_worker expects a RemoteWorkerSpec, got {type(spec).__name__}"
            )
        options = self._life.options
        if self.level < 4:
            raise RuntimeError(
                f"add_remote_worker needs level >= 4, this Worker has level {self.level}"
            )
        if options.child_mode != "process":
            raise RuntimeError(
                "the links of endpoints are processes: give Worker(child_mode='process')"
            )
        self._life.finish_stream()
        with self._life.lock:
            if not isinstance(self._life.endpoints, Endpoints):
                self._life.require_before_init("the first add_remote_worker")
            self._require_between_runs("add_remote_worker")
            if not isinstance(self._life.endpoints, Endpoints):
                self._life.endpoints = Endpoints(self._life)
            return self._life.endpoints.add(spec)

    def _add_fleet(self, spec: RemoteWorkerSpec, count: int) -> None:
        """Add endpoints that run the program's functions."""
        from .endpoints import Endpoints

        self._life.endpoints = Endpoints(self._life, take_functions=True)
        for _ in range(count):
            self.add_remote_worker(spec)

    def remove_remote_worker(self, worker: int) -> None:
        """End an endpoint: its session, its memory. Between two runs.

        Raises
        ------
        ValueError
            No endpoint of this Worker.
        RuntimeError
            A run is in progress.
        """
        self._life.finish_stream()
        with self._life.lock:
            self._require_between_runs("remove_remote_worker")
            self._endpoints().remove(worker)

    def _require_between_runs(self, what: str) -> None:
        self._life.require_not_closed()
        if self._life.running or self._life.streaming:
            raise RuntimeError(f"{what} during a run: endpoints join and leave between runs")

    # ------------------------------------------------------------ memory
    def remote_malloc(self, *, worker: int, nbytes: int) -> RemoteBufferHandle:
        """Allocate memory of an endpoint, which its tasks see.

        Parameters
        ----------
        worker : int
            The endpoint, as `add_remote_worker` has returned it.
        nbytes : int
            How much, at least 1. It is not zeroed.

        Raises
        ------
        ValueError, TypeError
            No endpoint; no size.
        ControlError
            It has no room.
        WorkerLostError
            It is lost; the next run starts it anew.
        """
        endpoints = self._endpoints()
        memory, link = endpoints.memory, endpoints.link(worker)
        size = whole("nbytes", nbytes, 1, MOST_BYTES)
        base = memory.take_addresses(size)
        payload = tasks.ALLOC.encode(size)
        raw = memory.ask(link, ControlName.ALLOC_REMOTE_BUFFER, payload, base)
        return memory.handle(link, tasks.IDENTITY.decode(raw), size, base)

    def remote_free(self, handle: RemoteBufferHandle) -> None:
        """Free memory of an endpoint, and end its exports; see `remote_malloc`."""
        memory = self._endpoints().memory
        link = memory.own(handle, "remote_free")
        payload = tasks.IDENTITY.encode(tasks.BufferIdentity(*handle.identity))
        memory.ask(link, ControlName.FREE_REMOTE_BUFFER, payload, handle.address)
        memory.held[handle.session] -= handle.nbytes
        handle.is_live = False

    def remote_copy_to(
        self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, *, offset: int = 0
    ) -> None:
        """Copy memory of this process to an endpoint's.

        It waits for no task: those submitted before may not have run.

        Parameters
        ----------
        handle : RemoteBufferHandle
            The buffer.
        host_ptr : int
            Address here; ``array.ctypes.data`` of an array.
        nbytes, offset : int
            How many bytes, and where they begin in the buffer.

        Raises
        ------
        ValueError, TypeError
            No live buffer, or not so many bytes.
        ControlError, WorkerLostError
            See `remote_malloc`.
        """
        self._endpoints().memory.copy(handle, host_ptr, nbytes, offset, True)

    def remote_copy_from(
        self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, *, offset: int = 0
    ) -> None:
        """Copy memory of an endpoint to this process's; see `remote_copy_to`."""
        self._endpoints().memory.copy(handle, host_ptr, nbytes, offset, False)

    def remote_export(
        self,
        handle: RemoteBufferHandle,
        *,
        offset: int = 0,
        nbytes: int | None = None,
        access: str | int = "readwrite",
        transport_profile: str = "",
    ) -> RemoteBufferExport:
        """Let other endpoints import a part of a buffer, by default all of it.

        Parameters
        ----------
        handle : RemoteBufferHandle
            The buffer, at its owner.
        offset, nbytes : int
            Which part.
        access : str
            ``"read"``, ``"write"`` or ``"readwrite"``: the most that an import can have.
        transport_profile : str
            How it is reached; empty: as this package does it.
        """
        memory = self._endpoints().memory
        link = memory.own(handle, "remote_export")
        at = whole("offset", offset, 0, MOST_BYTES)
        if at >= handle.nbytes:
            raise ValueError(f"offset={at} is not in {handle!r}: give one below {handle.nbytes}")
        size = handle.nbytes - at if nbytes is None else whole("nbytes", nbytes, 1, MOST_BYTES)
        handle.require_within(at, size)
        part = *handle.identity, at, size, access_of(access), transport_profile
        payload = tasks.encode_export_buffer_request(tasks.ExportBufferRequest(*part))
        raw = memory.ask(link, ControlName.EXPORT_BUFFER, payload)
        return RemoteBufferExport(handle, tasks.decode_export_buffer_result(raw))

    def remote_import(
        self,
        exported: RemoteBufferExport,
        *,
        worker: int,
        access: str | int | None = None,
    ) -> RemoteBufferHandle:
        """Let an endpoint use what another one has exported; bytes move directly between the two.

        Each task that reads it gets the bytes that the owner has when the task begins; what it writes
        is the owner's when the task has ended. References to the import and to the buffer depend on each
        other.

        Parameters
        ----------
        exported : RemoteBufferExport
            What `remote_export` has returned.
        worker : int
            The importing endpoint.
        access : str, optional
            As in `remote_export`; None: what was exported.
        """
        if not isinstance(exported, RemoteBufferExport):
            raise TypeError(
                f"remote_import expects what remote_export has returned, not {type(exported).__name__}"
            )
        endpoints, owner, found = self._endpoints(), exported.handle, exported.result
        memory, link = endpoints.memory, endpoints.link(worker)
        memory.require_current(owner, endpoints.link(owner.worker))
        if link.number == owner.worker:
            raise ValueError(f"endpoint {worker} has that memory itself: use its own handle")
        rights = found.access_flags if access is None else access_of(access)
        if rights & ~found.access_flags:
            raise ValueError(
                f"access={access!r} is more than was exported, {ACCESS[found.access_flags - 1]!r}: "
                "export it with that access, or leave access= out"
            )
        request = tasks.ImportBufferRequest(link.number, rights, found)
        base, payload = owner.address + found.offset, tasks.encode_import_buffer_request(request)
        made = tasks.decode_import_buffer_result(
            memory.ask(link, ControlName.IMPORT_BUFFER, payload, base)
        )
        more = {"offset": made.offset, "access": made.access_flags, "import_id": made.import_id}
        return memory.handle(link, made, made.nbytes, base, **more)

    def remote_release_import(self, handle: RemoteBufferHandle) -> None:
        """Give an import back; the buffer stays."""
        memory = self._endpoints().memory
        link = memory.own(handle, "remote_release_import", own=False)
        request = tasks.ReleaseImportRequest(link.number, *handle.identity, handle.import_id)
        payload = tasks.encode_release_import_request(request)
        memory.ask(link, ControlName.RELEASE_IMPORT, payload, handle.address)
        handle.is_live = False

    def endpoints(self) -> list[dict[str, Any]]:
        """Return what is known of each endpoint: where, whether it is alive, what was counted.

        Returns
        -------
        list of dict
            Of the session of the moment: its process (``pid``; None while there is none, as before the
            start and while a lost session is replaced), tasks, frames and bytes in both directions, signs
            of life, round trip and clock offset (theirs minus ours) in ns.
        """
        return self._endpoints().counters() if self._life.endpoints.are_there else []

    def transfers(self) -> list[dict[str, Any]]:
        """Return what the session of each endpoint has moved, and holds.

        Returns
        -------
        list of dict
            Transfers and bytes in both directions, refusals, buffers, exports and imports; see the
            endpoint's mover. Of tensors of this machine: ``copies`` that it holds, their
            ``copy_bytes``, and how many versions were ``copies_stored`` from here, ``copies_fetched``
            from another endpoint, were there already (``copies_hits``), were given up
            (``copies_dropped``) or came home (``copies_brought``). Of long values of calls: ``values``
            and ``value_bytes`` that it keeps, how often a call found one there (``values_hits``), how
            many were ``values_stored`` from here and how many were given up (``values_dropped``).
        """
        return self._endpoints().transfers() if self._life.endpoints.are_there else []

    def renew(self, array: Any) -> None:
        """Take the memory of an array as it is, after a run has lost what an endpoint had made of it.

        Without this, tasks may read it only once it has other contents than after that run.

        Raises
        ------
        TypeError, ValueError
            Not an array in shared memory.
        """
        address, nbytes = make_tensor(array)._span()
        self._life.endpoints.forget_lost(address, nbytes)

    def _endpoints(self) -> Endpoints:
        from .endpoints import Endpoints

        found = self._life.endpoints
        if not isinstance(found, Endpoints):
            raise RuntimeError(
                "this Worker has no endpoints: add one with add_remote_worker(RemoteWorkerSpec(…))"
            )
        return found
