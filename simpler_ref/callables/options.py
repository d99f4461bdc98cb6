"""What is known of compiled tasks without the compiler, whose import takes as long as a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..system.values import flag

if TYPE_CHECKING:
    from ..engine.view.mailbox import ReceivedArgs

OPTIONS = frozenset({"fastmath", "error_model", "boundscheck", "parallel"})
"""Those of `numba.njit` that compiled tasks may have."""
_FAST = ("fast", "nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc")


class CompiledCallable:
    """A function that workers run compiled: `leaves.Leaf`.

    Attributes
    ----------
    address : int
        Address of the code that a worker's loop calls, 0 before it is compiled.
    compile
        Compiles it, if the types are determined and it is not compiled yet.
    run_task
        Runs a task from Python.
    """

    address: int
    compile: Callable[[], None]
    run_task: Callable[[ReceivedArgs], None]


def require_options(options: Mapping[str, Any]) -> None:
    """Refuse values that `numba.njit` would refuse at the first call, or take for others.

    Raises
    ------
    TypeError, ValueError
        The error names the option.
    """
    for name, value in options.items():
        if name == "error_model":
            if value not in ("python", "numpy"):
                raise ValueError(f"error_model={value!r:.60}: it is 'python' or 'numpy'")
        elif name == "fastmath" and isinstance(value, (set, dict)):
            if unknown := set(value).difference(_FAST):
                raise ValueError(f"fastmath has no {unknown.pop()!r}; it has {', '.join(_FAST)}")
        elif (name, type(value)) not in (("parallel", dict), ("boundscheck", type(None))):
            flag(name, value)
