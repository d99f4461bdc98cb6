"""How worker processes are started, and which memory they see therefore."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..system import regions
from ..system.forks import why_not_fork
from ..system.regions import PRIVATE, covers, shared_mappings
from .kinds import WorkerKind

log = logging.getLogger("simpler_ref")
_told = False

Mappings = list[tuple[int, int, str]]


class StartMethod:
    """The start method of one Worker: the option's value, or one chosen at each start.

    Attributes
    ----------
    spawn : bool
        Whether a fresh interpreter makes the workers, or would make them now.

    Notes
    -----
    Rule     WM-START-2, -4; ORCH-MISUSE-2
    """

    def __init__(self, given: str | None) -> None:
        self._given = given
        self.spawn = given == "spawn"
        self._at_start: Mappings = []
        self._inherited: tuple[int, int] | None = None

    def decide(self, kinds: Iterable[WorkerKind]) -> None:
        """Choose a method for workers, unless it was given; remember which memory they will see.

        Raises
        ------
        RuntimeError
            They must not be forked, and memory was accepted that only forked workers see.
        """
        if self._given is None:
            foreign = any(kind.runs_foreign_code for kind in kinds)
            self._choose(why_not_fork() if foreign else None)
        self._at_start = self._look()

    def _choose(self, why: str | None) -> None:
        global _told
        self.spawn = why is not None
        if why is None:
            return
        if self._inherited is not None:
            address, nbytes = self._inherited
            raise RuntimeError(
                f"{why}; and workers in a fresh interpreter cannot see the {nbytes} bytes at "
                f"{address:#x}, shared by other means, which were accepted before the start: use "
                "Worker.share or Worker.empty, or give Worker(start_method='fork') if no task uses "
                "those libraries"
            )
        if not _told:
            _told = True
            log.warning(
                "%s; so the workers are made by a fresh interpreter (start_method='spawn'); "
                "Worker(start_method=…) decides otherwise",
                why,
            )

    def _look(self) -> Mappings:
        return regions.spans() if self.spawn else shared_mappings()

    def why_invisible(self, address: int, nbytes: int, started: bool) -> str | None:
        """Say why workers cannot see some memory of other Workers, or shared by other means; or None."""
        now = covers(self._look(), address, nbytes)
        if now is None:
            if self.spawn and covers(shared_mappings(), address, nbytes) is not None:
                return (
                    "it is shared by other means, and workers that a fresh interpreter makes "
                    "(start_method='spawn') do not inherit it"
                )
            return PRIVATE
        if started and covers(self._at_start, address, nbytes) != now:
            return "it was allocated after the workers were started"
        if self._given is None and not started and covers(regions.spans(), address, nbytes) is None:
            self._inherited = address, nbytes
        return None
