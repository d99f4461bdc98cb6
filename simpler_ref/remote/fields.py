"""Messages as tables of fields: each is written, read and checked from one table.

A field has a kind, which knows its bytes. Encoder and decoder check the same, so that nothing is sent
that the other side would refuse. A kind only says why it refuses something. What it is part of adds the
names of fields, from the inside out, and the byte where the innermost one begins in what is read.

Rule     REMOTE-FRAME-3, REMOTE-FRAME-4, REMOTE-FRAME-5
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Sequence
from functools import wraps
from operator import index
from typing import Annotated, Any, Generic, NoReturn, TypeVar, get_type_hints

from .limits import MAX_FRAME_PAYLOAD_BYTES, MAX_STRING_BYTES, MOST_INLINE_KEPT

T = TypeVar("T")
_COUNT = struct.Struct("<I")
_NONE = _COUNT.pack(0)


class WireError(ValueError):
    """A message is not as the protocol says: why, in which field, and at which byte that begins."""

    def __init__(self, why: str, *path: str, at: int | None = None) -> None:
        super().__init__(why)
        self.path, self.at = path, at

    def within(self, name: str, at: int | None = None) -> WireError:
        """Return it with what the field is part of, or is called there, and with where that begins."""
        self.path = (name, *self.path)
        self.at = at if self.at is None else self.at
        return self

    def __str__(self) -> str:
        where = ".".join(self.path).replace(".[", "[")
        if self.at is not None:
            where = f"{where} at byte {self.at}".lstrip()
        return ": ".join(filter(None, ("remote_wire", where, self.args[0])))


def octets(value: Any, *path: str) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:
        raise WireError(f"{value!r} is not bytes", *path) from None


def require_payload(size: int, *path: str, at: int | None = None) -> None:
    """Refuse a payload that no frame can hold."""
    if size > MAX_FRAME_PAYLOAD_BYTES:
        why = f"payload too long: {size} bytes, at most {MAX_FRAME_PAYLOAD_BYTES}"
        raise WireError(why, *path, at=at)


class Reader:
    """Bytes that are read from the front."""

    __slots__ = ("at", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        at, left = self.at, len(self.raw) - self.at
        if size > left:
            raise WireError(f"{size} bytes are expected, {left} are left")
        self.at = at + size
        return self.raw[at : self.at]


class Kind(Generic[T]):
    """The form of a field: how its value becomes bytes, and is read again.

    One with a `name` can be all of a message.
    """

    def __init__(
        self, write: Callable[[T], bytes], read: Callable[[Reader], T], name: str = ""
    ) -> None:
        self.write, self.read, self.name = write, read, name

    def called(self, name: str) -> Kind[T]:
        """Return it as a message of this one field."""
        return Kind(self.write, self.read, name)

    def encode(self, payload: T) -> bytes:
        """Return the bytes of a message."""
        try:
            raw = self.write(payload)
            require_payload(len(raw))
        except WireError as error:
            raise error.within(self.name) from None
        return raw

    def decode(self, data: bytes) -> T:
        """Return the message of all these bytes."""
        try:
            raw = octets(data)
            require_payload(len(raw))
            reader = Reader(raw)
            value = self.read(reader)
            if left := len(raw) - reader.at:
                raise WireError(f"{left} bytes follow its end", at=reader.at)
        except WireError as error:
            raise error.within(self.name) from None
        return value


# ---------------------------------------------------------------- kinds
def _count(reader: Reader) -> int:
    count: int = _COUNT.unpack(reader.take(4))[0]
    return count


def number(form: str, least: int, most: int) -> Kind[int]:
    word = struct.Struct("<" + form)
    pack, unpack, size = word.pack, word.unpack, word.size

    def refuse(value: int) -> NoReturn:
        only = f"{least} to {most}" if most > least else least
        raise WireError(f"{value} is not allowed: it must be {only}")

    def write(value: Any) -> bytes:
        try:
            whole = index(value)
        except TypeError:
            raise WireError(f"{value!r} is not an integer") from None
        return pack(whole) if least <= whole <= most else refuse(whole)

    def read(reader: Reader) -> int:
        value: int = unpack(reader.take(size))[0]
        return value if least <= value <= most else refuse(value)

    return Kind(write, read)


U32 = number("I", 0, (1 << 32) - 1)
U64 = number("Q", 0, (1 << 64) - 1)
I32 = number("i", -(1 << 31), (1 << 31) - 1)
VERSION = number("I", 1, (1 << 32) - 1)
"""A version that a sender must have set."""
POSITIVE = number("Q", 1, (1 << 64) - 1)
_RESERVED = number("I", 0, 0)
"""A field without a meaning; messages in Python do not have it."""
Uint32 = Annotated[int, U32]
Uint64 = Annotated[int, U64]
Int32 = Annotated[int, I32]
Positive = Annotated[int, POSITIVE]


def one_of(*members: enum.IntEnum) -> Kind[Any]:
    """Return the kind of some members of an enumeration, as `u32`."""
    known = {one.value: one for one in members}

    def member(value: Any) -> enum.IntEnum:
        if value not in known:
            names = ", ".join(f"{one.name} {one.value}" for one in members)
            raise WireError(f"{value!r} is not one of {names}")
        return known[value]

    return Kind(lambda value: _COUNT.pack(member(value)), lambda reader: member(_count(reader)))


def exactly(size: int) -> Kind[bytes]:

    def write(value: Any) -> bytes:
        raw = octets(value)
        if len(raw) != size:
            raise WireError(f"{len(raw)} bytes are not {size}")
        return raw

    return Kind(write, lambda reader: reader.take(size))


def blob(most: int = MAX_FRAME_PAYLOAD_BYTES, whose: str = "") -> Kind[bytes]:
    """Return the kind of bytes after their number; refusals say whose they are."""

    def require(size: int) -> None:
        if size > most:
            raise WireError(f"{whose} too long: {size} bytes, at most {most}".lstrip())

    def write(value: Any) -> bytes:
        raw = octets(value)
        require(len(raw))
        return _COUNT.pack(len(raw)) + raw

    def read(reader: Reader) -> bytes:
        size = _count(reader)
        require(size)
        return reader.take(size)

    return Kind(write, read)


def text(most: int, whose: str = "", errors: str = "strict") -> Kind[str]:
    """Return the kind of strings in UTF-8, after the number of their bytes."""
    octets_of = blob(most, whose)

    def write(value: Any) -> bytes:
        try:
            return octets_of.write(value.encode("utf-8", errors))
        except (AttributeError, UnicodeEncodeError):
            raise WireError(f"{value!r} is not a text that UTF-8 has") from None

    def read(reader: Reader) -> str:
        raw = octets_of.read(reader)
        try:
            return raw.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            first = reader.at - len(raw) + error.start
            raise WireError(f"byte {first} is not part of any UTF-8 text") from None

    return Kind(write, read)


Octets = Annotated[bytes, blob()]
InFrame = Annotated[bytes, blob(MOST_INLINE_KEPT)]
TEXT = text(MAX_STRING_BYTES)
ShortText = Annotated[str, TEXT]


def write_each(kind: Kind[Any], values: Sequence[Any], name: str = "") -> bytes:
    """Return the bytes of values of one kind; `name` is what a refusal calls all of them."""
    raw: list[bytes] = []
    write = kind.write
    try:
        for value in values:
            raw.append(write(value))
    except WireError as error:
        raise error.within(f"{name}[{len(raw)}]") from None
    return b"".join(raw)


def read_each(kind: Kind[Any], reader: Reader, count: int, name: str = "") -> tuple[Any, ...]:
    """Return so many next values of one kind; see `write_each`."""
    values: list[Any] = []
    at, read = reader.at, kind.read
    try:
        for _ in range(count):
            at = reader.at
            values.append(read(reader))
    except WireError as error:
        raise error.within(f"{name}[{len(values)}]", at) from None
    return tuple(values)


def many(kind: Kind[Any], most: int) -> Kind[Sequence[Any]]:
    """Return the kind of sequences, after their length, of one other kind."""

    def require(count: int) -> None:
        if count > most:
            raise WireError(f"too many: {count}, at most {most}")

    def write(values: Sequence[Any]) -> bytes:
        require(len(values))
        return _COUNT.pack(len(values)) + write_each(kind, values) if values else _NONE

    def read(reader: Reader) -> tuple[Any, ...]:
        count = _count(reader)
        require(count)
        return read_each(kind, reader, count) if count else ()

    return Kind(write, read)


# ---------------------------------------------------------------- messages
def _kind_of(hint: Any) -> Kind[Any]:
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return one_of(*hint)
    kind: Kind[Any] = hint.__metadata__[0]
    return kind


class Message(Kind[T]):
    """The table of a message: its name, its class, and what must hold of it beyond its fields.

    The annotations of the class are the fields, in their order: `Annotated` with the kind of each, or an
    enumeration. A message can be a field of another one; with `reserved`, a `u32` of 0 follows it.
    """

    def __init__(
        self,
        name: str,
        made: Callable[..., T],
        check: Callable[[T], None] = lambda value: None,
        /,
        *,
        reserved: bool = False,
    ) -> None:
        super().__init__(self._write, self._read, name)
        self._made, self._check = made, check
        hints = get_type_hints(made, include_extras=True)
        kinds = {one: _kind_of(hint) for one, hint in hints.items()}
        self._writes = [(one, kind.write) for one, kind in kinds.items()]
        kinds |= {"reserved": _RESERVED} if reserved else {}
        self._reads = [(one, kind.read) for one, kind in kinds.items()]
        self._end = _NONE if reserved else b""

    def _write(self, value: T) -> bytes:
        name = ""
        raw: list[bytes] = []
        try:
            for name, write in self._writes:
                raw.append(write(getattr(value, name)))
        except WireError as error:
            raise error.within(name) from None
        self._check(value)
        return b"".join(raw) + self._end

    def _read(self, reader: Reader) -> T:
        values: list[Any] = []
        at = reader.at
        try:
            for _, read in self._reads:
                at = reader.at
                values.append(read(reader))
        except WireError as error:
            raise error.within(self._reads[len(values)][0], at) from None
        value = self._made(*values[: len(self._writes)])
        self._check(value)
        return value

    def encoder(self) -> Callable[..., bytes]:
        """Return an encoder that takes the fields of a message in place of one."""

        @wraps(self._made, updated=())
        def encode(*values: Any, **named: Any) -> bytes:
            return self.encode(self._made(*values, **named))

        return encode
