"""What a task is made of: tensors with tags, scalars, configuration.

`ContinuousTensor` describes memory, it does not own it: address, shape, element type. `TaskArgs`
collects tensors, each with the tag that says how the task uses it, and then scalars. Tags are read
once, by submit; what reaches the worker has none.

Rule     HIER-API-1
"""

from __future__ import annotations

import ctypes
import enum
import math
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from .jit import layout as L
from .model.scalars import INTEGER, NUMBER, as_float, as_it_went_in, scalar_wire
from .model.scalars import scalar_to_uint64 as scalar_to_uint64
from .system.mappings import covers, shared_mappings

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Tensor: TypeAlias = "ContinuousTensor | Array | Any"


class DataType(enum.IntEnum):
    """Element type of a tensor.

    Rule     FLOW-DATA-1
    """

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    INT16 = 3
    INT8 = 4
    UINT8 = 5
    BFLOAT16 = 6
    INT64 = 7
    UINT64 = 8
    UINT16 = 9
    UINT32 = 10
    BOOL = 11


class TensorArgType(enum.IntEnum):
    """How a task uses a tensor, from which its dependencies follow.

    Rule     FLOW-DATA-2
    """

    INPUT = L.INPUT
    OUTPUT = L.OUTPUT
    INOUT = L.INOUT
    OUTPUT_EXISTING = L.OUTPUT_EXISTING
    NO_DEP = L.NO_DEP


for _tag in TensorArgType:  # Python 3.11 looks members up through a slow descriptor, 3.12 does not
    type.__setattr__(TensorArgType, _tag.name, _tag)


class ArgDirection(enum.IntEnum):
    """Direction of one argument of a chip callable.

    Rule     FLOW-DATA-2
    """

    SCALAR = 0
    IN = 1
    OUT = 2
    INOUT = 3


class WorkerType(enum.IntEnum):
    """The pool a task goes to.

    Rule     FLOW-DATA-2
    """

    NEXT_LEVEL = L.NEXT_LEVEL
    SUB = L.SUB


class TaskState(enum.IntEnum):
    """Where a task is in its life; `jit/slots.py` has the transitions.

    Rule     FLOW-DATA-2
    """

    FREE = L.FREE
    PENDING = L.PENDING
    READY = L.READY
    RUNNING = L.RUNNING
    COMPLETED = L.COMPLETED
    CONSUMED = L.CONSUMED
    FAILED = L.FAILED


class MailboxState(enum.IntEnum):
    """Who has to act on a mailbox.

    Rule     FLOW-DATA-2
    """

    IDLE = L.IDLE
    TASK_READY = L.TASK_READY
    TASK_DONE = L.TASK_DONE
    SHUTDOWN = L.SHUTDOWN
    CONTROL_REQUEST = L.CONTROL_REQUEST
    CONTROL_DONE = L.CONTROL_DONE
    INIT_DONE = L.INIT_DONE


MAILBOX_SIZE = L.MAILBOX_SIZE
MAILBOX_OFF_ERROR_MSG = L.MAILBOX_OFF_ERROR_MSG
MAILBOX_ERROR_MSG_SIZE = L.MAILBOX_ERROR_MSG_SIZE

_NUMPY_NAMES = {
    DataType.FLOAT32: "float32",
    DataType.FLOAT16: "float16",
    DataType.INT32: "int32",
    DataType.INT16: "int16",
    DataType.INT8: "int8",
    DataType.UINT8: "uint8",
    DataType.INT64: "int64",
    DataType.UINT64: "uint64",
    DataType.UINT16: "uint16",
    DataType.UINT32: "uint32",
    DataType.BOOL: "bool",
}
_TO_NUMPY = {kind: np.dtype(name) for kind, name in _NUMPY_NAMES.items()}
_FROM_NAME = {name: kind for kind, name in _NUMPY_NAMES.items()} | {"bfloat16": DataType.BFLOAT16}

_WIRE = struct.Struct("<Q5IIBB6x")
_U64_MASK = (1 << 64) - 1
_I64_FIRST, _I64_LAST = -(1 << 63), (1 << 63) - 1
_pack_integer, _pack_number = INTEGER.pack, NUMBER.pack
_SIGNED, _FLOAT64 = L.SIGNED, L.FLOAT64
_TAG_AT = 34
_TAGS = {int(tag): bytes((tag, 0, 0, 0, 0, 0)) for tag in TensorArgType}
"""What stands in a tensor's padding on its way into submit."""
_NO_SIZES = (0,) * L.CONTINUOUS_TENSOR_MAX_DIMS
RECORDED_FIRST, RECORDED_LAST = 0x7FF9 << 48, 0x7FFF << 48
"""Addresses of memory that a recorded graph will be given: no machine has memory there, and as
numbers they are unlikely as scalars (they are not-a-numbers)."""


def get_element_size(dtype: DataType) -> int:
    """Return the bytes of one element.

    Rule     FLOW-DATA-1
    """
    return L.DTYPE_SIZES[DataType(dtype)]


def get_dtype_name(dtype: DataType) -> str:
    """Return the name of an element type, e.g. ``"FLOAT32"``."""
    return DataType(dtype).name


_DTYPES_SEEN: dict[Any, DataType] = {}


def to_dtype(dtype: Any) -> DataType:
    """Return the DataType of a DataType, a numpy dtype, or anything numpy or torch calls a dtype.

    Rule     FLOW-DATA-7
    """
    if isinstance(dtype, DataType):
        return dtype
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        return DataType(dtype)
    if isinstance(dtype, (type, np.dtype)) and dtype in _DTYPES_SEEN:
        return _DTYPES_SEEN[dtype]
    name = str(dtype).removeprefix("torch.")
    kind = _FROM_NAME.get(name)
    if kind is None:
        try:
            converted = np.dtype(dtype)
        except TypeError:
            converted = None
        if converted is not None and converted.isnative:
            kind = _FROM_NAME.get(converted.name)
    if kind is None:
        names = ", ".join(sorted(_FROM_NAME))
        raise TypeError(f"dtype {dtype!r} cannot be passed to a task; convert to one of {names}")
    if isinstance(dtype, (type, np.dtype)):
        _DTYPES_SEEN[dtype] = kind
    return kind


def numpy_dtype(kind: DataType) -> np.dtype[Any]:
    """Return the numpy dtype of an element type; bfloat16 needs the package ml_dtypes."""
    dtype = _TO_NUMPY.get(kind)
    if dtype is None:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(
                "numpy has no bfloat16: install ml_dtypes, or view the memory as UINT16"
            ) from None
        dtype = _TO_NUMPY[kind] = np.dtype(ml_dtypes.bfloat16)
    return dtype


class ContinuousTensor:
    """A contiguous, row-major tensor at an address, at most five dimensions; owns no memory.

    Rule     FLOW-DATA-3, -5

    Attributes
    ----------
    data : int
        Address of the first element; 0 for an OUTPUT that the runtime shall provide.
    shapes : tuple[int, ...]
        The dimensions.
    ndims : int
    dtype : DataType
    child_memory : bool
        True if the address is in the memory of a next-level worker, not of the host.
    """

    __slots__ = ("_keep", "_wire", "_wires", "child_memory", "data", "dtype", "shapes")

    data: int
    shapes: tuple[int, ...]
    dtype: DataType
    child_memory: bool
    _wire: bytes
    _wires: dict[int, bytes]
    _keep: Any

    def __init__(
        self,
        data: int,
        shapes: Sequence[int],
        dtype: DataType,
        child_memory: bool = False,
        *,
        keep: Any = None,
    ) -> None:
        try:
            sizes = tuple(map(index, shapes))
        except TypeError:
            raise TypeError(f"shape {shapes!r} must be a sequence of integers") from None
        kind = to_dtype(dtype)
        if len(sizes) > L.CONTINUOUS_TENSOR_MAX_DIMS:
            raise ValueError(
                f"a tensor has at most {L.CONTINUOUS_TENSOR_MAX_DIMS} dimensions, this one has "
                f"{len(sizes)} {sizes}; reshape it"
            )
        padded = sizes + _NO_SIZES[len(sizes) :]
        try:
            wire = _WIRE.pack(data, *padded, len(sizes), kind, bool(child_memory))
        except struct.error:
            if not 0 <= data <= _U64_MASK:
                raise ValueError(f"address {data} is not an unsigned 64-bit number") from None
            raise ValueError(f"shape {sizes} has a dimension outside 0 … 2**32-1") from None
        if math.prod(sizes) * L.DTYPE_SIZES[kind] >= 1 << 62:
            raise ValueError(f"a tensor of shape {sizes} does not fit an address space")
        self._fill(data, sizes, kind, bool(child_memory), keep, wire)

    def _fill(
        self, data: int, sizes: tuple[int, ...], kind: DataType, child: bool, keep: Any, wire: bytes
    ) -> None:
        head = wire[:_TAG_AT]
        write = object.__setattr__
        write(self, "data", data)
        write(self, "shapes", sizes)
        write(self, "dtype", kind)
        write(self, "child_memory", child)
        write(self, "_keep", keep)
        write(self, "_wire", wire)
        write(self, "_wires", {tag: head + _TAGS[tag] for tag in _TAGS})

    def _placed(self, data: int, keep: Any) -> ContinuousTensor:
        """Return the same tensor at an address; `keep` holds its memory."""
        tensor = object.__new__(ContinuousTensor)
        wire = data.to_bytes(8, "little") + self._wire[8:]
        tensor._fill(data, self.shapes, self.dtype, self.child_memory, keep, wire)
        return tensor

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a ContinuousTensor cannot be changed (tried to set {name!r})")

    @classmethod
    def make(
        cls, data: int, shapes: Sequence[int], dtype: DataType, child_memory: bool = False
    ) -> ContinuousTensor:
        """Describe memory by hand. The address is taken at its word.

        Rule     FLOW-DATA-4
        """
        return cls(data, shapes, dtype, child_memory)

    @property
    def ndims(self) -> int:
        """Number of dimensions."""
        return len(self.shapes)

    def nbytes(self) -> int:
        """Return the bytes of the tensor: elements times element size."""
        return math.prod(self.shapes) * L.DTYPE_SIZES[self.dtype]

    def numpy(self) -> Array:
        """Return a numpy array over the same memory, without a copy.

        Rule     FLOW-DATA-6

        Raises
        ------
        ValueError
            If the tensor has no address, or one in a chip's memory.
        """
        if self.child_memory:
            raise ValueError("this tensor is in a next-level worker's memory; copy it from there")
        if not FIRST_ADDRESS <= self.data < END_OF_ADDRESSES:
            self._require_memory()
        return view_memory(self.data, self.shapes, numpy_dtype(self.dtype), self._keep)

    def _require_memory(self) -> None:
        if self.data == 0 and self.nbytes() > 0:
            raise ValueError(
                "this tensor has no memory yet: the runtime provides it when it is submitted"
            )
        if RECORDED_FIRST <= self.data < RECORDED_LAST:
            raise ValueError(
                "this tensor has no memory: it is part of a recording, and has some only while the "
                "tasks of the graph run"
            )
        if self.nbytes() > 0:
            raise ValueError(f"this tensor is at {self.data:#x}, where no program has memory")

    def __repr__(self) -> str:
        where = ", child_memory" if self.child_memory else ""
        return f"ContinuousTensor({self.data:#x}, {self.shapes}, {self.dtype.name}{where})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContinuousTensor) and self._wire == other._wire

    def __hash__(self) -> int:
        return hash(self._wire)

    @classmethod
    def _from_wire(cls, wire: bytes) -> ContinuousTensor:
        data, *sizes, ndims, dtype, child = _WIRE.unpack(wire)
        if ndims > L.CONTINUOUS_TENSOR_MAX_DIMS or child > 1:
            raise ValueError(
                f"{wire.hex()} is no tensor: it has {ndims} dimensions and child_memory {child}; at "
                f"most {L.CONTINUOUS_TENSOR_MAX_DIMS} and 1 are known"
            )
        return cls(data, sizes[:ndims], DataType(dtype), bool(child))


TENSOR_AFTER_SCALAR = "cannot add tensor after scalar: add all tensors first"
FIRST_ADDRESS, END_OF_ADDRESSES = 4096, 1 << 47
"""Where memory of a program can be."""
_memory: Any = (ctypes.c_char * (END_OF_ADDRESSES - FIRST_ADDRESS)).from_address(FIRST_ADDRESS)
"""The whole address space as one buffer: numpy makes views of it faster than of anything else."""


def view_memory(data: int, shape: Sequence[int], dtype: np.dtype[Any], keep: Any = None) -> Array:
    """Return an array over memory at an address; `keep` lives as long as the array does."""
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    base = FIRST_ADDRESS if keep is None else keep.ctypes.data
    view: Array = np.ndarray(
        shape, dtype, buffer=_memory if keep is None else keep, offset=data - base
    )
    return view


# ---------------------------------------------------------------- arrays as arguments
Visible = Callable[[int, int], str | None]
"""Says whether the children see bytes [address, address + n): None, or why not."""

_visibility: list[Visible] = []


class _Current(threading.local):
    """The check of the Worker that this thread runs an orchestration function for."""

    check: Visible | None = None
    kept: list[Any] | None = None
    """While a graph is recorded: the arrays it refers to."""


_current = _Current()
_known: dict[
    int, tuple[weakref.ref[Any], tuple[int, ...], Any, Visible | None, ContinuousTensor]
] = {}


def keep_alive(array: Any) -> None:
    """Have the graph that is being recorded on this thread, if there is one, hold on to an array."""
    if _current.kept is not None:
        _current.kept.append(array)


def add_visibility(check: Visible) -> None:
    """Let `check` vouch for shared memory (each open Worker does)."""
    _visibility.append(check)


def remove_visibility(check: Visible) -> None:
    """Take a check back, and forget what it vouched for."""
    if check in _visibility:
        _visibility.remove(check)
    _known.clear()


def set_current(
    check: Visible | None, kept: list[Any] | None = None
) -> tuple[Visible | None, list[Any] | None]:
    """Let only one Worker vouch on this thread, until told otherwise; return what was set before.

    Arrays that `check` has not vouched for yet are appended to `kept`.
    """
    before = _current.check, _current.kept
    _current.check, _current.kept = check, kept
    return before


def forget_visibility() -> None:
    """Forget every check: this process was forked, the Workers are its parent's."""
    _current.check = _current.kept = None
    _visibility.clear()
    _known.clear()


def is_shared(address: int, nbytes: int) -> bool:
    """Say whether processes forked from this one share some memory with it."""
    if any(check(address, nbytes) is None for check in _visibility):
        return True
    return covers(shared_mappings(), address, nbytes) is not None


def make_tensor(array: Any) -> ContinuousTensor:
    """Describe an array (numpy, or a torch CPU tensor) that lives in shared memory.

    Rule     FLOW-BUILD-5; ORCH-MISUSE-2, -3

    Raises
    ------
    TypeError
        Not an array, or an element type that cannot be passed.
    ValueError
        Not contiguous, more than five dimensions, or memory that a worker process cannot see.
    """
    if isinstance(array, ContinuousTensor):
        return array
    if isinstance(array, np.ndarray):
        return _from_numpy(array)
    if hasattr(array, "data_ptr") and hasattr(array, "element_size"):
        return _from_torch(array)
    raise TypeError(
        f"expected a ContinuousTensor or an array in shared memory, got {type(array).__name__}; "
        "pass Worker.share(array) or Worker.empty(shape, dtype)"
    )


def _from_numpy(array: Array) -> ContinuousTensor:
    known = _known.get(id(array))
    if known is not None:
        reference, shape, dtype, voucher, tensor = known
        if (
            reference() is array
            and array.shape == shape
            and array.dtype is dtype
            and _current.check in (None, voucher)
        ):
            return tensor
    if not array.flags.c_contiguous:
        raise not_contiguous(array.shape, array.strides)
    kind = to_dtype(array.dtype)
    address: int = array.__array_interface__["data"][0]
    voucher = _require_visible(address, array.nbytes)
    keep_alive(array)
    tensor = ContinuousTensor(address, array.shape, kind)
    key = id(array)
    reference = weakref.ref(array, lambda _: _known.pop(key, None))
    _known[key] = (reference, array.shape, array.dtype, voucher, tensor)
    return tensor


def not_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> ValueError:
    """Return the exception for an array with gaps."""
    return ValueError(
        f"an array of shape {shape} and strides {strides} is not contiguous; "
        "pass Worker.share(array), which makes a contiguous copy"
    )


def _from_torch(tensor: Any) -> ContinuousTensor:
    if tensor.device.type != "cpu":
        raise ValueError(f"a tensor on {tensor.device} is not host memory; pass a CPU tensor")
    if not tensor.is_contiguous():
        raise ValueError("a torch tensor must be contiguous; call .contiguous().share_memory_()")
    nbytes = tensor.numel() * tensor.element_size()
    remedy = "call .share_memory_() before forked workers start, or pass Worker.share(tensor)"
    _require_visible(tensor.data_ptr(), nbytes, remedy)
    keep_alive(tensor)
    return ContinuousTensor(tensor.data_ptr(), tuple(tensor.shape), to_dtype(tensor.dtype))


def _require_visible(
    address: int,
    nbytes: int,
    remedy: str = "pass Worker.share(array) or Worker.empty(shape, dtype)",
) -> Visible | None:
    """Return who vouches for some memory; with no Worker open, nobody is asked yet."""
    checks = list(_visibility) if _current.check is None else [_current.check]
    why = ""
    for check in checks:
        reason = check(address, nbytes)
        if reason is None:
            return check
        why = reason
    if not checks and covers(shared_mappings(), address, nbytes) is not None:
        return None
    raise invisible(address, nbytes, why or "it is private to this process", remedy)


def invisible(
    address: int,
    nbytes: int,
    why: str,
    remedy: str = "pass Worker.share(array) or Worker.empty(shape, dtype)",
) -> ValueError:
    """Return the exception for memory that a worker process could not see.

    Rule     ORCH-MISUSE-2
    """
    return ValueError(
        f"a worker process cannot see the {nbytes} bytes at {address:#x}: {why}; {remedy}"
    )


def require_visible_now(spans: Sequence[tuple[int, int]]) -> None:
    """Ask the Worker whose run is in progress about memory that was accepted before the run.

    Raises
    ------
    ValueError
        Its workers cannot see some of it.
    """
    for address, nbytes in spans:
        _require_visible(address, nbytes)


# ---------------------------------------------------------------- TaskArgs


class TaskArgs:
    """The arguments of one task: tensors with tags, then scalars.

    In the orchestration function it is built; in a worker it is read, for the time of the call.

    Rule     FLOW-BUILD-1
    """

    __slots__ = ("_doubts", "_scalars", "_tensors")

    _tensors: list[bytes]
    _scalars: Sequence[bytes]
    """A list from the first scalar on; each with its kind, 16 bytes."""
    _doubts: tuple[tuple[int, int], ...]
    """Address and bytes of arrays added outside of a run: submit asks its own Worker about them."""

    def __init__(self) -> None:
        self._tensors = []
        self._scalars = ()
        self._doubts = ()

    def add_tensor(self, tensor: Tensor, tag: TensorArgType = TensorArgType.INPUT) -> None:
        """Append a tensor: a ContinuousTensor, or an array in shared memory.

        Rule     ORCH-TAG-8; ORCH-MISUSE-4

        Raises
        ------
        RuntimeError
            After `add_scalar`: tensors come first.
        TypeError, ValueError
            See `make_tensor`; or `tag` is no TensorArgType.
        """
        if self._scalars:
            raise RuntimeError(TENSOR_AFTER_SCALAR)
        if type(tensor) is not ContinuousTensor:
            tensor = make_tensor(tensor)
            if _current.check is None:
                self._doubts = (*self._doubts, (tensor.data, tensor.nbytes()))
        try:
            self._tensors.append(tensor._wires[tag])
        except (KeyError, TypeError):
            self._tensors.append(tensor._wires[check_tag(tag)])

    def add_scalar(self, value: SupportsIndex | float) -> None:
        """Append a scalar: an integer, a bool, or a float, of Python, numpy or `ctypes`.

        64 bits travel (see `scalar_to_uint64`), and beside them what they were added as: `scalar` and
        `scalar_float` give the value back.

        Rule     FLOW-SCALAR-1, -4

        Raises
        ------
        TypeError
            It is neither an integer nor a float of at most 64 bits.
        OverflowError
            An integer that does not fit 64 bits.
        """
        if type(value) is int and _I64_FIRST <= value <= _I64_LAST:
            raw = _pack_integer(value, _SIGNED)
        elif type(value) is float:
            raw = _pack_number(value, _FLOAT64)
        else:
            raw = scalar_wire(value)
        if self._scalars:
            self._scalars.append(raw)  # type: ignore[attr-defined]
        else:
            self._scalars = [raw]

    def tensor(self, i: int) -> ContinuousTensor:
        """Return tensor `i`.

        Raises
        ------
        IndexError
            `i` is not in 0 … tensor_count()-1.
        """
        return ContinuousTensor._from_wire(self._tensors[_check_index(i, self._tensors, "tensor")])

    def scalar(self, i: int) -> int | float:
        """Return scalar `i` as it was added: an int, or a float of the same value.

        Bits of which nobody says what they are (see `scalar_to_uint64`) come as an unsigned integer.

        Rule     FLOW-SCALAR-1, -3

        Raises
        ------
        IndexError
            `i` is not in 0 … scalar_count()-1.
        """
        raw = self._scalars[_check_index(i, self._scalars, "scalar")]
        return as_it_went_in(raw, raw[8])

    def scalar_float(self, i: int) -> float:
        """Return scalar `i` as a float: what was added as an integer is converted.

        Bits of which nobody says what they are come as the 64-bit float that has these bits.

        Rule     FLOW-BUILD-4; FLOW-SCALAR-2, -3

        Raises
        ------
        IndexError
            `i` is not in 0 … scalar_count()-1.
        """
        raw = self._scalars[_check_index(i, self._scalars, "scalar")]
        return as_float(raw, raw[8])

    def tag(self, i: int) -> TensorArgType:
        """Return the tag of tensor `i`."""
        return TensorArgType(self._tensors[_check_index(i, self._tensors, "tag")][34])

    def set_tag(self, i: int, tag: TensorArgType) -> None:
        """Change the tag of tensor `i`.

        Rule     FLOW-BUILD-2
        """
        wire = self._tensors[_check_index(i, self._tensors, "tag")]
        self._tensors[i] = wire[:34] + bytes((check_tag(tag), 0, 0, 0, 0, 0))

    def tensor_count(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)

    def scalar_count(self) -> int:
        """Return the number of scalars."""
        return len(self._scalars)

    def clear(self) -> None:
        """Remove everything."""
        self._tensors.clear()
        self._scalars = ()
        self._doubts = ()

    def __len__(self) -> int:
        return len(self._tensors) + len(self._scalars)

    def __repr__(self) -> str:
        return f"TaskArgs({self.tensor_count()} tensors, {self.scalar_count()} scalars)"


def _check_index(i: int, items: Sequence[Any], what: str) -> int:
    if not 0 <= i < len(items):
        raise IndexError(f"{what} index {i} is out of range: there are {len(items)}")
    return i


def check_tag(tag: Any) -> int:
    """Return a tag's number, or refuse what is none."""
    try:
        return int(TensorArgType(tag))
    except ValueError:
        raise ValueError(
            f"{tag!r} is no TensorArgType; use INPUT, OUTPUT, INOUT, OUTPUT_EXISTING or NO_DEP"
        ) from None


class CallConfig:
    """Execution knobs of a task, the same at every level; 1052 bytes on the wire.

    Rule     FLOW-CONFIG-1, -2

    Attributes
    ----------
    block_dim : int
        Cores a chip callable runs on; 0 lets the runtime choose.
    aicpu_thread_num : int
        Threads that feed them.
    enable_l2_swimlane : int
        0 (off) … 4 (full).
    enable_dump_tensor, enable_pmu, enable_dep_gen, enable_scope_stats : int
        Diagnostics; any of them needs `output_prefix`.
    output_prefix : str
        Where diagnostics write, at most 1023 bytes.
    """

    _FIELDS = (
        "block_dim",
        "aicpu_thread_num",
        "enable_l2_swimlane",
        "enable_dump_tensor",
        "enable_pmu",
        "enable_dep_gen",
        "enable_scope_stats",
    )
    _LAYOUT = struct.Struct("<7i1024s")
    __slots__ = (*_FIELDS, "output_prefix")

    block_dim: int
    aicpu_thread_num: int
    enable_l2_swimlane: int
    enable_dump_tensor: int
    enable_pmu: int
    enable_dep_gen: int
    enable_scope_stats: int
    output_prefix: str

    def __init__(self, **fields: Any) -> None:
        # one by one: each run makes one
        self.block_dim = self.enable_l2_swimlane = self.enable_dump_tensor = 0
        self.enable_pmu = self.enable_dep_gen = self.enable_scope_stats = 0
        self.aicpu_thread_num = 3
        self.output_prefix = ""
        for name, value in fields.items():
            if name not in self.__slots__:
                known = ", ".join(self.__slots__)
                raise TypeError(f"CallConfig has no field {name!r}; there are {known}")
            setattr(self, name, value)

    def validate(self) -> None:
        """Check every field.

        Rule     FLOW-CONFIG-3, -5

        Raises
        ------
        ValueError
            A field out of range, or diagnostics without `output_prefix`.
        """
        for name in self._FIELDS:
            value = getattr(self, name)
            if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31 or value < 0:
                raise ValueError(f"CallConfig.{name} is {value!r}; give a non-negative 32-bit int")
        if self.enable_l2_swimlane > 4:
            raise ValueError(
                f"CallConfig.enable_l2_swimlane is {self.enable_l2_swimlane}; the levels are 0 … 4"
            )
        self._check_prefix()
        on = [name for name in self._FIELDS[2:] if getattr(self, name)]
        if on and not self.output_prefix:
            raise ValueError(
                f"CallConfig.{on[0]} is on without output_prefix: say where diagnostics shall go"
            )

    def _check_prefix(self) -> None:
        """Refuse an `output_prefix` that cannot be a path; the bytes of one need not be UTF-8."""
        try:
            raw = self.output_prefix.encode(errors="surrogateescape")
        except (AttributeError, UnicodeEncodeError):
            raw = b"\0"
        if b"\0" in raw:
            raise ValueError(
                f"CallConfig.output_prefix is {self.output_prefix!r}; give a str that can be a path"
            )
        if len(raw) > 1023:
            raise ValueError("CallConfig.output_prefix is longer than 1023 bytes")

    def to_bytes(self) -> bytes:
        """Return the wire form, `CALL_CONFIG_SIZE` bytes; ValueError as in `validate`."""
        self.validate()
        values = [getattr(self, name) for name in self._FIELDS]
        return self._LAYOUT.pack(*values, self.output_prefix.encode(errors="surrogateescape"))

    @classmethod
    def from_bytes(cls, raw: bytes) -> CallConfig:
        """Read the wire form.

        Rule     FLOW-CONFIG-6

        Raises
        ------
        ValueError
            No CallConfig has these bytes.
        """
        if len(raw) != cls._LAYOUT.size:
            raise ValueError(f"a CallConfig has {cls._LAYOUT.size} bytes, these are {len(raw)}")
        *values, text = cls._LAYOUT.unpack(raw)
        prefix, _, rest = text.partition(b"\0")
        if rest.strip(b"\0"):
            raise ValueError("CallConfig.output_prefix does not end with its first NUL")
        made = cls.__new__(cls)
        for name, value in zip(cls._FIELDS, values, strict=True):
            setattr(made, name, value)
        made.output_prefix = prefix.decode(errors="surrogateescape")
        made.validate()
        return made

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"CallConfig({shown})"


_CHIP_NAMES = ("ChipCallable", "ChipStorageTaskArgs", "ChipWorker", "CoreCallable")


def __getattr__(name: str) -> Any:
    """Give the names that belong to chips, which are only imported when somebody asks for them."""
    if name not in _CHIP_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import native_chip

    return getattr(native_chip, name)
