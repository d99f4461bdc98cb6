"""What links and sessions note in a trace: frames, and tensors that were moved."""

from __future__ import annotations

import hashlib

from ..jit import layout as L


def frame_word(kind: int, number: int, session: int, *, sent: bool) -> int:
    """Return the first word of a note about a frame; `number` is that of the one that asks."""
    operand = kind | (L.FRAME_SENT if sent else 0)
    operand |= (number & L.FRAME_NUMBER) << 9 | (session & L.FRAME_SESSION) << 40
    return L.NOTED_FRAME | operand << 8


def moved_word(address: str, *, stored: bool) -> int:
    """Return the first word of a note about a tensor that was moved from or to a mover."""
    return L.NOTED_MOVED | (int(stored) | peer_of(address) << 1) << 8


def peer_of(address: str) -> int:
    """Return what notes name a mover by."""
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & L.MOVED_PEER
