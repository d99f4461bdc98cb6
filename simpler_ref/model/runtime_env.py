"""The sizes that a chip's runtime is asked for, beside the configuration of a task.

Rule     FLOW-ENV-1, FLOW-CONFIG-5
"""

from __future__ import annotations

import struct
from operator import index
from typing import Any

from ..jit import layout as L
from ..jit.structures import RUNTIME_ENV

FIELDS = tuple(RUNTIME_ENV.offsets)
_LAYOUT = struct.Struct(RUNTIME_ENV.format)
RUNTIME_ENV_SIZE = _LAYOUT.size
Sizes = int | tuple[int, ...]


class RuntimeEnv:
    """Sizes of the rings of a chip's runtime; 0 leaves a size to the runtime.

    Each is a number, for all rings, or a number for each of the four.

    Attributes
    ----------
    ring_task_window : int | tuple[int, ...]
        Tasks that may be alive.
    ring_heap : int | tuple[int, ...]
        Bytes of the heap.
    ring_dep_pool : int | tuple[int, ...]
        Dependencies that may be noted.
    """

    __slots__ = FIELDS

    ring_task_window: Any
    ring_heap: Any
    ring_dep_pool: Any

    def __init__(
        self, ring_task_window: Any = 0, ring_heap: Any = 0, ring_dep_pool: Any = 0
    ) -> None:
        self.ring_task_window = ring_task_window
        self.ring_heap = ring_heap
        self.ring_dep_pool = ring_dep_pool

    def validate(self) -> None:
        """Check every field.

        Raises
        ------
        ValueError
            A size that is no number from 0 to 2**63 - 1, or not one number for each of four rings.
        """
        for name in FIELDS:
            _sizes(name, getattr(self, name))

    def to_bytes(self) -> bytes:
        """Return the sizes as they travel: each for four rings, `RUNTIME_ENV_SIZE` bytes."""
        return _LAYOUT.pack(
            *(size for name in FIELDS for size in _sizes(name, getattr(self, name)))
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> RuntimeEnv:
        """Read what `to_bytes` made; a size that all rings have is one number."""
        found = _LAYOUT.unpack(raw)
        rings = L.MAX_RING_DEPTH
        parts = [found[at : at + rings] for at in range(0, len(found), rings)]
        return cls(*(part[0] if len(set(part)) == 1 else part for part in parts))

    def __bool__(self) -> bool:
        """Say whether it asks for anything."""
        return any(getattr(self, name) for name in FIELDS) and any(self.to_bytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuntimeEnv) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in FIELDS if getattr(self, name))
        return f"RuntimeEnv({', '.join(shown)})"


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return a size for each ring."""
    each = tuple(value) if isinstance(value, (list, tuple)) else (value,) * L.MAX_RING_DEPTH
    try:
        sizes = tuple(index(one) for one in each)
    except TypeError:
        sizes = (-1,)
    if len(sizes) != L.MAX_RING_DEPTH or not all(0 <= one < 1 << 63 for one in sizes):
        raise ValueError(
            f"RuntimeEnv.{name} is {value!r}; give a number from 0 to 2**63 - 1, or one for each of the "
            f"{L.MAX_RING_DEPTH} rings"
        )
    return sizes
