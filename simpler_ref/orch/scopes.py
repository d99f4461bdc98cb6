"""``with orch.scope():``."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol


class Scoped(Protocol):
    """What has scopes: an Orchestrator."""

    def scope_begin(self) -> None:
        """Open a scope."""

    def scope_end(self) -> None:
        """End the innermost scope."""

    def _depth(self) -> int: ...

    def _is_closed(self) -> bool: ...


class ScopeGuard:
    """``with orch.scope():`` — opens a scope, and ends it and what was left open inside it.

    Rule     ORCH-SCOPE-2
    """

    __slots__ = ("_depth", "_orch")

    def __init__(self, orch: Scoped) -> None:
        self._orch = orch
        self._depth = 0

    def __enter__(self) -> None:
        if self._depth:
            raise RuntimeError("this scope is open already: call orch.scope() for each with")
        self._orch.scope_begin()
        self._depth = self._orch._depth()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        orch, depth = self._orch, self._depth
        self._depth = 0
        if orch._is_closed():  # the run is over, or is another process's that this was forked from
            return
        if orch._depth() < depth:
            if error is None:
                raise RuntimeError(
                    "scope_end without scope_begin: this scope was ended inside its with block"
                )
            return
        while orch._depth() >= depth:
            orch.scope_end()
