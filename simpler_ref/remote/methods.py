"""What a Worker has for endpoints: methods of `Worker`.

Rule     REMOTE-LINK-1, REMOTE-LINK-10, REMOTE-MEM-1, REMOTE-MEM-3, REMOTE-MEM-4, REMOTE-MEM-5,
         REMOTE-COPY-8, REMOTE-COPY-11, REMOTE-HEALTH-2, REMOTE-HEALTH-3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.visibility import make_tensor

if TYPE_CHECKING:
    from ..workers.life import Life
    from .endpoints import Endpoints
    from .references import RemoteBufferExport, RemoteBufferHandle
    from .spec import RemoteWorkerSpec


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
        from .spec import RemoteWorkerSpec as Spec

        if not isinstance(spec, Spec):
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
        return self._endpoints().memory.malloc(worker, nbytes)

    def remote_free(self, handle: RemoteBufferHandle) -> None:
        """Free memory of an endpoint, and end its exports; see `remote_malloc`."""
        self._endpoints().memory.free(handle)

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
        self._endpoints().memory.copy_to(handle, host_ptr, nbytes, offset)

    def remote_copy_from(
        self, handle: RemoteBufferHandle, host_ptr: int, nbytes: int, *, offset: int = 0
    ) -> None:
        """Copy memory of an endpoint to this process's; see `remote_copy_to`."""
        self._endpoints().memory.copy_from(handle, host_ptr, nbytes, offset)

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
        return self._endpoints().memory.export(handle, offset, nbytes, access, transport_profile)

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
        return self._endpoints().memory.take(exported, worker, access)

    def remote_release_import(self, handle: RemoteBufferHandle) -> None:
        """Give an import back; the buffer stays."""
        self._endpoints().memory.release(handle)

    def endpoints(self) -> list[dict[str, Any]]:
        """Return what is known of each endpoint: where, whether it is alive, what was counted.

        Returns
        -------
        list of dict
            Of the session of the moment: its process (``pid``; None while there is none, as before the
            start and while a lost session is replaced), tasks, frames and bytes in both directions, signs
            of life, round trip and clock offset (theirs minus ours) in ns.
        """
        return self._endpoints().counters() if self._life.endpoints.have_tensors else []

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
        return self._endpoints().transfers() if self._life.endpoints.have_tensors else []

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
