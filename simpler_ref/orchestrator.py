"""The documents' names around the orchestrator; `orch/` and `engine/` have them.

Rule     HIER-API-1
"""

from __future__ import annotations

from .engine.introspection import RingView, SlotView, TaskView, view_slot
from .engine.structures import INVALID, AllocResult, Ring, Scope, TensorMap
from .orch.orchestrator import Orchestrator, ScopeGuard

__all__ = [
    "INVALID",
    "AllocResult",
    "Orchestrator",
    "Ring",
    "RingView",
    "Scope",
    "ScopeGuard",
    "SlotView",
    "TaskView",
    "TensorMap",
    "view_slot",
]
