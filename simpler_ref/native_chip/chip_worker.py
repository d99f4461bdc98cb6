"""`ChipWorker`: one chip, behind a `runtime.so` of its own.

Rule     CHIP-LOAD-1, CHIP-LOAD-3, CHIP-LOAD-5, CHIP-SLOT-1, CHIP-SLOT-3, CHIP-ARGS-1, CHIP-ARGS-4,
         CHIP-MEM-1, CHIP-MEM-2, CHIP-MEM-5, CHIP-LIFE-1, CHIP-LIFE-2, CHIP-LIFE-4, FLOW-ENV-1,
         FLOW-EDGE-2, WM-DOMAIN-8
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import weakref
from pathlib import Path
from typing import Any

from ..callables.identity import CallableHandle, chip_handle
from ..jit import layout as L
from ..model.arguments import TaskArgs
from ..model.config import RUNTIME_ENV_SIZE, CallConfig, RuntimeEnv
from ..model.tensor import require_plain
from ..model.wire import SCALAR_BYTES, without_tag
from ..system import lazy
from ..system.values import file_path, whole
from .abi import ChipCallable, ChipError, ChipStatus, ChipStorageTaskArgs, not_built

_HERE = Path(__file__).parent
_SHIM = _HERE / "_shim.so"
_RUNTIME = _HERE / "_runtime.so"
_WORDS = 2048
_COUNTS = struct.Struct("<ii")
_NO_ENV = bytes(RUNTIME_ENV_SIZE)
SIMULATED = ("tensormap_and_ringbuffer", "host_build_graph")
"""Names of runtimes on hardware, in whose place the simulated chip runs."""


def default_runtime() -> str:
    """Return the path of the reference runtime, a simulated chip.

    Raises RuntimeError if it was not compiled.
    """
    if not _RUNTIME.exists():
        raise RuntimeError(not_built(_RUNTIME))
    return str(_RUNTIME)


_SIZE, _NUMBER, _SIGNED = ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64
_ADDRESS = ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "pto2_init": (_NUMBER, _NUMBER),
    "pto2_finalize": (_NUMBER,),
    "pto2_prepare_callable": (_NUMBER, _NUMBER, _ADDRESS, _SIZE),
    "pto2_unregister_callable": (_NUMBER, _NUMBER),
    "pto2_run_runtime": (_NUMBER,),
    "pto2_malloc": (_SIZE, _SIZE),
    "pto2_free": (_NUMBER, _SIZE),
    "pto2_copy_to": (_NUMBER, _SIZE, _ADDRESS, _SIZE),
    "pto2_copy_from": (_NUMBER, _ADDRESS, _SIZE, _SIZE),
    "pto2_last_error": (ctypes.c_char_p,),
    "pto2_device_wall_ns": (_SIGNED,),
}
"""What a runtime exports: the result of each function, then its parameters."""
_OPTIONAL_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "pto2_open_window": (_NUMBER, _SIZE, _SIZE),
    "pto2_close_window": (_NUMBER, _SIZE),
    "pto2_set_runtime_env": (_NUMBER, ctypes.c_char_p),
    "pto2_record": (_NUMBER, _ADDRESS),
}
"""What it may lack."""


@functools.cache
def _shim() -> Any:
    if not _SHIM.exists():
        raise RuntimeError(not_built(_SHIM))
    library = ctypes.CDLL(str(_SHIM))
    run = _SIGNED, _ADDRESS, _SIGNED, _ADDRESS
    for name, result, parameters in (
        ("open", _ADDRESS, (ctypes.c_char_p, _ADDRESS, _SIZE)),
        ("close", None, (_ADDRESS,)),
        ("run", _NUMBER, (_ADDRESS, *run)),
        ("run_recorded", _NUMBER, (_ADDRESS, _ADDRESS, _ADDRESS, *run)),
        ("domain_break", None, (_SIZE, ctypes.c_char_p)),
    ):
        function = getattr(library, f"shim_{name}")
        function.restype, function.argtypes = result, parameters
    return library


def _load(path: str) -> Any:
    """Load a runtime, and return the library; a function that it may lack and lacks is None."""
    shim, why = _shim(), ctypes.create_string_buffer(_WORDS)
    handle = shim.shim_open(os.fsencode(path), why, len(why))
    if not handle:
        raise ChipError(f"cannot load the runtime {path}: {_text(why.value)}")
    library = ctypes.CDLL(path, handle=handle)
    missing = []
    for name, (result, *parameters) in (_FUNCTIONS | _OPTIONAL_FUNCTIONS).items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype, function.argtypes = result, parameters
        elif name in _OPTIONAL_FUNCTIONS:
            setattr(library, name, None)
        else:
            missing.append(name)
    if missing:
        shim.shim_close(handle)
        raise ChipError(f"cannot load the runtime {path}: missing: {', '.join(missing)}")
    return library


def _close(runtime: Any, pid: int) -> None:
    """Close a chip without references; a forked process leaves it to its parent."""
    if os.getpid() == pid:
        runtime.pto2_finalize()
        _shim().shim_close(runtime._handle)


def _address(buffer: Any, what: str, writable: bool = False) -> tuple[Any, int, int]:
    """Return an object that keeps a buffer alive, its address and its bytes."""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(
            f"{what} must be an address or a buffer, got {type(buffer).__name__}"
        ) from None
    if not view.c_contiguous or (writable and view.readonly):
        raise ValueError(f"{what} must be a contiguous{' writable' if writable else ''} buffer")
    if view.nbytes == 0:
        return view, 0, 0
    if not view.readonly:
        held: Any = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
        return held, ctypes.addressof(held), view.nbytes
    raw = buffer if isinstance(buffer, bytes) else view.tobytes()
    return raw, ctypes.cast(ctypes.c_char_p(raw), ctypes.c_void_p).value or 0, view.nbytes


def _check_config(config: Any) -> None:
    if not isinstance(config, (bytes, bytearray, memoryview)):
        raise TypeError(
            f"config must be the bytes of CallConfig.to_bytes(), or their address, got {config!r:.60}"
        )
    if len(config) != CallConfig._LAYOUT.size:
        raise ValueError(
            f"config has {len(config)} bytes; CallConfig.to_bytes() makes the "
            f"{CallConfig._LAYOUT.size} that are needed"
        )


class ChipWorker:
    """One chip. Its calls are made one at a time, in the process that called `init`.

    Two workers of one process have two chips: each loads a copy of its own of the runtime. It also has
    the methods of `extras.communicators.Communicators`, by which chips without a Worker meet.

    Parameters
    ----------
    device_id : int
        Which chip, 0 or more; the simulated ones are all alike.
    runtime : str | os.PathLike[str] | None
        Path of a `runtime.so`; None, ``"tensormap_and_ringbuffer"`` or ``"host_build_graph"``: the
        reference runtime, a simulated chip.

    Raises TypeError or ValueError for a parameter that cannot be.
    """

    def __init__(self, device_id: int = 0, runtime: str | os.PathLike[str] | None = None) -> None:
        self.device_id = whole("device_id", device_id, 0, (1 << 31) - 1)
        is_named = runtime is not None and runtime not in SIMULATED
        path = file_path("runtime", runtime) if is_named else default_runtime()
        self.runtime = os.path.realpath(path)
        self._library: Any = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._call: Any = _never_opened
        self._filled: set[int] = set()
        self._env = _NO_ENV
        self._slots: dict[CallableHandle, int] = {}
        self._comms: Any = None
        """Its communicators, an extra, once it has one."""

    # ------------------------------------------------------------ life
    def init(self) -> None:
        """Load the runtime and open the device.

        Raises ChipError if the file cannot be loaded, lacks entry points, or the device cannot be opened,
        and RuntimeError if it is open already.
        """
        if self._library is not None:
            raise RuntimeError("this ChipWorker is already initialized; call finalize() first")
        runtime = _load(self.runtime)
        code = runtime.pto2_init(self.device_id)
        if code:
            text = _text(runtime.pto2_last_error())
            _shim().shim_close(runtime._handle)
            raise ChipError(f"chip {self.device_id} cannot be opened: {text}", code)
        self._library = runtime
        run = ctypes.cast(runtime.pto2_run_runtime, _ADDRESS).value
        self._call = functools.partial(_shim().shim_run, run)
        self._finalizer = weakref.finalize(self, _close, runtime, os.getpid())

    def finalize(self) -> None:
        """Close the device and release everything; further calls do nothing."""
        if self._comms is not None:
            self._comms.comm_destroy_all()
            self._comms = None
        if self._finalizer is not None:
            self._finalizer()
        self._finalizer = self._library = None
        self._filled.clear()
        self._env = _NO_ENV
        self._slots.clear()
        self._call = _never_opened

    def __enter__(self) -> ChipWorker:
        self.init()
        return self

    def __exit__(self, *_: object) -> None:
        self.finalize()

    @property
    def initialized(self) -> bool:
        """True between `init` and `finalize`."""
        return self._library is not None

    def _open(self) -> Any:
        if self._library is None:
            raise _closed()
        return self._library

    def _check(self, code: int, what: str) -> None:
        if code:
            raise self._error(code, what)

    def _error(self, code: int, what: str, text: str = "") -> ChipError:
        text = text or _text(self._open().pto2_last_error())
        return ChipError(f"chip {self.device_id}: {what}: {text or f'error {code}'}", code)

    # ------------------------------------------------------------ callables
    def prepare(self, local_slot: int, chip_callable: ChipCallable | Any) -> None:
        """Install a callable: a ChipCallable, or the bytes of one.

        Raises ChipError if the bytes are none, a binary cannot be loaded, or the slot is not free.
        """
        runtime = self._open()
        slot = whole("local_slot", local_slot, -(1 << 31), (1 << 31) - 1)
        if isinstance(chip_callable, ChipCallable):
            chip_callable = chip_callable.to_bytes()
        held, address, size = _address(chip_callable, "chip_callable")
        self._check(runtime.pto2_prepare_callable(slot, address, size), f"prepare({slot})")
        del held  # until here
        self._filled.add(slot)

    def unregister(self, local_slot: int) -> None:
        """Remove a callable; its slot is free again. Raises ChipError if it was empty."""
        runtime = self._open()
        slot = whole("local_slot", local_slot, -(1 << 31), (1 << 31) - 1)
        self._check(runtime.pto2_unregister_callable(slot), f"unregister({slot})")
        self._filled.discard(slot)

    def prepare_callable(self, target: ChipCallable) -> CallableHandle:
        """Install a callable in a free slot, and return a handle for `run`.

        Raises TypeError if it is no ChipCallable, and ChipError as `prepare` does.
        """
        if not isinstance(target, ChipCallable):
            raise TypeError(f"prepare_callable expects a ChipCallable, got {type(target).__name__}")
        slot, handle = self.prepare_free(target), chip_handle(target)
        self._slots[handle] = slot
        return handle

    def prepare_free(self, chip_callable: ChipCallable | Any) -> int:
        """Install a callable in a free slot, and return the slot; see `prepare`."""
        slot = next(i for i in range(len(self._filled) + 1) if i not in self._filled)
        self.prepare(slot, chip_callable)
        return slot

    def unregister_callable(self, handle: CallableHandle) -> None:
        """Remove a callable that `prepare_callable` has installed. Raises KeyError if it is none."""
        self.unregister(self._slot_of(handle))
        del self._slots[handle]

    def _slot_of(self, handle: CallableHandle) -> int:
        slot = self._slots.get(handle)
        if slot is None:
            raise KeyError(
                f"{handle!r} is not prepared on this ChipWorker: call prepare_callable first"
            )
        return slot

    # ------------------------------------------------------------ run
    def run(
        self, local_slot: int | CallableHandle, view: Any, capacity: Any = None, config: Any = 0
    ) -> None:
        """Run a callable on an args blob, and wait for it; the GIL is released meanwhile.

        ``run(slot, args, config=None)`` with a TaskArgs or a ChipStorageTaskArgs is `run_args`.

        Parameters
        ----------
        local_slot : int | CallableHandle
            Where it was prepared, or the handle of `prepare_callable`.
        view : int | buffer
            The args blob: `i32 T, i32 S, ContinuousTensor[T], u64[S]`, or its address, say in a
            mailbox.
        capacity : int | None
            Bytes that may be read there; needed with an address.
        config : int | bytes
            The 1052 bytes of a CallConfig, or their address.

        Raises ChipError if the run fails; the host's tensors are as they were.
        """
        if type(local_slot) is not int and isinstance(local_slot, CallableHandle):
            local_slot = self._slot_of(local_slot)
        if isinstance(view, (TaskArgs, ChipStorageTaskArgs)):
            self.run_args(local_slot, view, capacity or config or None)
            return
        if type(view) is not int:
            _held, view, size = _address(view, "view")
            most = size if capacity is None else capacity
            capacity = min(size, whole("capacity", most, 0, (1 << 63) - 1))
        if type(config) is not int:
            _check_config(config)
        try:
            code = self._call(local_slot, view, capacity, config)
        except ctypes.ArgumentError as error:
            raise TypeError(
                f"run(local_slot={local_slot!r}, view, capacity={capacity!r}, config): {error}; "
                "slot and capacity are numbers, view and config addresses or bytes"
            ) from None
        if code == ChipStatus.RECORDING and self._open().pto2_record is not None:
            self._run_recorded(local_slot, view, capacity, config)
        elif code:
            raise self._run_error(code, local_slot, view, capacity)

    def _run_recorded(self, slot: int, view: int, capacity: int, config: Any) -> None:
        """Run with diagnostics flags: the chip has refused to, as nobody takes what it records."""
        what, runtime = f"chip {self.device_id}: run({slot})", self._open()
        record = ctypes.cast(runtime.pto2_record, _ADDRESS)
        run = ctypes.cast(runtime.pto2_run_runtime, _ADDRESS)
        wire = ctypes.string_at(config, CallConfig._LAYOUT.size) if type(config) is int else config
        with lazy.load("diagnostics").chip_recorded(bytes(wire), what) as recording:
            code = _shim().shim_run_recorded(
                record, ctypes.byref(recording), run, slot, view, capacity, config
            )
            if code:
                raise self._run_error(code, slot, view, capacity)

    def _run_error(self, code: int, slot: int, view: int, capacity: int) -> ChipError:
        asked = "" if self._env == _NO_ENV else f" with {RuntimeEnv.from_bytes(self._env)!r}"
        if code == ChipStatus.VIEW:
            return self._error(code, f"run({slot}){asked}", _wrong_counts(view, capacity))
        error = self._error(code, f"run({slot}){asked}")
        return error if self._comms is None else self._comms.explain(error, view)

    def run_args(
        self,
        local_slot: int,
        task_args: TaskArgs | ChipStorageTaskArgs,
        config: CallConfig | None = None,
    ) -> None:
        """Run a callable on a TaskArgs, whose tags do not matter here, or a ChipStorageTaskArgs.

        Raises ChipError if the run failed: the host's tensors are as they were. Raises ValueError
        or TypeError if `config` is not valid, or `task_args` is neither of the two.
        """
        if isinstance(task_args, ChipStorageTaskArgs):
            task_args = task_args.task_args()
        if not isinstance(task_args, TaskArgs):
            raise TypeError(
                f"task_args must be a TaskArgs or a ChipStorageTaskArgs, got {type(task_args).__name__}"
            )
        if config is not None and not isinstance(config, CallConfig):
            raise TypeError(f"config must be a CallConfig or None, got {type(config).__name__}")
        require_plain([task_args._tensors], "the arguments of a chip")
        tensors = [without_tag(wire, keep_mark=True) for wire in task_args._tensors]
        scalars = [raw[:SCALAR_BYTES] for raw in task_args._scalars]
        view = b"".join((_COUNTS.pack(len(tensors), len(scalars)), *tensors, *scalars))
        knobs = CallConfig() if config is None else config
        wire = knobs.to_bytes()
        self.set_runtime_env(knobs._runtime_env or _NO_ENV)
        self.run(local_slot, view, len(view), wire)

    @property
    def device_wall_ns(self) -> int:
        """Nanoseconds that the last successful run spent on the device."""
        return int(self._open().pto2_device_wall_ns())

    # ------------------------------------------------------------ memory
    def malloc(self, size: int) -> int:
        """Allocate device memory, whose contents are arbitrary; return its address.

        Raises ChipError if there is no room.
        """
        runtime = self._open()
        whole("size", size, 1, (1 << 63) - 1)
        address = runtime.pto2_malloc(size)
        if not address:
            raise self._error(ChipStatus.MEMORY, f"malloc({size})")
        return int(address)

    def free(self, ptr: int) -> None:
        """Free what `malloc` returned. Raises ChipError if no live allocation begins there."""
        runtime = self._open()
        whole("ptr", ptr, 0, (1 << 64) - 1)
        self._check(runtime.pto2_free(ptr), f"free({ptr:#x})")

    def copy_to(self, dst: int, src: Any, size: int | None = None) -> None:
        """Copy from the host to the device.

        Parameters
        ----------
        dst : int
            Device address.
        src : int | buffer
            Host address, or a buffer: bytes, an array.
        size : int | None
            Bytes; None is all of the buffer.

        Raises ChipError if the device's bytes are not inside one allocation (nothing was copied), or the
        host's are not there (what was copied before that is undefined).
        """
        runtime = self._open()
        held, host, size = self._host(src, size, "src", False)
        whole("dst", dst, 0, (1 << 64) - 1)
        self._check(runtime.pto2_copy_to(dst, host, size), f"copy_to({dst:#x}, {host:#x}, {size})")
        del held

    def copy_from(self, dst: Any, src: int, size: int | None = None) -> None:
        """Copy from the device to the host: as `copy_to`, but a buffer must be writable."""
        runtime = self._open()
        held, host, size = self._host(dst, size, "dst", True)
        whole("src", src, 0, (1 << 64) - 1)
        self._check(
            runtime.pto2_copy_from(host, src, size), f"copy_from({host:#x}, {src:#x}, {size})"
        )
        del held

    # ------------------------------------------------------------ sizes for the runtime
    def set_runtime_env(self, env: RuntimeEnv | bytes) -> None:
        """Set the sizes that following runs ask for; their kernels can read them.

        Raises ValueError as `RuntimeEnv.validate` does, or for bytes that are none.
        """
        runtime = self._open()
        wire = env.to_bytes() if isinstance(env, RuntimeEnv) else env
        if len(wire) != RUNTIME_ENV_SIZE:
            raise ValueError(f"a RuntimeEnv has {RUNTIME_ENV_SIZE} bytes, these are {len(wire)}")
        if wire != self._env:
            if runtime.pto2_set_runtime_env is not None:  # or it has no use for the sizes
                self._check(runtime.pto2_set_runtime_env(wire), "set_runtime_env")
            self._env = wire

    # ------------------------------------------------------------ windows that chips share
    def open_window(self, address: int, size: int) -> None:
        """Let kernels and copies of this chip use memory that is mapped in this process.

        Raises ChipError if the devices of this runtime share no memory.
        """
        self._window("open", address, size)

    def close_window(self, address: int) -> None:
        """End what `open_window` began. Raises ChipError if no window is open there."""
        self._window("close", address)

    def _window(self, step: str, *where: int) -> None:
        runtime, what = self._open(), f"{step}_window({', '.join(map(hex, where))})"
        if None in (runtime.pto2_open_window, runtime.pto2_close_window):
            why = "the devices of this runtime share no memory: it cannot open and close windows"
            raise self._error(ChipStatus.STATE, what, why)
        self._check(getattr(runtime, f"pto2_{step}_window")(*where), what)

    # ------------------------------------------------------------ communicators
    def __getattr__(self, name: str) -> Any:
        """Return `comm_init` or another method of `Communicators`, which is an extra."""
        if not name.startswith("comm_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._open()
        if self._comms is None:
            self._comms = lazy.load("communicators").Communicators(self)
        return getattr(self._comms, name)

    @staticmethod
    def _host(where: Any, size: int | None, what: str, writable: bool) -> tuple[Any, int, int]:
        if size is not None:
            whole("size", size, 0, (1 << 63) - 1)
        if isinstance(where, int):
            if size is None:
                raise ValueError(f"{what} is an address: say how many bytes, size=…")
            return None, whole(what, where, 0, (1 << 64) - 1), size
        held, address, room = _address(where, what, writable)
        if size is not None and size > room:
            raise ValueError(f"{what} has {room} bytes; {size} do not fit")
        return held, address, room if size is None else size

    def __repr__(self) -> str:
        state = "open" if self.initialized else "closed"
        return f"<ChipWorker {self.device_id}, {state}, {self.runtime}>"


def _wrong_counts(view: int, capacity: int) -> str:
    """Say what is wrong with the counts of arguments that do not fit."""
    tensors, scalars = 0, 0
    if view and capacity >= _COUNTS.size:
        tensors, scalars = _COUNTS.unpack(ctypes.string_at(view, _COUNTS.size))
    return (
        f"arguments of {tensors} tensors and {scalars} scalars in {capacity} bytes: at most "
        f"{L.CHIP_MAX_TENSOR_ARGS} and {L.CHIP_MAX_SCALAR_ARGS} are allowed, and 8 + 40 * tensors + 8 * "
        "scalars bytes must be there"
    )


def _closed() -> ChipError:
    return ChipError(
        "this ChipWorker is not open: call init() first, in this process", ChipStatus.CLOSED
    )


def _never_opened(*_: object) -> int:
    raise _closed()


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")
