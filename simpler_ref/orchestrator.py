"""The documents' names around the orchestrator; `orch/` and `engine/` have them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .engine.introspection import (
    RingView as RingView,
    SlotView as SlotView,
    TaskView as TaskView,
)
from .engine.structures import (
    INVALID as INVALID,
    AllocResult as AllocResult,
    Ring as Ring,
    Scope as Scope,
    TensorMap as TensorMap,
)
from .orch.orchestrator import (
    Orchestrator as Orchestrator,
    ScopeGuard as ScopeGuard,
)
