"""Messages as tables of fields: each is written, read and checked from one table.

A field has a kind, which knows its bytes. Encoder and decoder check the same, so that nothing is sent
that the other side would refuse. Refusals name the field and, when bytes are read, where it begins.

Rule     REMOTE-FRAME-3, REMOTE-FRAME-4, REMOTE-FRAME-5
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from operator import index
from typing import Annotated, Any, Generic, Protocol, TypeVar, get_type_hints

from .limits import MAX_FRAME_PAYLOAD_BYTES, MAX_STRING_BYTES, MOST_INLINE_KEPT

T = TypeVar("T")
_COUNT = struct.Struct("<I")
_NONE = _COUNT.pack(0)


def refusal(where: str, why: str) -> ValueError:
    """Return the error about a message that is not as the protocol says."""
    return ValueError(f"remote_wire: {where}: {why}")


def octets(value: Any, where: str) -> bytes:
    """Return the bytes of what has bytes."""
    if isinstance(value, bytes):
        return value
    try:
        return memoryview(value).tobytes()
    except TypeError:
        raise refusal(where, f"{value!r} is not bytes") from None


class Reader:
    """Bytes that are read from the front."""

    __slots__ = ("at", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def take(self, size: int, where: str) -> bytes:
        """Return the next bytes."""
        at, left = self.at, len(self.raw) - self.at
        if size > left:
            raise refusal(where, f"{size} bytes are expected at byte {at}, {left} are left")
        self.at = at + size
        return self.raw[at : self.at]

    def end(self, where: str) -> None:
        """Refuse bytes that follow."""
        if self.at != len(self.raw):
            left = len(self.raw) - self.at
            raise refusal(where, f"{left} bytes follow its end at byte {self.at}")


class Kind(Protocol):
    """The form of a field."""

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""

    def read(self, reader: Reader, where: str) -> Any:
        """Return the value of the next bytes."""


# ---------------------------------------------------------------- kinds
class Number:
    """An integer within limits."""

    def __init__(self, form: str, least: int, most: int) -> None:
        self._struct = struct.Struct("<" + form)
        self._least, self._most = least, most

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""
        try:
            number = index(value)
        except TypeError:
            raise refusal(where, f"{value!r} is not an integer") from None
        return self._struct.pack(self._require(number, where))

    def read(self, reader: Reader, where: str) -> int:
        """Return the value of the next bytes."""
        at = reader.at
        number: int = self._struct.unpack(reader.take(self._struct.size, where))[0]
        if self._least <= number <= self._most:
            return number
        return self._require(number, f"{where} at byte {at}")

    def _require(self, number: int, where: str) -> int:
        if not self._least <= number <= self._most:
            only = f"{self._least} to {self._most}" if self._most > self._least else self._least
            raise refusal(where, f"{number} is not allowed: it must be {only}")
        return number


U32 = Number("I", 0, (1 << 32) - 1)
U64 = Number("Q", 0, (1 << 64) - 1)
I32 = Number("i", -(1 << 31), (1 << 31) - 1)
VERSION = Number("I", 1, (1 << 32) - 1)
"""A version that a sender must have set."""
POSITIVE = Number("Q", 1, (1 << 64) - 1)
_RESERVED = Number("I", 0, 0)
"""A field without a meaning; messages in Python do not have it."""
Uint32 = Annotated[int, U32]
Uint64 = Annotated[int, U64]
Int32 = Annotated[int, I32]
Positive = Annotated[int, POSITIVE]


class OneOf:
    """A member of an enumeration, or one of some of them, as `u32`."""

    def __init__(self, kind: type[enum.IntEnum], *only: enum.IntEnum) -> None:
        self._kind = kind
        self._only = only or tuple(kind)

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""
        return U32.write(self._member(value, where), where)

    def read(self, reader: Reader, where: str) -> enum.IntEnum:
        """Return the value of the next bytes."""
        at = reader.at
        return self._member(U32.read(reader, where), f"{where} at byte {at}")

    def _member(self, value: Any, where: str) -> enum.IntEnum:
        if value not in self._only:
            known = ", ".join(f"{one.name} {one.value}" for one in self._only)
            raise refusal(where, f"{value!r} is not one of {known}")
        return self._kind(value)


class Exactly:
    """A fixed number of bytes."""

    def __init__(self, size: int) -> None:
        self._size = size

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""
        raw = octets(value, where)
        if len(raw) != self._size:
            raise refusal(where, f"{len(raw)} bytes are not {self._size}")
        return raw

    def read(self, reader: Reader, where: str) -> bytes:
        """Return the value of the next bytes."""
        return reader.take(self._size, where)


class Blob:
    """Bytes after their number."""

    def __init__(self, most: int = MAX_FRAME_PAYLOAD_BYTES, name: str = "") -> None:
        self._most = most
        self._name = name

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""
        raw = value if type(value) is bytes else octets(value, where)
        size = len(raw)
        if size > self._most:
            self._require(size, where)
        return _COUNT.pack(size) + raw if size else _NONE

    def read(self, reader: Reader, where: str) -> bytes:
        """Return the value of the next bytes."""
        at, size = reader.at, U32.read(reader, where)
        self._require(size, f"{where} at byte {at}")
        return reader.take(size, where)

    def _require(self, size: int, where: str) -> None:
        if size > self._most:
            name = self._name + " " if self._name else ""
            raise refusal(where, f"{name}too long: {size} bytes, at most {self._most}")


class Text:
    """A string in UTF-8, after the number of its bytes."""

    def __init__(self, most: int, name: str = "", errors: str = "strict") -> None:
        self._blob = Blob(most, name)
        self._errors = errors

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a value."""
        try:
            raw = value.encode("utf-8", self._errors)
        except (AttributeError, UnicodeEncodeError):
            raise refusal(where, f"{value!r} is not a text that UTF-8 has") from None
        return self._blob.write(raw, where)

    def read(self, reader: Reader, where: str) -> str:
        """Return the value of the next bytes."""
        at = reader.at
        raw = self._blob.read(reader, where)
        try:
            return raw.decode("utf-8", self._errors)
        except UnicodeDecodeError as error:
            first = at + 4 + error.start
            raise refusal(where, f"byte {first} is not part of any UTF-8 text") from None


Octets = Annotated[bytes, Blob()]
InFrame = Annotated[bytes, Blob(MOST_INLINE_KEPT)]
TEXT = Text(MAX_STRING_BYTES)
ShortText = Annotated[str, TEXT]


class Many:
    """Fields of one kind after their number."""

    def __init__(self, kind: Kind, most: int) -> None:
        self._kind, self._most = kind, most

    def write(self, value: Any, where: str) -> bytes:
        """Return the bytes of a sequence."""
        count = len(value)
        if not count:
            return _NONE
        self._require(count, where)
        write = self._kind.write
        return _COUNT.pack(count) + b"".join([write(one, where) for one in value])

    def read(self, reader: Reader, where: str) -> tuple[Any, ...]:
        """Return the sequence of the next bytes."""
        at = reader.at
        count = U32.read(reader, where)
        if not count:
            return ()
        self._require(count, f"{where} at byte {at}")
        read = self._kind.read
        return tuple([read(reader, where) for _ in range(count)])

    def _require(self, count: int, where: str) -> None:
        if count > self._most:
            raise refusal(where, f"too many: {count}, at most {self._most}")


# ---------------------------------------------------------------- messages
def _kind_of(hint: Any) -> Kind:
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return OneOf(hint)
    kind: Kind = hint.__metadata__[0]
    return kind


class Message(Generic[T]):
    """The table of a message: its name, its class, and what must hold of it beyond its fields.

    The annotations of the class are the fields, in their order: `Annotated` with the kind of each, or an
    enumeration. A message can be a field of another one; with `reserved`, a `u32` of 0 follows it.
    """

    def __init__(
        self,
        name: str,
        made: type[T],
        check: Callable[[T, str], None] | None = None,
        /,
        *,
        reserved: bool = False,
    ) -> None:
        self._name, self._made, self._check = name, made, check
        hints = get_type_hints(made, include_extras=True)
        self._fields = [(one, _kind_of(hint), f"{name}.{one}") for one, hint in hints.items()]
        self._reserved = reserved

    def encode(self, payload: T) -> bytes:
        """Return the bytes of a message."""
        raw = self.write(payload, self._name)
        require_payload(len(raw), self._name)
        return raw

    def decode(self, data: bytes) -> T:
        """Return the message of all these bytes."""
        raw = octets(data, self._name)
        require_payload(len(raw), self._name)
        reader = Reader(raw)
        value = self.read(reader, self._name)
        reader.end(self._name)
        return value

    def write(self, value: T, where: str) -> bytes:
        """Return the bytes of a message within another one."""
        try:
            parts = [kind.write(getattr(value, one), path) for one, kind, path in self._fields]
        except ValueError as error:
            raise self._within(error, where) from None
        if self._check is not None:
            self._check(value, where)
        return b"".join(parts) + (_NONE if self._reserved else b"")

    def read(self, reader: Reader, where: str) -> T:
        """Return the message of the next bytes."""
        try:
            values = [kind.read(reader, path) for _, kind, path in self._fields]
        except ValueError as error:
            raise self._within(error, where) from None
        value = self._made(*values)
        if self._reserved:
            _RESERVED.read(reader, f"{self._name}.reserved")
        if self._check is not None:
            self._check(value, where)
        return value

    def _within(self, error: ValueError, where: str) -> ValueError:
        """Return the error about a field, with what the message is called here."""
        return ValueError(str(error).replace(f" {self._name}.", f" {where}.", 1))


def require_payload(size: int, where: str) -> None:
    """Refuse a payload that no frame can hold."""
    if size > MAX_FRAME_PAYLOAD_BYTES:
        raise refusal(where, f"payload too long: {size} bytes, at most {MAX_FRAME_PAYLOAD_BYTES}")
