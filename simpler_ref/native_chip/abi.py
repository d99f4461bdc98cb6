"""The L2 ABI: the structures of `include/simpler_layout.h`, for ctypes; statuses, errors and limits; chip
callables: kernels for the cores, and the function that launches them, in one blob.

The blob is little-endian; only children are aligned::

    "SIMPCHIP", u32 version = 2
    signature: u32 count, u32 direction[count]
    text func_name, text config_name: u32 length, bytes
    binary: u64 length, bytes
    u32 children, each: u32 func_id, zeros up to a multiple of 64, signature, binary

`src/callable.c` reads the same, with the same limits.

Rule     CHIP-BLOB-1, CHIP-BLOB-3, CHIP-BLOB-4, CHIP-BLOB-5, CHIP-LAYOUT-1, CHIP-LAYOUT-4, WM-CHIP-7
"""

from __future__ import annotations

import ctypes
import enum
import functools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..jit import layout as L
from ..jit import structures
from ..model.arguments import TENSOR_AFTER_SCALAR, TaskArgs
from ..model.enums import ArgDirection, TensorArgType
from ..model.scalars import scalar_to_uint64
from ..model.tensor import ContinuousTensor, require_plain
from ..system.values import items, position

MAX_CHILDREN = 1024
MAX_NAME = 255
KERNEL_SYMBOL = "simpler_kernel"
"""The symbol that the shared object of a core kernel exports."""

INCLUDE_DIR = Path(__file__).parent / "include"
"""Where the headers are."""


class ChipStatus(enum.IntEnum):
    """Error codes of the L2 ABI; `include/simpler_l2.h` describes each."""

    OK = 0
    STATE = 1
    SLOT = 2
    BLOB = 3
    LOAD = 4
    ARGS = 5
    CONFIG = 6
    MEMORY = 7
    ADDRESS = 8
    KERNEL = 9
    FAULT = 10
    ORCHESTRATION = 11
    SYSTEM = 12
    RECORDING = 13
    CLOSED = 64
    VIEW = 65


class ChipError(RuntimeError):
    """A chip, or its runtime, reported an error.

    Its `code` is a `ChipStatus`, or whatever another runtime returned; 0 if no runtime could be loaded.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        known = code in ChipStatus._value2member_map_
        self.code = ChipStatus(code) if known else code


def _fields(
    structure: structures.Structure, nested: type[ctypes.Structure] | None = None
) -> list[tuple[str, Any]]:
    """Return the members of a structure for ctypes; `nested` is the type of its tensors."""
    found = []
    for member in structure.members:
        kind: Any = nested
        if isinstance(member.kind, structures.CType):
            kind = getattr(ctypes, f"c_{member.kind.in_c.removesuffix('_t')}")
        found.append((member.name, kind if member.elements is None else kind * member.elements))
    return found


class ContinuousTensorStorage(ctypes.Structure):
    """A tensor in wire form, 40 bytes."""

    _fields_ = _fields(structures.TENSOR)


class ChipStorageTaskArgs(ctypes.Structure):
    """The arguments of one run at the L2 ABI, 6152 bytes: a container of tensors, then scalars."""

    _fields_ = _fields(structures.CHIP_STORAGE_TASK_ARGS, ContinuousTensorStorage)

    def add_tensor(self, tensor: ContinuousTensor) -> None:
        """Append a tensor; RuntimeError after `add_scalar`, since tensors come first, ValueError if there
        are 128.
        """
        if self.scalar_count_:
            raise RuntimeError(TENSOR_AFTER_SCALAR)
        _require_room(self.tensor_count_, L.CHIP_MAX_TENSOR_ARGS, "tensors")
        if not isinstance(tensor, ContinuousTensor):
            raise TypeError(f"expected a ContinuousTensor, got {type(tensor).__name__}")
        require_plain([[tensor._wire]], "the arguments of a chip")
        self.tensors_[self.tensor_count_] = ContinuousTensorStorage.from_buffer_copy(tensor._wire)
        self.tensor_count_ += 1

    def add_scalar(self, value: Any) -> None:
        """Append a scalar, as the 64 bits of `scalar_to_uint64`; ValueError if there are 128."""
        bits = scalar_to_uint64(value)
        _require_room(self.scalar_count_, L.CHIP_MAX_SCALAR_ARGS, "scalars")
        self.scalars_[self.scalar_count_] = bits
        self.scalar_count_ += 1

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`; IndexError if there is none."""
        position("tensor", i, self.tensor_count_)
        return ContinuousTensor._from_wire(bytes(self.tensors_[i]))

    def scalar(self, i: int) -> int:
        """Return the 64 bits of scalar `i`; IndexError if there is none."""
        position("scalar", i, self.scalar_count_)
        return int(self.scalars_[i])

    def tensor_count(self) -> int:
        return int(self.tensor_count_)

    def scalar_count(self) -> int:
        return int(self.scalar_count_)

    def task_args(self) -> TaskArgs:
        """Return the same as TaskArgs; what the task does with each tensor is not known: INOUT."""
        args = TaskArgs()
        for i in range(self.tensor_count()):
            args.add_tensor(self.tensor(i), TensorArgType.INOUT)
        for i in range(self.scalar_count()):
            args.add_scalar(self.scalar(i))
        return args

    def clear(self) -> None:
        self.tensor_count_ = self.scalar_count_ = 0

    def __len__(self) -> int:
        return self.tensor_count() + self.scalar_count()

    def __ptr__(self) -> int:
        """Return the address of the structure."""
        return ctypes.addressof(self)

    @classmethod
    def sizeof(cls) -> int:
        return ctypes.sizeof(cls)


def _require_room(count: int, most: int, what: str) -> None:
    if count >= most:
        raise ValueError(f"a run takes at most {most} {what}, and these arguments have {count}")


class CoreArgsStorage(ctypes.Structure):
    """The arguments of one block of a kernel, 920 bytes."""

    _fields_ = _fields(structures.CORE_ARGS, ContinuousTensorStorage)


# ---------------------------------------------------------------- chip callables
_MAGIC = b"SIMPCHIP"
_VERSION = 2
_CHILD_ALIGN = 64
_FUNC_ID = struct.Struct("<I")
_LAUNCH_ALL = Path(__file__).with_name("_launch_all.so")
_LAUNCH_ALL_NAME = "simpler_launch_all"


@dataclass(frozen=True, repr=False)
class _Callable:
    """A signature, a binary and the bytes of both. `build` makes it."""

    signature: tuple[ArgDirection, ...]
    binary: bytes
    _blob: bytes

    def buffer_ptr(self) -> int:
        """Return the address of its bytes, a copy that stays as long as this object."""
        return ctypes.cast(ctypes.c_char_p(self._blob), ctypes.c_void_p).value or 0

    def buffer_size(self) -> int:
        """Return how many bytes it has."""
        return len(self._blob)

    @property
    def binary_size(self) -> int:
        """Bytes of the binary."""
        return len(self.binary)

    def sig(self, i: int) -> ArgDirection:
        """Return the direction of argument `i`; IndexError if there is none."""
        return self.signature[position("signature", i, len(self.signature))]

    @property
    def sig_count(self) -> int:
        """Number of arguments."""
        return len(self.signature)

    def _shown(self) -> str:
        names = ", ".join(direction.name for direction in self.signature)
        return f"({names}), sig_count={self.sig_count}, binary_size={self.binary_size}"


# ---------------------------------------------------------------- checks
def _check_signature(
    signature: Iterable[ArgDirection], what: str, tensors: int, scalars: int
) -> tuple[ArgDirection, ...]:
    found = []
    for i, direction in enumerate(items("signature", signature, "ArgDirections")):
        try:
            found.append(ArgDirection(direction))
        except ValueError:
            raise ValueError(
                f"argument {i} of the {what} has direction {direction!r}; use ArgDirection.SCALAR, "
                "IN, OUT or INOUT"
            ) from None
    scalar_count = found.count(ArgDirection.SCALAR)
    if len(found) - scalar_count > tensors or scalar_count > scalars:
        raise ValueError(
            f"the signature of the {what} has {len(found) - scalar_count} tensors and "
            f"{scalar_count} scalars; at most {tensors} and {scalars} are allowed"
        )
    return tuple(found)


def _check_binary(binary: bytes, what: str) -> bytes:
    try:
        return bytes(memoryview(binary))
    except TypeError:
        raise TypeError(
            f"the binary of the {what} must be the bytes of a shared object, got "
            f"{type(binary).__name__}; compile_kernel(source) makes them"
        ) from None


def _require_bytes(binary: bytes, what: str) -> bytes:
    if not binary:
        raise ValueError(f"the binary of the {what} is empty; give the bytes of a shared object")
    return binary


def _check_name(name: str, what: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {type(name).__name__}")
    if not all("!" <= letter <= "~" for letter in name):
        raise ValueError(f"{what} {name!r} must be printable ASCII without spaces")
    if len(name) > MAX_NAME:
        raise ValueError(f"{what} has {len(name)} letters; at most {MAX_NAME} are allowed")
    return name


# ---------------------------------------------------------------- the kernel of a core
@dataclass(frozen=True, repr=False)
class CoreCallable(_Callable):
    """A kernel that runs on the cores of a chip; cannot be changed.

    Attributes
    ----------
    signature : tuple[ArgDirection, ...]
        One direction per argument: at most 16 tensors and 32 scalars.
    binary : bytes
        A shared object that exports ``simpler_kernel``; see `include/simpler_kernel.h`.
    name : str
        For messages; it does not travel.
    """

    name: str = field(default="", compare=False)

    @classmethod
    def build(
        cls, signature: Iterable[ArgDirection], binary: bytes, *, name: str = ""
    ) -> CoreCallable:
        """Make a kernel from the bytes of a shared object.

        Raises TypeError or ValueError for what cannot be. The binary may be empty; no chip callable can
        have such a kernel.
        """
        checked = _check_signature(
            signature, "kernel", L.CORE_MAX_TENSOR_ARGS, L.CORE_MAX_SCALAR_ARGS
        )
        octets = _check_binary(binary, "kernel")
        named = _check_name(name, "name") if name else ""
        blob = _encode_signature(checked) + _encode_binary(octets)
        return cls(checked, octets, blob, named)

    def __reduce__(self) -> tuple[Any, ...]:
        return CoreCallable.build, (self.signature, self.binary)

    def __repr__(self) -> str:
        return f"<CoreCallable {self._shown()}>"


# ---------------------------------------------------------------- the whole callable
@dataclass(frozen=True, repr=False)
class ChipCallable(_Callable):
    """An orchestration function of a chip and the kernels it launches; cannot be changed.

    Attributes
    ----------
    signature : tuple[ArgDirection, ...]
        One direction per argument of a task: at most 128 tensors and 128 scalars. A tensor that is
        IN or INOUT is copied to the chip before the run, one that is OUT or INOUT back after it.
    func_name : str
        What `binary` exports: the orchestration function.
    config_name : str
        A name for the user's own use.
    binary : bytes
        A shared object.
    children : tuple[tuple[int, CoreCallable], ...]
        The kernels, each with the number it is launched by.
    """

    func_name: str
    config_name: str
    children: tuple[tuple[int, CoreCallable], ...]

    @classmethod
    def build(
        cls,
        signature: Iterable[ArgDirection],
        func_name: str,
        binary: bytes,
        children: Iterable[tuple[int, CoreCallable]],
        config_name: str = "",
    ) -> ChipCallable:
        """Put a callable together.

        Raises TypeError or ValueError, which says what is wrong with which part.
        """
        what = "chip callable"
        limits = L.CHIP_MAX_TENSOR_ARGS, L.CHIP_MAX_SCALAR_ARGS
        fields: dict[str, Any] = {
            "signature": _check_signature(signature, what, *limits),
            "func_name": _check_name(func_name, "func_name"),
            "config_name": _check_name(config_name, "config_name"),
            "binary": _require_bytes(_check_binary(binary, what), what),
            "children": _check_children(children),
        }
        if not func_name:
            raise ValueError("func_name is empty; name the function that the binary exports")
        return cls(**fields, _blob=_encode(**fields))

    @classmethod
    def from_kernel(cls, core: CoreCallable, config_name: str = "") -> ChipCallable:
        """Make a callable that launches one kernel over all blocks, with all arguments.

        A task gives its tensors in the order of the kernel's, and its scalars likewise. The kernel's
        name is the `config_name`, by which messages call it, unless another is given.
        """
        if not isinstance(core, CoreCallable):
            raise TypeError(f"expected a CoreCallable, got {type(core).__name__}")
        name = config_name or core.name
        return cls.build(core.signature, _LAUNCH_ALL_NAME, _launch_all(), [(0, core)], name)

    @classmethod
    def from_bytes(cls, blob: bytes) -> ChipCallable:
        """Read what `to_bytes` made. Raises ValueError, which says what is wrong with the bytes."""
        raw = bytes(memoryview(blob))
        try:
            made = _decode(raw)
        except (struct.error, OverflowError, ValueError) as error:
            raise ValueError(f"this is no ChipCallable: {error}") from None
        if made._blob != raw:
            raise ValueError(
                f"this is no ChipCallable: of its parts, build makes {len(made._blob)} other bytes than "
                f"these {len(raw)}"
            )
        return made

    def to_bytes(self) -> bytes:
        """Return the blob."""
        return self._blob

    def child_offset(self, i: int) -> int:
        """Return where kernel `i` begins in the blob, a multiple of 64; IndexError if there is none."""
        position("child", i, len(self.children))
        at = len(self._blob) + _FUNC_ID.size
        for _, core in reversed(self.children[i:]):  # each ends before the next one's number
            at = (at - _FUNC_ID.size - core.buffer_size()) & -_CHILD_ALIGN
        return at

    def child(self, i: int) -> CoreCallable:
        """Return kernel `i`, in the order they were given; IndexError if there is none."""
        return self.children[position("child", i, len(self.children))][1]

    def child_func_id(self, i: int) -> int:
        """Return the number that kernel `i` is launched by; IndexError if there is none."""
        return self.children[position("child", i, len(self.children))][0]

    @property
    def child_count(self) -> int:
        """Number of kernels."""
        return len(self.children)

    def __reduce__(self) -> tuple[Any, ...]:
        return ChipCallable.from_bytes, (self._blob,)

    def __repr__(self) -> str:
        return (
            f"<ChipCallable {self.func_name}{self._shown()}, child_count={self.child_count}, "
            f"{len(self._blob)} bytes>"
        )


def _check_children(
    children: Iterable[tuple[int, CoreCallable]],
) -> tuple[tuple[int, CoreCallable], ...]:
    found: dict[int, CoreCallable] = {}
    for item in items("children", children, "pairs (func_id, CoreCallable)"):
        try:
            func_id, core = item
        except (TypeError, ValueError):
            raise TypeError(f"a child is a pair (func_id, CoreCallable), got {item!r}") from None
        if not isinstance(core, CoreCallable):
            raise TypeError(f"child {func_id!r} is no CoreCallable but a {type(core).__name__}")
        if not isinstance(func_id, int) or not 0 <= func_id < 1 << 31:
            raise ValueError(f"func_id {func_id!r} is not a number from 0 to {(1 << 31) - 1}")
        if func_id in found:
            raise ValueError(f"func_id {func_id} is there twice; number the children differently")
        _require_bytes(core.binary, f"kernel {func_id}")
        found[int(func_id)] = core
    if len(found) > MAX_CHILDREN:
        raise ValueError(f"{len(found)} children; at most {MAX_CHILDREN} are allowed")
    return tuple(found.items())


@functools.cache
def _launch_all() -> bytes:
    try:
        return _LAUNCH_ALL.read_bytes()
    except OSError as error:
        raise RuntimeError(not_built(_LAUNCH_ALL)) from error


def not_built(path: Path) -> str:
    """Return the message for a compiled file that is missing."""
    return (
        f"native part not built: {path} is missing; run `pip install .` where a C compiler is "
        "installed"
    )


# ---------------------------------------------------------------- the blob
def _encode_signature(signature: Sequence[ArgDirection]) -> bytes:
    return struct.pack(f"<I{len(signature)}I", len(signature), *signature)


def _encode_text(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode("ascii")


def _encode_binary(binary: bytes) -> bytes:
    return struct.pack("<Q", len(binary)) + binary


def _encode(
    signature: Sequence[ArgDirection],
    func_name: str,
    config_name: str,
    binary: bytes,
    children: Sequence[tuple[int, CoreCallable]],
) -> bytes:
    parts = [
        _MAGIC,
        struct.pack("<I", _VERSION),
        _encode_signature(signature),
        _encode_text(func_name),
        _encode_text(config_name),
        _encode_binary(binary),
        struct.pack("<I", len(children)),
    ]
    size = sum(map(len, parts))
    for func_id, core in children:
        size += _FUNC_ID.size
        parts += [_FUNC_ID.pack(func_id), bytes(-size % _CHILD_ALIGN), core._blob]
        size += len(parts[-2]) + len(parts[-1])
    return b"".join(parts)


def _decode(blob: bytes) -> ChipCallable:
    """Return the callable of a blob; one that `_encode` has not made gives an error, or another blob."""
    at = 0

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        found = struct.unpack_from(f"<{form}", blob, at)
        at += struct.calcsize(f"<{form}")
        return found

    def take_bytes(size: str) -> bytes:
        nonlocal at
        (length,) = take(size)
        at += length
        return blob[at - length : at]

    def signature() -> list[Any]:
        return list(take(f"{take('I')[0]}I"))

    take(f"{len(_MAGIC)}sI")
    directions = signature()
    func_name, config_name = (take_bytes("I").decode("latin-1") for _ in range(2))
    binary, children = take_bytes("Q"), []
    for _ in range(take("I")[0]):
        (func_id,) = take("I")
        at += -at % _CHILD_ALIGN
        children.append((func_id, CoreCallable.build(signature(), take_bytes("Q"))))
    return ChipCallable.build(directions, func_name, binary, children, config_name)
