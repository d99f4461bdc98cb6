"""The messages of remote level 3 Workers: how each is encoded and decoded, and any valid one."""

from hypothesis import strategies as st

from simpler_ref import remote_l3_protocol as wire
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType


def of(kind, name, fields=False):
    """Return class, encoder and decoder of a message; some encoders take its fields one by one."""
    encode, decode = getattr(wire, f"encode_{name}"), getattr(wire, f"decode_{name}")
    return kind, (lambda one: encode(*vars(one).values())) if fields else encode, decode


MESSAGES = {
    "hello": of(wire.HelloPayload, "hello"),
    "completion": of(wire.CompletionPayload, "completion", fields=True),
    "control": of(wire.ControlPayload, "control", fields=True),
    "control_reply": of(wire.ControlReplyPayload, "control_reply", fields=True),
    "register_callable": of(wire.RegisterCallableCommand, "register_callable_command", fields=True),
    "digest_callable": of(wire.DigestCallableCommand, "digest_callable_command", fields=True),
    "chip_callable": of(wire.RemoteChipCallablePayload, "remote_chip_callable_payload"),
    "export_request": of(wire.ExportBufferRequest, "export_buffer_request"),
    "export_result": of(wire.ExportBufferResult, "export_buffer_result"),
    "import_request": of(wire.ImportBufferRequest, "import_buffer_request"),
    "import_result": of(wire.ImportBufferResult, "import_buffer_result"),
    "release_import": of(wire.ReleaseImportRequest, "release_import_request"),
    "task": of(wire.TaskPayloadWire, "task_payload"),
    "frame": (wire.Frame, lambda one: wire.encode_frame(*one), wire.decode_frame),
}
"""By the names of the vectors: class, encoder, decoder."""


# ---------------------------------------------------------------- any valid message
u32 = st.integers(0, (1 << 32) - 1)
u64 = st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1))
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
endpoints = st.integers(0, (1 << 31) - 1)
some32, some64 = st.integers(1, (1 << 32) - 1), st.integers(1, (1 << 64) - 1)
digests = st.binary(min_size=32, max_size=32)
blobs = st.binary(max_size=40)
access = st.integers(1, 3)


def texts(most):
    """Return texts that fit, in UTF-8, so many bytes."""
    return st.text(st.characters(codec="utf-8"), max_size=min(most // 4, 20))


owned = {"owner_endpoint_id": endpoints, "buffer_id": some64, "generation": some64}


@st.composite
def spans(draw, least=0):
    """Draw an offset and a number of bytes that end within 64 bits."""
    offset = draw(st.one_of(st.integers(0, 9), st.integers(0, (1 << 64) - 1 - least)))
    return {"offset": offset, "nbytes": draw(st.integers(least, (1 << 64) - 1 - offset))}


def with_span(kind, least=0, **fields):
    return st.builds(
        lambda span, rest: kind(**span, **rest), spans(least), st.fixed_dictionaries(fields)
    )


shared = {
    "address_space": st.sampled_from(
        (wire.RemoteAddressSpace.REMOTE_WINDOW, wire.RemoteAddressSpace.UB_LDST)
    ),
    "remote_addr": u64,
    "rkey_or_token": u64,
    "ub_ldst_va": u64,
    "access_flags": access,
    "transport_profile": texts(128),
    "transport_descriptor": blobs,
}
imported = {**shared, "import_descriptor": blobs}
del imported["transport_descriptor"]
exports = with_span(wire.ExportBufferResult, **owned, **shared, export_id=some64)


@st.composite
def import_requests(draw):
    exported = draw(exports)
    wanted = draw(access.filter(lambda one: not one & ~exported.access_flags))
    return wire.ImportBufferRequest(draw(endpoints), wanted, exported)


@st.composite
def chip_callables(draw):
    descriptor, blob = draw(blobs), draw(st.binary(min_size=1, max_size=40))
    if draw(st.booleans()):
        location, size = wire.ChipCallableBlobLocation.INLINE_BLOB, len(blob)
        return wire.RemoteChipCallablePayload(descriptor, location, size, draw(digests), blob)
    location = wire.ChipCallableBlobLocation.STAGED_BLOB
    return wire.RemoteChipCallablePayload(descriptor, location, draw(u64), draw(digests), b"", blob)


@st.composite
def descs(draw, arena):
    """Draw where a tensor is, for a frame with an inline arena of so many bytes."""
    space = draw(st.sampled_from(wire.RemoteAddressSpace))
    if space != wire.RemoteAddressSpace.HOST_INLINE:
        fields = {
            **owned,
            "remote_addr": u64,
            "rkey_or_token": u64,
            "address_space": st.just(space),
        }
        return draw(with_span(wire.RemoteTensorDesc, **fields))
    at = draw(st.integers(0, arena))
    size, owner = draw(st.integers(0, arena - at)), draw(st.sampled_from((0, -1)))
    inline = {"inline_payload_offset": at, "inline_payload_len": size}
    return wire.RemoteTensorDesc(space, owner, nbytes=size, **inline)


@st.composite
def configs(draw):
    values = [draw(st.integers(0, (1 << 31) - 1)) for _ in range(2)]
    values += [draw(st.integers(0, 4)) for _ in range(5)]
    prefix = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20))
    needed = "p" if any(values[2:]) else ""
    names = CallConfig._FIELDS
    return CallConfig(**dict(zip(names, values, strict=True)), output_prefix=prefix or needed)


@st.composite
def tasks(draw):
    arena = draw(blobs)
    tensors = st.builds(
        ContinuousTensor.make,
        st.just(0),
        st.lists(st.integers(0, 4096), max_size=5),
        st.sampled_from(DataType),
        st.booleans(),
    )
    pairs = draw(st.lists(st.tuples(tensors, st.none() | descs(len(arena))), max_size=4))
    args = wire.RemoteTaskArgsWire(
        tuple(tensor for tensor, _ in pairs),
        tuple(wire.RemoteTensorSidecar(desc is not None, desc) for _, desc in pairs),
        tuple(draw(st.lists(u64, max_size=4))),
        arena,
    )
    return wire.TaskPayloadWire(draw(digests), draw(configs()), args)


none = st.just(0)  # a payload is counted by the encoder
headers = st.builds(wire.FrameHeader, st.sampled_from(wire.FrameType), u64, i32, u64, none, none)
named = (st.sampled_from(wire.RemoteRegistryTarget), st.sampled_from(wire.CallableKind), digests)
controls = st.sampled_from(wire.ControlName)
VALID = {
    "hello": st.builds(
        wire.HelloPayload, u64, i32, u32, texts(1024), u64, st.sampled_from(wire.ReadyState)
    ),
    "completion": st.builds(wire.CompletionPayload, u64, i32, texts(4096)),
    "control": st.builds(wire.ControlPayload, controls, some32, blobs),
    "control_reply": st.builds(
        wire.ControlReplyPayload, u64, controls, u32, i32, texts(4096), blobs
    ),
    "register_callable": st.builds(wire.RegisterCallableCommand, *named, some32, blobs),
    "digest_callable": st.builds(wire.DigestCallableCommand, *named),
    "chip_callable": chip_callables(),
    "export_request": with_span(
        wire.ExportBufferRequest, 1, **owned, access_flags=access, transport_profile=texts(128)
    ),
    "export_result": exports,
    "import_request": import_requests(),
    "import_result": with_span(
        wire.ImportBufferResult,
        **owned,
        **imported,
        importer_endpoint_id=endpoints,
        import_id=some64,
    ),
    "release_import": st.builds(wire.ReleaseImportRequest, *[endpoints] * 2, *[some64] * 3),
    "task": tasks(),
    "frame": st.builds(
        lambda header, payload: wire.Frame(header._replace(payload_bytes=len(payload)), payload),
        headers,
        blobs,
    ),
}
"""By the same names: messages that can be sent."""
