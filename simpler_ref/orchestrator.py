"""The documents' names around the orchestrator; `orch/` and `engine/` have them.

Rule     HIER-API-1
"""

from typing import TYPE_CHECKING

from .system.lazy import pass_on as _pass_on

if TYPE_CHECKING:
    from .engine.introspection import *
    from .engine.structures import *
    from .orch.orchestrator import *

_pass_on(
    globals(),
    {
        ".engine.introspection": "RingView SlotView TaskView",
        ".engine.structures": "INVALID AllocResult Ring Scope TensorMap",
        ".orch.orchestrator": "Orchestrator ScopeGuard",
    },
)
