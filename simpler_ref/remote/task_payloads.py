"""The payload of a task's frame, as the link of an endpoint makes it from a mailbox.

Rule     REMOTE-LINK-4, -5; REMOTE-ARGS-3; REMOTE-TASK-8
"""

from __future__ import annotations

import ctypes
import struct

from ..engine.view.mailbox import ReceivedArgs, digest_in, env_beside, identity_in
from ..jit import layout as L
from ..model.enums import DataType
from ..model.tensor import ContinuousTensor
from ..model.wire import CHILD_MEMORY_AT, TENSOR, Layout, bytes_of, has_layout, layout_number
from .buffers import RemoteAddressSpace
from .layouts import layout_text
from .requests import Views
from .tasks import (
    TASK_MORE,
    MoreOfTask,
    RemoteTaskArgsWire,
    RemoteTensorDesc,
    RemoteTensorSidecar,
    TaskPayloadWire,
    encode_task_payload,
)

MOST_KEPT = 256


class TaskPayloads:
    """Makes the payloads of one session's tasks, and keeps the last ones: programs repeat themselves.

    Attributes
    ----------
    views : Views
        The memory that references may be to; after it has lost some, `forget` what was made.
    """

    def __init__(self) -> None:
        self.views = Views()
        self._made: dict[tuple[bytes, ...], bytes] = {}

    def forget(self) -> None:
        """Keep nothing."""
        self._made.clear()

    def make(self, args: ReceivedArgs, wires: list[bytes], words: list[int], kinds: bytes) -> bytes:
        """Return the payload of a TASK_MORE."""
        if any(wire[CHILD_MEMORY_AT] & L.TENSOR_INLINE for wire in wires):
            return self._make(args, wires, words, kinds)  # the bytes are elsewhere
        key = (identity_in(args._box), kinds, *wires, struct.pack(f"<{len(words)}Q", *words))
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            made = self._made[key] = self._make(args, wires, words, kinds)
        return made

    def _make(
        self, args: ReceivedArgs, wires: list[bytes], words: list[int], kinds: bytes
    ) -> bytes:
        arena: list[bytes] = []
        tensors, sidecars, rights = [], [], bytearray()
        used = 0
        for wire in wires:
            data, *sizes, ndims, dtype, access = TENSOR.unpack(wire)
            nbytes = bytes_of(wire)
            if not access & L.TENSOR_REMOTE:
                raise ValueError(f"a tensor at {data:#x} is in no endpoint's memory")
            tensors.append(
                as_bytes(layout_of(args, wire), nbytes)
                if has_layout(wire)
                else ContinuousTensor(0, sizes[:ndims], DataType(dtype))
            )
            rights.append((access & (L.TENSOR_READ | L.TENSOR_WRITE)) // L.TENSOR_READ)
            if access & L.TENSOR_COPIED:
                desc = None
            elif access & L.TENSOR_INLINE:
                arena.append(ctypes.string_at(data, nbytes))
                desc = RemoteTensorDesc(
                    RemoteAddressSpace.HOST_INLINE,
                    nbytes=nbytes,
                    inline_payload_offset=used,
                    inline_payload_len=nbytes,
                )
                used += nbytes
            else:
                desc = self.views.find(data, nbytes).describe(data, nbytes)
            sidecars.append(RemoteTensorSidecar(desc))
        wire_args = RemoteTaskArgsWire(tensors, sidecars, words, b"".join(arena))
        config = args.config()
        config.runtime_env = None
        payload = encode_task_payload(TaskPayloadWire(digest_in(args._box), config, wire_args))
        env = env_beside(args._box)
        return TASK_MORE.encode(MoreOfTask(payload, bytes(rights), kinds, env if any(env) else b""))


def layout_of(args: ReceivedArgs, wire: bytes) -> Layout:
    """Return the layout of a tensor that only one describes."""
    assert args._layouts is not None
    return args._layouts.read(layout_number(wire))


def layouts_in(args: ReceivedArgs, wires: list[bytes]) -> list[str]:
    """Return for each tensor its layout as it travels; "" if it needs none."""
    return [layout_text(layout_of(args, one)) if has_layout(one) else "" for one in wires]


def as_bytes(layout: Layout, nbytes: int) -> ContinuousTensor:
    """Return what stands for a tensor that only a layout describes: the bytes of its elements."""
    size = max(1, layout[0].itemsize)
    return ContinuousTensor(0, (nbytes // size, size), DataType.UINT8)
