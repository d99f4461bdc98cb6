"""Serialised callables: the bytes of a pickle, and the file they are staged in.

Rule     REMOTE-REG-11, FLOW-PAYLOAD-1, FLOW-PAYLOAD-2, FLOW-PAYLOAD-3, FLOW-UNDO-3, WM-START-3,
         WM-THREAD-3
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import CallableError
from ..jit import layout as L
from ..system.signals import signals_blocked
from .identity import _CLOUDPICKLE, build_python_serialized_descriptor
from .pickling import ByAddress, pickled


def serialize_for_endpoints(target: Callable[..., Any]) -> bytes:
    """Return the bytes that identify a callable, none of which is an address of this machine."""
    return serialize(target, to_endpoints=True)


BY_REGISTRATION = b"by registration only: "
"""First bytes of the substitute for a callable that cannot be serialised; 16 that are unlike all others,
and why it cannot be, follow."""
MOST_WHY = 500


def serialize(target: Callable[..., Any], *, to_endpoints: bool = False) -> bytes:
    """Return the bytes that identify a callable.

    Workers forked after its registration still inherit a callable that cloudpickle cannot serialise (with
    a lock or a socket in a closure); only that registration identifies it.
    """
    try:
        return pickled(target, ByAddress(to_endpoints=to_endpoints))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:MOST_WHY]
        return BY_REGISTRATION + os.urandom(16) + why.encode(errors="replace")


def why_not_serialised(raw: bytes) -> str | None:
    """Return cloudpickle's error if `serialize` has returned a substitute; None if it has not."""
    if not raw.startswith(BY_REGISTRATION):
        return None
    why = raw[len(BY_REGISTRATION) + 16 :].rstrip(b"\0")  # a block has some behind it
    return why.decode(errors="replace")


def require_serialised(name: str, payload: bytes, running: bool = False) -> None:
    """Refuse a callable that cannot be sent to running workers, or to a fresh interpreter."""
    why = why_not_serialised(payload)
    if why is None:
        return
    where = "workers in a fresh interpreter"
    remedy = "make what it needs in the task, or give Worker(start_method='fork')"
    if running:
        where = "workers that run already"
        remedy = "register it before Worker.start or the first run"
    raise TypeError(f"{name} cannot be serialised for {where} ({why}); {remedy}")


# ---------------------------------------------------------------- payloads for running workers
_ENVELOPE = struct.Struct("<4sBBHQ")
_MAGIC = b"SPYC"
_ENVELOPE_VERSION = 1


def pack_payload(payload: bytes) -> bytes:
    """Put serialised Python into its envelope."""
    head = _ENVELOPE.pack(_MAGIC, _ENVELOPE_VERSION, _CLOUDPICKLE, 0, len(payload))
    return head + payload


def parse_python_callable_payload(payload: bytes) -> bytes:
    """Check an envelope and return the serialised Python in it.

    Raises CallableError HASHID_DESCRIPTOR_MISMATCH if it is none of this version, or has another length.
    """
    problem = ""
    if len(payload) < _ENVELOPE.size:
        problem = f"{len(payload)} bytes are fewer than its head has"
    else:
        magic, version, serializer, flags, size = _ENVELOPE.unpack_from(payload)
        if magic != _MAGIC:
            problem = f"it begins with {magic!r}"
        elif (version, serializer, flags) != (_ENVELOPE_VERSION, _CLOUDPICKLE, 0):
            problem = f"version {version}, serializer {serializer}, flags {flags} are not known"
        elif size != len(payload) - _ENVELOPE.size:
            problem = f"it announces {size} bytes and has {len(payload) - _ENVELOPE.size}"
    if problem:
        raise CallableError("HASHID_DESCRIPTOR_MISMATCH", f"no payload envelope: {problem}")
    return payload[_ENVELOPE.size :]


_OBJECT = "object:"
_objects: dict[int, Any] = {}
_object_numbers = itertools.count()


@contextmanager
def staged(payload: bytes) -> Iterator[str]:
    """Keep bytes in shared memory and yield the name by which another process opens it.

    The memory has no name in the file system that a killed process could leave behind: other processes
    open it through this one. An answer can take the place of a request, see `answer_staged`.
    """
    fd = -1
    try:
        with signals_blocked():  # or a descriptor could leak
            fd = os.memfd_create("simpler-payload", os.MFD_CLOEXEC)
        with open(fd, "wb", closefd=False) as file:
            file.write(payload)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        if fd >= 0:
            os.close(fd)


def answer_staged(name: str, size: int, answer: Callable[[bytes], bytes]) -> int:
    """Replace a request in shared memory with the answer, and return the answer's size."""
    result = answer(read_staged(name, size))
    with open(name, "r+b", buffering=0) as file:
        file.truncate(0)
        file.write(result)
    return len(result)


@contextmanager
def staged_object(target: Any) -> Iterator[str]:
    """Pass an object itself to workers that are threads of this process."""
    number = next(_object_numbers)
    _objects[number] = target
    try:
        yield f"{_OBJECT}{number}"
    finally:
        del _objects[number]


def read_staged(name: str, size: int) -> bytes:
    """Return the bytes staged under a name, if there are as many as announced."""
    try:
        # without waiting for the other end if it is a pipe
        with open(name, "rb", opener=lambda path, how: os.open(path, how | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno()).st_size
            raw = file.read(size) if size == found else b""
    except (OSError, ValueError) as error:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", f"nothing is staged as {name!r}: {error}"
        ) from None
    if not size == found == len(raw):
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", f"{size} bytes were announced, {found} are staged"
        )
    return raw


def read_payload(name: str, size: int, command: int, digest: bytes) -> Any:
    """Return the callable staged under a name, after checking it against its digest."""
    if name.startswith(_OBJECT):
        number = name.removeprefix(_OBJECT)
        if not number.isdecimal() or int(number) not in _objects:
            raise CallableError("HASHID_DESCRIPTOR_MISMATCH", f"no object is staged as {name!r}")
        return _objects[int(number)]
    return load_payload(read_staged(name, size), command == L.CTRL_REGISTER, digest)


def load_payload(raw: bytes, chip: bool, digest: bytes) -> Any:
    """Return the callable serialised as some bytes, after checking them against its digest."""
    if chip:
        return raw
    payload = parse_python_callable_payload(raw)
    if hashlib.sha256(build_python_serialized_descriptor(payload)).digest() != digest:
        raise CallableError(
            "HASHID_DESCRIPTOR_MISMATCH", "the payload is not the callable its digest stands for"
        )
    return pickle.loads(payload)
