"""What an Orchestrator asks of the Worker that it serves: its memory, and how to say things."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..callables.handles import CallableHandle
from ..callables.leaves import Leaf
from ..errors import TaskError
from ..jit.kernel import INTERPRETED
from .chip_memory import ChipMemory
from .failures import read_failure
from .life import Life

if TYPE_CHECKING:
    from ..orch.domains import Domains
    from ..remote.endpoints import Endpoints


class Host:
    """A Worker as seen from below."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self.chips = ChipMemory(life)

    @property
    def alloc_timeout_s(self) -> float:
        """How long submit and alloc wait for room without progress, seconds."""
        return self._life.options.alloc_timeout_s

    @property
    def track_reads(self) -> bool:
        """Whether tasks of a run that write wait for those that read the same bytes."""
        return self._life.options.track_reads

    @property
    def domains(self) -> Domains:
        """The communication domains of the Worker."""
        return self._life.live().domains

    @property
    def endpoints(self) -> Endpoints:
        """The endpoints of the Worker."""
        found: Endpoints | None = self._life.endpoints
        assert found is not None, "the Worker has a callable for endpoints"
        return found

    def callable_name(self, word: int, key: int) -> str:
        """Return the name of the callable in a callable word."""
        return self._life.live().callable_name(word, key)

    def is_compiled(self, handle: CallableHandle) -> bool:
        """Say whether tasks of a callable get their arguments without Python."""
        return not INTERPRETED and isinstance(self._life.registry.target(handle), Leaf)

    def worker_name(self, worker: int) -> str:
        """Return what messages call a worker."""
        manager = self._life.live().manager
        return f"worker {worker}" if manager is None else manager.name(worker)

    def explain_handle(self, handle: CallableHandle, pool: int) -> Exception:
        """Say why a pool does not take a handle."""
        return self._life.tree.explain(self._life.registry, handle, pool)

    def read_error(self) -> TaskError:
        """Make an exception of the first failure that the Scheduler has noted."""
        return read_failure(self._life.live(), self._life.options.level)

    def look(self) -> None:
        """Tell of tasks that keep a thread waiting, and end waits for ranks that will not come.

        See `Session.look`.
        """
        self._life.live().look()
