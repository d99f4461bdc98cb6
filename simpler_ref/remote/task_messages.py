"""RUN, the message of a task or a call, and DONE, which answers it.

The documents' TASK says which callable runs with which configuration and arguments. A RUN has that as
bytes, or a call, and what a mailbox has beside it: what the task does with its tensors, kinds of scalars,
an environment, copies of the parent's tensors, and the tasks before it. A link makes it from a mailbox. A
session also takes a bare TASK, as a RUN that says nothing more, and answers that by COMPLETION.

A call travels as a worker of this machine gets it: words, and one pickle of all that is no word. Bytes of
more than `MOST_INLINE_KEPT` travel beside the frame, as copies of tensors do.

Rule     CALL-FAR-5, REMOTE-LINK-4, REMOTE-LINK-5, REMOTE-ARGS-3, REMOTE-AHEAD-7, REMOTE-TASK-8,
         REMOTE-TASK-9, REMOTE-TASK-10, REMOTE-TASK-14, REMOTE-MEM-2
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

from ..calls import outcomes
from ..engine.view.mailbox import ReceivedArgs, digest_in, env_beside, identity_in
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import CallConfig
from ..model.enums import DataType, TensorArgType
from ..model.tensor import ContinuousTensor, DescribedTensor
from ..model.wire import (
    CHILD_MEMORY_AT,
    SHAPE_AT,
    TENSOR,
    bytes_of,
    has_layout,
)
from . import fields, tasks
from .copies import MOST_DROPPED, CopiedTensors
from .frames import ControlName
from .limits import MAX_SCALARS, MAX_STRING_BYTES, MAX_TENSORS, MOST_IN_FRAME, MOST_INLINE_KEPT
from .tasks import as_bytes, layout_of, read_layout

MOST_BEFORE = 64
"""Tasks that one may wait for, and that a session has at once: the entries of a link's mailbox."""
MOST_KEPT = 256
MOST_KEPT_BYTES = 1 << 14
"""Of a task that is read once if it is repeated."""


class Run(NamedTuple):
    """A task, its copies, what the session forgets before it, and the frames that it waits for.

    `rights` has a byte for each tensor: 1 reads, 2 writes. `run` numbers the parent's runs and streams of
    calls: copies of an earlier one are stale; 0 if the task has none. `tensors` is empty then. If there
    is a `call`, a `Call` in bytes, or a `replay`, a `lists.Replay`, that is what runs, and there is no
    TASK.
    """

    task: fields.Octets
    rights: Annotated[bytes, fields.blob(MAX_TENSORS)] = b""
    kinds: Annotated[bytes, fields.blob(MAX_SCALARS)] = b""
    env: Annotated[bytes, fields.blob(MAX_STRING_BYTES)] = b""
    run: fields.Uint64 = 0
    tensors: CopiedTensors = ()
    dropped: Annotated[Sequence[int], fields.many(fields.POSITIVE, MOST_DROPPED)] = ()
    after: Annotated[Sequence[int], fields.many(fields.POSITIVE, MOST_BEFORE)] = ()
    call: fields.Octets = b""
    replay: fields.Octets = b""


RUN = fields.Message("RUN", Run)


# ---------------------------------------------------------------- calls
ANY_SUB_WORKER = -1


class FrameCapacity:
    """What still fits into a frame, of bytes that may travel beside it."""

    def __init__(self) -> None:
        self._left = MOST_IN_FRAME

    def takes(self, nbytes: int) -> bool:
        """Say whether some bytes travel in the frame; then they do."""
        fits = nbytes <= min(MOST_INLINE_KEPT, self._left)
        if fits:
            self._left -= nbytes
        return fits


class Piece(NamedTuple):
    """Bytes: in the frame, or so many in a window, or in a copy, that has a key.

    A value with a key is kept by the session, which may have it already; then it need not come again.
    """

    data: fields.InFrame = b""
    key: fields.Uint64 = 0
    nbytes: fields.Uint64 = 0


PIECE = fields.Message("CALL.piece", Piece)


class Call(NamedTuple):
    """A call: the digest of the function, and the only sub worker that may run it, or `ANY_SUB_WORKER`.

    Its arrays are the tensors of the RUN, in their order. `words` say how it is made of all else, eight
    bytes each; see `calls.arguments`. The RUN has their kinds. `items` are names, and values that are
    pickled, unless the words have them; `values` those of calls that are more than a word, in the order
    of their words.
    """

    digest: Annotated[bytes, fields.exactly(32)]
    sub_worker: fields.Int32
    words: fields.Octets
    items: Annotated[Piece, PIECE] = Piece()
    values: Annotated[Sequence[Piece], fields.many(PIECE, MAX_TENSORS)] = ()


class Done(NamedTuple):
    """What became of the task or the call with the number of a RUN; `outcome` is 0, or an error code.

    The value of a call is a word of some kind, or more than that: `value` is its block. `text`, `trace`
    and `exception` are what was raised: described, its traceback, and as a block; empty where that cannot
    be sent. `written` are the arrays that the call has written, in the order of the call; those that are
    longer are empty, and the parent fetches them.
    """

    sequence: fields.Uint64
    outcome: fields.Uint32 = L.SUCCESS
    kind: fields.Uint32 = 0
    word: fields.Uint64 = 0
    value: Annotated[Piece, PIECE] = Piece()
    text: fields.Octets = b""
    trace: fields.Octets = b""
    exception: fields.Octets = b""
    written: Annotated[
        Sequence[bytes], fields.many(fields.blob(MOST_INLINE_KEPT), MAX_TENSORS)
    ] = ()


CALL = fields.Message("CALL", Call)
DONE = fields.Message("DONE", Done)


# ---------------------------------------------------------------- the link's side
_base = itemgetter(0)


class TaskMaker:
    """Makes the messages of one session's tasks, and keeps the last ones: programs repeat themselves."""

    def __init__(self) -> None:
        self._memory: list[tuple[int, tasks.RemoteTensorDesc]] = []
        """That of the session, by the addresses that references to it have."""
        self._made: dict[tuple[bytes, ...], Run] = {}

    def add_memory(self, request: tasks.Request, result: bytes) -> None:
        """Note memory that a request has provided."""
        made: Any
        if request.name == ControlName.IMPORT_BUFFER:
            made = tasks.decode_import_buffer_result(result)
            space, token = tasks.RemoteAddressSpace.REMOTE_WINDOW, made.import_id
            span = made.offset, made.nbytes
        else:
            made = tasks.IDENTITY.decode(result)
            space, token = tasks.RemoteAddressSpace.REMOTE_DEVICE, 0
            span = 0, tasks.ALLOC.decode(request.payload)
        owner, generation = made.owner_endpoint_id, made.generation
        desc = tasks.RemoteTensorDesc(space, owner, made.buffer_id, *span, 0, token, generation)
        self._memory.insert(bisect(self._memory, request.base, key=_base), (request.base, desc))

    def drop_memory(self, base: int) -> None:
        """Forget memory, and the tasks that may refer to it."""
        self._memory = [one for one in self._memory if one[0] != base]
        self._made.clear()

    def _describe(self, address: int, nbytes: int) -> tasks.RemoteTensorDesc:
        at = bisect(self._memory, address, key=_base) - 1
        if at >= 0:
            base, desc = self._memory[at]
            past = address - base
            if past + nbytes <= desc.nbytes:
                return replace(desc, offset=desc.offset + past, nbytes=nbytes)
        raise ValueError(
            "a reference is to memory that this session of the endpoint does not have: it was freed, or "
            "the endpoint was lost and has started anew"
        )

    def make(self, args: ReceivedArgs, wires: list[bytes], words: list[int], kinds: bytes) -> Run:
        """Return the message of a task, without what it says of copies and of other tasks."""
        names = []
        for wire in wires:
            access = wire[CHILD_MEMORY_AT]
            if access & L.TENSOR_INLINE:
                return self._make(args, wires, words, kinds)  # the bytes are elsewhere
            names.append(wire[SHAPE_AT:] if access & L.TENSOR_COPIED else wire)
        key = (identity_in(args._box), kinds, *names, struct.pack(f"<{len(words)}Q", *words))
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= MOST_KEPT:
                self._made.clear()
            made = self._made[key] = self._make(args, wires, words, kinds)
        return made

    def _make(self, args: ReceivedArgs, wires: list[bytes], words: list[int], kinds: bytes) -> Run:
        arena: list[bytes] = []
        tensors, sidecars, rights = [], [], bytearray()
        used = 0
        for wire in wires:
            data, *sizes, ndims, dtype, access = TENSOR.unpack(wire)
            nbytes = bytes_of(wire)
            if not access & L.TENSOR_REMOTE:
                raise ValueError(f"a tensor at {data:#x} is in no endpoint's memory")
            tensors.append(
                as_bytes(layout_of(args._layouts, wire), nbytes)
                if has_layout(wire)
                else ContinuousTensor(0, sizes[:ndims], DataType(dtype))
            )
            rights.append((access & (L.TENSOR_READ | L.TENSOR_WRITE)) // L.TENSOR_READ)
            if access & L.TENSOR_COPIED:
                desc = None
            elif access & L.TENSOR_INLINE:
                arena.append(ctypes.string_at(data, nbytes))
                desc = tasks.RemoteTensorDesc(
                    tasks.RemoteAddressSpace.HOST_INLINE,
                    nbytes=nbytes,
                    inline_payload_offset=used,
                    inline_payload_len=nbytes,
                )
                used += nbytes
            else:
                desc = self._describe(data, nbytes)
            sidecars.append(tasks.RemoteTensorSidecar(desc is not None, desc))
        wire_args = tasks.RemoteTaskArgsWire(tensors, sidecars, words, b"".join(arena))
        config, env = args.config(), env_beside(args._box)
        config.runtime_env = None
        task = tasks.encode_task_payload(
            tasks.TaskPayloadWire(digest_in(args._box), config, wire_args)
        )
        return Run(task, bytes(rights), kinds, env if any(env) else b"")


# ---------------------------------------------------------------- the session's side
def failure_of(error: BaseException, sequence: int, outcome: int = L.TASK_FAILURE) -> Done:
    """Return what became of a task or a call that has failed."""
    return reported(memoryview(outcomes.error_block(error)), sequence, outcome)


def reported(report: memoryview, sequence: int, outcome: int = L.TASK_FAILURE) -> Done:
    """Return the same from the block of an error."""
    text, trace, exception = outcomes.read_report(report)
    raw = text.encode(errors="replace"), trace.encode(errors="replace")
    return Done(sequence, outcome, 0, 0, Piece(), *raw, exception)


class ReadTask(NamedTuple):
    """What the documents' TASK says, the bytes of each tensor, and whether it has a configuration.

    `wires` are the tensors as inputs, without their addresses.
    """

    task: tasks.TaskPayloadWire
    sizes: list[int]
    is_configured: bool
    wires: list[bytes]


def read_task(raw: bytes) -> ReadTask:
    return (_read if len(raw) > MOST_KEPT_BYTES else _read_small)(raw)


def _read(raw: bytes) -> ReadTask:
    task = tasks.decode_task_payload(raw)
    tensors = task.args.tensor_metadata
    wires = [one._tagged(TensorArgType.INPUT)[SHAPE_AT:] for one in tensors]
    is_configured = task.config != CallConfig()
    return ReadTask(task, [one.nbytes() for one in tensors], is_configured, wires)


_read_small = lru_cache(maxsize=256)(_read)
"""The same for those that are often repeated."""


def copy_at(address: int, tensor: ContinuousTensor, layout: str) -> ContinuousTensor:
    if layout:
        return DescribedTensor(address, read_layout(layout, tensor.nbytes()))
    return ContinuousTensor(address, tensor.shapes, tensor.dtype)


def add_scalars(args: TaskArgs, scalars: Sequence[int], kinds: bytes) -> None:
    if scalars:
        args._scalars = [
            word.to_bytes(8, "little") + kind.to_bytes(8, "little")
            for word, kind in zip(scalars, kinds or bytes((L.RAW,)) * len(scalars), strict=True)
        ]
