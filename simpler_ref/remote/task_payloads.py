"""The payload of a task's frame, as the link of an endpoint makes it from a mailbox."""

from __future__ import annotations

import ctypes

from ..engine.view.mailbox import ReceivedArgs, digest_in, env_beside
from ..jit import layout as L
from ..model.enums import DataType
from ..model.tensor import ContinuousTensor
from ..model.wire import TENSOR, bytes_of
from .buffers import RemoteAddressSpace
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


def task_payload(
    args: ReceivedArgs,
    wires: list[bytes],
    words: list[int],
    kinds: bytes,
    views: Views,
    has_more: bool,
) -> bytes:
    """Return the payload of a TASK, or of a TASK_MORE if the session takes it.

    Rule     REMOTE-LINK-4, -5; REMOTE-ARGS-3
    """
    arena: list[bytes] = []
    tensors, sidecars, rights = [], [], bytearray()
    used = 0
    for wire in wires:
        data, *sizes, ndims, dtype, access = TENSOR.unpack(wire)
        nbytes = bytes_of(wire)
        if not access & L.TENSOR_REMOTE:
            raise ValueError(f"a tensor at {data:#x} is in no endpoint's memory")
        tensors.append(ContinuousTensor(0, sizes[:ndims], DataType(dtype)))
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
            desc = views.find(data, nbytes).describe(data, nbytes)
        sidecars.append(RemoteTensorSidecar(desc))
    wire_args = RemoteTaskArgsWire(tensors, sidecars, words, b"".join(arena))
    config = args.config()
    config.runtime_env = None
    payload = encode_task_payload(TaskPayloadWire(digest_in(args._box), config, wire_args))
    if has_more:
        env = env_beside(args._box)
        more = MoreOfTask(payload, bytes(rights), kinds, env if any(env) else b"")
        return TASK_MORE.encode(more)
    return payload
