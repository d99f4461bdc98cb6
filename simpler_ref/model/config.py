"""The configuration of a call, and the sizes that it asks a chip's runtime for.

Rule     FLOW-CONFIG-1, FLOW-CONFIG-2, FLOW-CONFIG-3, FLOW-CONFIG-5, FLOW-CONFIG-7, FLOW-ENV-1
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, index
from typing import Any

from ..jit import layout as L
from ..jit.structures import CALL_CONFIG, OUTPUT_PREFIX_SIZE, RUNTIME_ENV

_MOST_DETAIL = 4
PMU_EVENTS = {
    1: "arithmetic",
    2: "pipes",
    4: "memory",
    5: "memory_l0",
    6: "resource_conflicts",
    7: "memory_ub",
    8: "l2_cache",
}
"""What `CallConfig.enable_pmu` can name."""


_SIZES = tuple(RUNTIME_ENV.offsets)
_LAYOUT = struct.Struct(RUNTIME_ENV.format)
RUNTIME_ENV_SIZE = _LAYOUT.size


@dataclass(eq=False, slots=True)
class RuntimeEnv:
    """Sizes of the rings of a chip's runtime; 0 leaves a size to the runtime.

    Each is a number, for all rings, or a number for each of the four.
    """

    ring_task_window: Any = 0
    """Tasks that may be alive, a power of two."""
    ring_heap: Any = 0
    """Bytes of the heap."""
    ring_dep_pool: Any = 0
    """Dependencies that may be noted."""

    def validate(self) -> None:
        """Check every field.

        Raises ValueError for a size that no ring can have, or not one number for each of four rings.
        """
        for name in _SIZES:
            _sizes(name, getattr(self, name))

    def to_bytes(self) -> bytes:
        """Return the sizes as they travel: each for four rings, `RUNTIME_ENV_SIZE` bytes."""
        sizes = [size for name in _SIZES for size in _sizes(name, getattr(self, name))]
        return _LAYOUT.pack(*sizes)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RuntimeEnv:
        """Read what `to_bytes` made; a size that all rings have is one number."""
        found = _LAYOUT.unpack(raw)
        rings = L.MAX_RING_DEPTH
        parts = [found[at : at + rings] for at in range(0, len(found), rings)]
        return cls(*(part[0] if len(set(part)) == 1 else part for part in parts))

    def __bool__(self) -> bool:
        """Say whether it asks for anything."""
        return any(getattr(self, name) for name in _SIZES) and any(self.to_bytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RuntimeEnv) and self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]


_RANGES = {
    "ring_task_window": (4, 1 << 30, "a power of two from 4 to 2**30"),
    "ring_heap": (1024, (1 << 63) - 1, "a number from 1024 to 2**63 - 1"),
    "ring_dep_pool": (4, (1 << 31) - 1, "a number from 4 to 2**31 - 1"),
}
"""What sizes can be, beside 0."""


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    least, most, text = _RANGES[name]
    each = tuple(value) if isinstance(value, (list, tuple)) else (value,) * L.MAX_RING_DEPTH
    try:
        sizes = tuple(index(one) for one in each)
    except TypeError:
        sizes = (-1,)
    fits = [one == 0 or least <= one <= most for one in sizes]
    if name == "ring_task_window":
        fits += [one & one - 1 == 0 for one in sizes]
    if len(sizes) != L.MAX_RING_DEPTH or not all(fits):
        raise ValueError(
            f"RuntimeEnv.{name} is {value!r}; give {text}, 0 for the runtime's own size, or one for each "
            f"of the {L.MAX_RING_DEPTH} rings"
        )
    return sizes


def _level(value: Any) -> Any:
    return _MOST_DETAIL if value is True else value


def _flag(value: Any) -> Any:
    return bool(value) if type(value) is int and value in (0, 1) else value


def _read_back_by(convert: Callable[[Any], Any], name: str, about: str) -> Any:
    slot = f"_{name}"

    def write(config: CallConfig, value: Any) -> None:
        setattr(config, slot, convert(value))

    return property(attrgetter(slot), write, doc=about)


_CONVERTED = ("enable_l2_swimlane", "enable_dep_gen", "enable_scope_stats")


class CallConfig:
    """Execution knobs of a task, the same at every level; 1052 bytes on the wire.

    Attributes
    ----------
    block_dim : int
        Cores a chip callable runs on; 0 lets the runtime choose.
    aicpu_thread_num : int
        Threads that feed them.
    enable_l2_swimlane : int
        0 (off) … 4 (full); True stands for 4.
    enable_dump_tensor, enable_pmu : int
    enable_dep_gen, enable_scope_stats : bool
        Diagnostics; any of them needs `output_prefix`.
    output_prefix : str
        Where diagnostics write, at most 1023 bytes.
    runtime_env : RuntimeEnv
        Sizes for the chip's runtime; they travel beside the 1052 bytes.
    """

    _LAYOUT = struct.Struct(CALL_CONFIG.format)
    _NAMES = tuple(CALL_CONFIG.offsets)
    _FIELDS = _NAMES[:-1]
    """The numbers, that is all but `output_prefix`."""
    __slots__ = (
        *(f"_{name}" if name in _CONVERTED else name for name in CALL_CONFIG.offsets),
        "_runtime_env",
    )

    block_dim: int
    aicpu_thread_num: int
    enable_l2_swimlane: int = _read_back_by(_level, "enable_l2_swimlane", "The level of detail.")
    enable_dump_tensor: int
    enable_pmu: int
    enable_dep_gen: bool = _read_back_by(_flag, "enable_dep_gen", "Whether the graph is written.")
    enable_scope_stats: bool = _read_back_by(
        _flag, "enable_scope_stats", "Whether the use of rings is written."
    )
    output_prefix: str
    _runtime_env: RuntimeEnv | None

    def __init__(self, **fields: Any) -> None:
        # one by one: each run makes one
        self.block_dim = self._enable_l2_swimlane = self.enable_dump_tensor = self.enable_pmu = 0
        self._enable_dep_gen = self._enable_scope_stats = False
        self.aicpu_thread_num = 3
        self.output_prefix = ""
        self._runtime_env = None
        for name, value in fields.items():
            if name not in self._NAMES and name != "runtime_env":
                known = ", ".join((*self._NAMES, "runtime_env"))
                raise TypeError(f"CallConfig has no field {name!r}; there are {known}")
            setattr(self, name, value)

    @property
    def _flags_on(self) -> list[str]:
        return [name for name in self._FIELDS[2:] if getattr(self, name)]

    @property
    def runtime_env(self) -> RuntimeEnv:
        """The sizes for the chip's runtime."""
        if self._runtime_env is None:
            self._runtime_env = RuntimeEnv()
        return self._runtime_env

    @runtime_env.setter
    def runtime_env(self, env: RuntimeEnv | None) -> None:
        if env is not None and not isinstance(env, RuntimeEnv):
            raise TypeError(
                f"CallConfig.runtime_env must be a RuntimeEnv, got {type(env).__name__}"
            )
        self._runtime_env = env

    def validate(self) -> None:
        """Check every field.

        Raises ValueError for one out of range, or diagnostics without `output_prefix`.
        """
        for name in self._FIELDS:
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << 31:
                raise ValueError(f"CallConfig.{name} is {value!r}; give a non-negative 32-bit int")
        if self.enable_l2_swimlane > _MOST_DETAIL:
            raise ValueError(
                f"CallConfig.enable_l2_swimlane is {self.enable_l2_swimlane}; the levels are "
                f"0 … {_MOST_DETAIL}"
            )
        self._check_prefix()
        if self._runtime_env is not None:
            self._runtime_env.validate()
        on = self._flags_on
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
        if len(raw) >= OUTPUT_PREFIX_SIZE:
            raise ValueError(
                f"CallConfig.output_prefix is longer than {OUTPUT_PREFIX_SIZE - 1} bytes"
            )

    def to_bytes(self) -> bytes:
        """Return the wire form, `CALL_CONFIG_SIZE` bytes; ValueError as in `validate`."""
        self.validate()
        values = [getattr(self, name) for name in self._FIELDS]
        return self._LAYOUT.pack(*values, self.output_prefix.encode(errors="surrogateescape"))

    @classmethod
    def from_bytes(cls, raw: bytes) -> CallConfig:
        """Read the wire form.

        Raises ValueError if no CallConfig has these bytes, TypeError if they are no bytes.
        """
        if not isinstance(raw, (bytes, bytearray, memoryview)):
            raise TypeError(f"a CallConfig is read from bytes, got {type(raw).__name__}")
        if len(raw) != cls._LAYOUT.size:
            raise ValueError(f"a CallConfig has {cls._LAYOUT.size} bytes, these are {len(raw)}")
        *values, text = cls._LAYOUT.unpack(raw)
        prefix, _, rest = text.partition(b"\0")
        if rest.strip(b"\0"):
            raise ValueError("CallConfig.output_prefix does not end with its first NUL")
        made = cls.__new__(cls)
        made._runtime_env = None
        for name, value in zip(cls._FIELDS, values, strict=True):
            setattr(made, name, value)
        made.output_prefix = prefix.decode(errors="surrogateescape")
        made.validate()
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallConfig):
            return NotImplemented
        names = (*self._NAMES, "runtime_env")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]  # its fields can be changed

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._NAMES)
        env = f", runtime_env={self._runtime_env!r}" if self._runtime_env else ""
        return f"CallConfig({shown}{env})"


def read_config(wire: bytes, env: bytes) -> CallConfig:
    """Return a configuration from its 1052 bytes, and those of the `RuntimeEnv` beside them, if any."""
    config = CallConfig.from_bytes(wire)
    if any(env):
        config.runtime_env = RuntimeEnv.from_bytes(env)
    return config
