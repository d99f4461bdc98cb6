"""What any bytes must do to the decoders in Python: become something that encodes to them, or be refused.

Each check takes one input. It fails by an exception, and so does a decoder that raises what it does not
announce.
"""

from __future__ import annotations

import functools
import os
import random
import struct
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from simpler_ref import callable_identity as ci
from simpler_ref.callable_identity import CallableHandle, CallableKind, TargetNamespace
from simpler_ref.callables import identity, pickling
from simpler_ref.engine.view.mailbox import MailboxView
from simpler_ref.errors import CallableError
from simpler_ref.jit import layout as L
from simpler_ref.model.tensor import ReadOnlyTensor
from simpler_ref.native_chip import ChipCallable, CoreCallable
from simpler_ref.remote.fields import WireError
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType
from simpler_ref.workers.kinds import SubWorker
from simpler_ref.workers.loop import LocalCallables, obey
from simpler_ref.workers.reports import read_error

from ..remote_messages import MESSAGES, VALID
from ..remote_messages import configs as valid_configs
from ..support import received, small_engine


class Target(NamedTuple):
    """A decoder: what it is given, and what must hold then."""

    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


REFUSED = object()
DESCRIBED = struct.Struct("<16xq4xIB")
"""Of a tensor that a layout describes: the bytes that it spans, and 255 twice."""
MOST_BYTES = 1 << 62


def attempt(decode: Callable[[], Any], *documented: type[Exception]) -> Any:
    """Return what a decoder makes of its input, or REFUSED; nothing else may be raised."""
    try:
        return decode()
    except documented as error:
        assert type(error) in documented, f"{type(error).__name__} is not announced: {error}"
        assert str(error), "a refusal without words"
        return REFUSED


# ---------------------------------------------------------------- bytes that are nearly right
_EDGES = (0, 1, 2, 3, 5, 6, 11, 12, 127, 128, 129, 255, 1023, 1024, 1025, 4096, 15024, 16384)
NUMBERS = sorted({*_EDGES, *((1 << bits) + d for bits in (31, 32, 62, 63, 64) for d in (-1, 0, 1))})
"""Values at which something in a layout changes."""
_FORMATS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


@st.composite
def edited(draw, valid, most=4):
    """Draw bytes of `valid`, changed in up to so many places: numbers, bits, cuts, insertions, copies."""
    raw = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(raw)))
        how = draw(st.sampled_from(("number", "number", "bits", "cut", "insert", "remove", "copy")))
        if how == "number":
            size = draw(st.sampled_from(tuple(_FORMATS)))
            value = draw(st.one_of(st.sampled_from(NUMBERS), st.integers(0, (1 << 64) - 1)))
            at -= at % size if draw(st.booleans()) else 0
            wire = struct.pack(_FORMATS[size], value & (1 << 8 * size) - 1)
            end = min(at + size, len(raw))
            raw[at:end] = wire[: end - at]
        elif how == "bits" and at < len(raw):
            raw[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del raw[at:]
        elif how == "insert":
            raw[at:at] = draw(st.binary(max_size=16))
        elif how == "remove":
            del raw[at : at + draw(st.integers(1, 64))]
        elif how == "copy":
            start = draw(st.integers(0, len(raw)))
            raw[at:at] = raw[start : start + draw(st.integers(1, 64))]
    return bytes(raw)


def edited_in_place(valid, most=4):
    """Draw the same with as many bytes as before, as a reader of a fixed place finds them."""

    def fit(pair):
        before, after = pair
        return (after + bytes(len(before)))[: len(before)]

    return valid.flatmap(lambda raw: st.tuples(st.just(raw), edited(st.just(raw), most))).map(fit)


numbers = st.one_of(st.sampled_from(NUMBERS), st.integers(-(1 << 65), 1 << 65))
words = st.one_of(st.sampled_from(NUMBERS), st.integers(0, (1 << 64) - 1)).map(
    lambda n: n & (1 << 64) - 1
)
texts = st.one_of(st.text(max_size=40), st.text(st.characters(), max_size=400))
"""Also with what no UTF-8 has."""


# ---------------------------------------------------------------- configurations
configs = valid_configs().map(CallConfig.to_bytes)


def check_config(raw):
    config = attempt(lambda: CallConfig.from_bytes(raw), ValueError)
    if config is not REFUSED:
        assert config.to_bytes() == raw


# ---------------------------------------------------------------- tensors and the mailbox
tensors = st.builds(
    ContinuousTensor.make,
    words,
    st.lists(st.integers(0, 9), max_size=5),
    st.sampled_from(DataType),
    st.booleans(),
).map(lambda one: one._wire)
"""The 40 bytes of a tensor that can be."""


def same_tensor(wire):
    """Return the bytes of a tensor that mean something: tag, padding and unused dimensions do not.

    Nor does the mark of `check=True`, which concerns the receiver alone.
    """
    return wire[: 8 + 4 * struct.unpack_from("<I", wire, 28)[0]], wire[28:33], wire[33] == 1


def is_marked_alike(tensor, wire):
    """Say whether a tensor is read-only if, and only if, its bytes say so."""
    return isinstance(tensor, ReadOnlyTensor) == (wire[33] == L.TENSOR_READ_ONLY)


def check_tensor(raw):
    tensor = attempt(lambda: ContinuousTensor._from_wire(raw), ValueError)
    if tensor is REFUSED:
        return
    assert same_tensor(tensor._wire) == same_tensor(raw)
    assert is_marked_alike(tensor, raw)
    assert ContinuousTensor._from_wire(tensor._wire) == tensor
    array = attempt(tensor.numpy, ValueError, TypeError)  # TypeError: no bfloat16 here
    if array is not REFUSED:
        assert array.shape == tensor.shapes
        assert array.nbytes in (tensor.nbytes(), 0)
        assert array.nbytes == 0 or 4096 <= tensor.data < 1 << 47


@st.composite
def mailboxes(draw):
    wires = draw(st.lists(tensors, max_size=4))
    scalars, box = draw(st.lists(words, max_size=4)), bytearray(L.MAILBOX_SIZE)
    struct.pack_into("<i", box, 0, L.TASK_READY)
    config = draw(configs)
    box[L.MAILBOX_OFF_CONFIG : L.MAILBOX_OFF_CONFIG + len(config)] = config
    blob = struct.pack("<ii", len(wires), len(scalars)) + b"".join(wires)
    blob += struct.pack(f"<{len(scalars)}Q", *scalars)
    box[L.MAILBOX_OFF_ARGS : L.MAILBOX_OFF_ARGS + len(blob)] = blob
    return bytes(box)


@st.composite
def damaged_mailboxes(draw):
    """Draw one with damage where arguments and configuration are."""
    box = bytearray(draw(mailboxes()))
    for start, size in ((L.MAILBOX_OFF_ARGS, 200), (L.MAILBOX_OFF_CONFIG, L.CALL_CONFIG_SIZE)):
        box[start : start + size] = draw(edited_in_place(st.just(bytes(box[start:][:size])), 3))
    return bytes(box)


def check_mailbox(raw):
    args = received(raw)
    tensors, scalars = struct.unpack_from("<ii", raw, L.MAILBOX_OFF_ARGS)
    fits = tensors >= 0 and scalars >= 0 and 8 + 40 * tensors + 8 * scalars <= 15024
    counts = attempt(lambda: (args.tensor_count(), args.scalar_count(), len(args)), RuntimeError)
    assert (counts is not REFUSED) == fits
    if not fits:
        for read in (args.tensor, args.scalar, args.scalar_float):
            assert attempt(lambda read=read: read(0), RuntimeError) is REFUSED
    else:
        assert counts == (tensors, scalars, tensors + scalars)
        at = L.MAILBOX_OFF_ARGS + 8
        for i in range(-1, tensors + 1):
            documented = [ValueError] if 0 <= i < tensors else [IndexError]
            tensor = attempt(lambda i=i: args.tensor(i), *documented)
            if tensor is not REFUSED:
                wire = raw[at + 40 * i :][:40]
                assert same_tensor(tensor._wire) == same_tensor(wire)
                assert is_marked_alike(tensor, wire)
        at += 40 * tensors
        for i in range(scalars):
            assert args.scalar(i) == int.from_bytes(raw[at + 8 * i :][:8], "little")
            assert struct.pack("<d", args.scalar_float(i)) == raw[at + 8 * i :][:8] or (
                args.scalar_float(i) != args.scalar_float(i)
            )
        assert attempt(lambda: args.scalar(scalars), IndexError) is REFUSED
        attempt(args.config, ValueError)
    assert bytes(args._box[: L.MAILBOX_SIZE]) == raw


# ---------------------------------------------------------------- control requests
class Recording(SubWorker):
    """Notes what it is asked to do."""

    def start(self, mailbox):
        super().start(mailbox)
        self.asked = []

    def install(self, target):
        self.asked.append(target)
        return target

    def control(self, command, arg0, arg1, arg2):
        self.asked.append((command, arg0, arg1, arg2))
        return arg0 if command == L.CTRL_MALLOC else super().control(command, arg0, arg1, arg2)


PAYLOAD = pickling.pack_payload(pickling.serialize(len))
DIGEST = ci.hashid_to_digest(
    ci.compute_callable_hashid(ci.build_python_serialized_descriptor(pickling.serialize(len)))
)


@functools.cache
def shared_engine():
    """Return an engine without processes, made when it is first needed."""
    return small_engine()


@st.composite
def requests(draw):
    """Draw a staged payload and a control request, one of them perhaps damaged."""
    payload = draw(st.one_of(st.just(PAYLOAD), edited(st.just(PAYLOAD), 2)))
    known = st.sampled_from((L.CTRL_PY_REGISTER, L.CTRL_REGISTER))
    command = draw(known | st.integers(0, 12) | words)
    size = draw(st.one_of(st.just(len(payload)), words))
    name = draw(
        st.one_of(
            st.none(),
            st.binary(max_size=32),
            st.sampled_from([b"", b"object:", b"object:0", b"object:-1", b"object:x", b"/"])
            | st.sampled_from([b"/dev/zero", b"/dev/null", b"/proc/self/mem", b"\xff" * 32]),
        )
    )
    digest = draw(st.one_of(st.just(DIGEST), st.binary(min_size=32, max_size=32)))
    return payload, command, (size, draw(words), draw(words)), name, digest


def check_request(request):
    payload, command, args, name, digest = request
    mailbox, kind = MailboxView(shared_engine(), 0), Recording()
    kind.start(mailbox)
    callables, box = LocalCallables(kind, {}), mailbox.box(mailbox.awaited)
    with pickling.staged(payload) as staged:
        raw = bytearray(L.MAILBOX_SIZE)
        struct.pack_into("<Q", raw, L.MAILBOX_OFF_COMMAND, command)
        struct.pack_into("<4Q", raw, L.MAILBOX_OFF_CONTROL_ARGS, *args, 0)
        named = staged.encode() if name is None else name
        struct.pack_into("32s32s", raw, L.MAILBOX_OFF_CONTROL_NAME, named, digest)
        box[: L.MAILBOX_SIZE] = raw
        error = obey(mailbox, callables)
    message = read_error(bytes(box[L.MAILBOX_OFF_ERROR_MSG :]), b"")[0]
    assert error == (1 if message else 0)
    if error:
        assert message.startswith("CallableError: "), message
        assert not callables.slots
        assert box[: L.MAILBOX_OFF_ERROR_MSG] == raw[: L.MAILBOX_OFF_ERROR_MSG]
    elif command == L.CTRL_PY_REGISTER:
        assert (payload, digest, args[0]) == (PAYLOAD, DIGEST, len(PAYLOAD))
        assert (kind.asked, list(callables.slots)) == ([len], [DIGEST])


# ---------------------------------------------------------------- what goes into submit
@st.composite
def submits(draw):
    """Draw counts, members and bytes for the engine's submit; most of them fit each other."""
    members = draw(st.integers(0, 3))
    shares = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(members or 1)]
    tensors_count, scalars = (sum(column) for column in zip(*shares, strict=True))
    parts = []
    for _ in range(tensors_count):
        wire = bytearray(draw(tensors))
        wire[:8] = draw(st.sampled_from((0, 4096, 8192, (1 << 64) - 8))).to_bytes(8, "little")
        wire[34] = draw(st.integers(0, 5))
        parts.append(bytes(wire))
    parts.append(bytes(8 * L.SCALAR_WORDS * scalars))
    if members:
        parts += [struct.pack("<iiQ", *share, draw(st.integers(0, 2))) for share in shares]
    wire = draw(edited(st.just(b"".join(parts)), 2))
    counts = tensors_count | scalars << 32
    if draw(st.integers(0, 3)) == 0:
        counts = signed(draw(words))
    if draw(st.integers(0, 7)) == 0:
        members = signed(draw(words))
    return counts, members, wire


def signed(word):
    """Return 64 bits as the signed number that they are."""
    return word - (word >> 63 << 64)


def is_what_was_announced(mem, counts, members, wire):
    """Say in Python whether bytes are the arguments that counts and members announce."""
    tensors, scalars = counts & 0xFFFFFFFF, counts >> 32
    table = 40 * tensors + 8 * L.SCALAR_WORDS * scalars
    if scalars < 0 or members < 0 or table + 16 * members > len(wire) // 8 * 8:
        return False
    shares = [struct.unpack_from("<IiQ", wire, table + 16 * i) for i in range(members)]
    if members and (sum(s[0] for s in shares), sum(s[1] for s in shares)) != (tensors, scalars):
        return False
    if any(share[1] < 0 or share[2] > mem[L.WORKERS] for share in shares):
        return False
    for i in range(tensors):
        one = wire[40 * i : 40 * i + 40]
        if one[34] == L.OUTPUT and not any(one[:8]) and not is_tensor(one):
            return False
    return True


def is_tensor(wire):
    """Say whether 40 bytes are a tensor, whatever stands beside its element type."""
    extent, ndims, dtype = DESCRIBED.unpack_from(wire)
    if dtype == 0xFF:  # a layout describes it, whose number only an engine knows
        return ndims == 0xFF and 0 <= extent < MOST_BYTES
    return (
        attempt(lambda: ContinuousTensor._from_wire(wire[:33] + bytes(7)), ValueError)
        is not REFUSED
    )


def check_submit(request):
    counts, members, wire = request
    engine = shared_engine()
    mem, kernels = engine.mem, engine.kernels
    if mem[L.SCOPE_DEPTH] == 0:
        assert kernels.begin_run(mem) == L.OK
    before, word = mem.copy(), L.SUB << L.WORD_KIND
    refusals = (L.ILLEGAL, L.TOO_MANY_ARGS, L.TOO_LARGE, L.WOULD_BLOCK)
    fits = is_what_was_announced(mem, counts, members, wire)
    code = kernels.submit_and_pass(mem, word, counts, members, wire)
    assert code >= 0 or code in refusals
    if code < 0:
        assert np.array_equal(mem, before)
    if code != L.TOO_MANY_ARGS:  # which is said first
        assert fits == (code != L.ILLEGAL)
    mem[:] = before
    code = kernels.alloc_buffer(mem, wire)
    fits = len(wire) >= 40 and is_tensor(wire[:40])
    assert fits == (code != L.ILLEGAL)
    assert code >= 0 or (code in refusals and np.array_equal(mem, before))
    mem[:] = before


# ---------------------------------------------------------------- callables: envelopes, hashids, handles
def check_envelope(raw):
    payload = attempt(lambda: pickling.parse_python_callable_payload(raw), CallableError)
    if payload is not REFUSED:
        assert pickling.pack_payload(payload) == raw


GOOD = "sha256:" + "0123456789abcdef" * 4
hashids = st.one_of(
    texts,
    numbers,
    st.binary(min_size=32, max_size=32).map(lambda raw: "sha256:" + raw.hex()),
    edited(st.just(GOOD.encode()), 2).map(lambda raw: raw.decode("latin-1")),
)


def check_hashid(hashid):
    digest = attempt(lambda: ci.hashid_to_digest(hashid), CallableError)
    if digest is not REFUSED:
        assert (len(digest), "sha256:" + digest.hex()) == (32, hashid)


KNOWN = CallableHandle(GOOD, CallableKind.PYTHON_IMPORT, TargetNamespace.LOCAL_PYTHON, "known")


@st.composite
def handle_wires(draw):
    """Draw what stands in the pickle of a handle, one part of it perhaps another's."""
    _, wire = KNOWN.__reduce__()
    wire = list(wire)
    if draw(st.booleans()):
        wire[draw(st.integers(0, 4))] = draw(st.one_of(hashids, numbers, texts))
    return tuple(wire)


def check_handle_wire(wire):
    handle = attempt(lambda: identity._find_handle(*wire), CallableError, ValueError)
    if handle is not REFUSED:
        _, hashid, kind, namespace, _ = wire  # the name is for messages alone
        assert (handle.hashid, handle.kind, handle.target_namespace) == (hashid, kind, namespace)


# ---------------------------------------------------------------- chip callables
CORE = CoreCallable.build([1, 0], b"core")
CHIP = ChipCallable.build([1, 2, 0], "entry", b"chip", [(7, CORE), (0, CORE)], "cfg").to_bytes()


def check_chip_blob(raw):
    made = attempt(lambda: ChipCallable.from_bytes(raw), ValueError)
    if made is not REFUSED:
        assert made.to_bytes() == raw


# ---------------------------------------------------------------- messages of remote workers
def remote_target(name):
    """Return the target of one kind of message."""
    _, encode, decode = MESSAGES[name]

    def written(value):
        raw = encode(value)
        assert (decode(raw), decode(memoryview(raw))) == (value, value)
        return raw

    def check(raw):
        value = attempt(lambda: decode(raw), WireError)
        if value is not REFUSED:
            assert encode(value) == raw

    return Target(edited(VALID[name].map(written)), check)


TARGETS = {
    "config": Target(edited(configs), check_config),
    "tensor": Target(edited_in_place(tensors), check_tensor),
    "mailbox": Target(damaged_mailboxes(), check_mailbox),
    "request": Target(requests(), check_request),
    "submit": Target(submits(), check_submit),
    "envelope": Target(edited(st.just(PAYLOAD)), check_envelope),
    "hashid": Target(hashids, check_hashid),
    "handle that travelled": Target(handle_wires(), check_handle_wire),
    "chip blob": Target(edited(st.just(CHIP)), check_chip_blob),
    **{f"remote {name}": remote_target(name) for name in VALID},
}


# ---------------------------------------------------------------- a target and many inputs
TIMES = int(os.environ.get("SIMPLER_REF_FUZZ", "1"))
"""How many times as many inputs as usual."""
SEED = os.environ.get("SIMPLER_REF_FUZZ_SEED")
"""A number, as a failure prints it, that gives the same inputs again."""
FIXED = 1
"""A number that gives the same inputs in every run of the tests."""


def run(target: Target, examples: int, number: int) -> None:
    """Give a target so many inputs, the same ones for the same number."""

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(data=target.inputs)
    def whatever_comes(data):
        target.check(data)

    with warnings.catch_warnings():
        # As an error, it would hide the failure whose input is long.
        warnings.filterwarnings("ignore", "Generating overly large repr", HypothesisWarning)
        whatever_comes()


def run_fixed_and_new(target: Target, examples: int) -> None:
    """Give a target inputs that are always the same, then as many that are new."""
    drawn = random.SystemRandom().randrange(1 << 32) if SEED is None else int(SEED)
    print(f"with other inputs each time; these again: SIMPLER_REF_FUZZ_SEED={drawn}")
    for number in (FIXED, drawn):
        run(target, examples * TIMES, number)
