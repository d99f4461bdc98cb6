"""Whatever the bytes: the C parts refuse them, or do what they say; `test_sanitized.py` runs this too.

Addresses are believed, so those of tensors are in a piece of memory with nothing around it, or where
no memory can be. All else is damaged freely.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import shutil
import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from simpler_ref.native_chip import ChipCallable, ChipError, ChipStatus, ChipWorker, compile_kernel
from simpler_ref.native_chip.abi import INCLUDE_DIR
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType

from .. import chip_kernels as K
from .decoders import (
    CHIP,
    NUMBERS,
    REFUSED,
    Target,
    attempt,
    edited,
    numbers,
    run_fixed_and_new,
)

D = K.D
ROOM = 1 << 16
DEVICE = 1 << 26
"""Memory of the chip: no tensor that is copied has more."""
GUARD = 2 * DEVICE
"""So that a copy which leaves its place ends where nothing is."""


@functools.cache
def memory() -> SimpleNamespace:
    """Return the memory of all tensors here: bytes without neighbours, and where they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, *[ctypes.c_size_t] * 5]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    start = libc.mmap(None, 2 * GUARD + ROOM, 0, flags, (1 << 64) - 1, 0)
    assert start != (1 << 64) - 1
    at = start + GUARD
    assert libc.mmap(at, ROOM, 3, flags | 0x10, (1 << 64) - 1, 0) == at  # MAP_FIXED
    return SimpleNamespace(at=at, bytes=(ctypes.c_char * ROOM).from_address(at))


@functools.cache
def chip() -> ChipWorker:
    """Return a chip with a callable in slot 0 that adds, and one in 1 that does nothing."""
    made = ChipWorker()
    made.init()
    made.prepare(0, ChipCallable.from_kernel(K.add_core()))
    made.prepare(1, K.orchestration("nothing", [D.INOUT, D.IN, D.OUT, D.SCALAR, D.SCALAR]))
    return made


# ---------------------------------------------------------------- callables
@functools.cache
def loadable() -> bytes:
    """Return the blob of a callable that a chip can load."""
    parts = [(0, K.add_core()), (3, K.add_core())]
    return ChipCallable.build(K.ADD, "nothing", K.orchestrations(), parts).to_bytes()


@st.composite
def blobs(draw):
    """Draw a blob; one whose binaries can be loaded is damaged only where no machine code is."""
    if draw(st.booleans()):
        return draw(edited(st.just(CHIP)))
    raw = loadable()
    binary, core = K.orchestrations(), K.add_core().binary
    parts, at = [], 0
    for one in (binary, core, core):
        start = raw.index(one, at)
        parts += [raw[at:start], one]
        at = start + len(one)
    parts.append(raw[at:])
    spot = draw(st.sampled_from((0, 2, 4)))
    parts[spot] = draw(edited(st.just(parts[spot]), 2))
    return b"".join(parts)


def check_prepare(raw):
    """A chip takes the blobs that Python takes, and refuses the others."""
    here = attempt(lambda: ChipCallable.from_bytes(raw), ValueError)
    try:
        chip().prepare(7, raw)
    except ChipError as error:
        if not raw:
            assert error.code == ChipStatus.BLOB
        elif here is REFUSED:
            assert error.code == ChipStatus.BLOB, error
        else:
            assert error.code == ChipStatus.LOAD, error
    else:
        chip().unregister(7)
        assert here is not REFUSED
    with_nothing = attempt(lambda: chip().unregister(7), ChipError)
    assert with_nothing is REFUSED


# ---------------------------------------------------------------- shared objects
@functools.cache
def image_check() -> Any:
    """Return the check that a binary passes before the system's linker sees it."""
    source = INCLUDE_DIR.parent / "src"
    flags = [f"-I{source}", "-ldl", *os.environ.get("FUZZ_CFLAGS", "").split()]
    path = Path(tempfile.mkdtemp(), "image.so")
    path.write_bytes(compile_kernel('#include "shim.c"', extra_flags=flags))
    library = ctypes.CDLL(str(path))
    shutil.rmtree(path.parent)
    check = library.image_check
    check.restype = ctypes.c_bool
    check.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    return check


@st.composite
def objects(draw):
    """Draw a shared object with damage in its head, or with a part cut off."""
    raw = K.add_core().binary
    head = 64 + 56 * struct.unpack_from("<H", raw, 56)[0]
    cut = draw(st.sampled_from((len(raw), head, 64, 63, 0)) | st.integers(0, len(raw)))
    return (draw(edited(st.just(raw[:head]), 2)) + raw[head:])[:cut]


def check_image(raw):
    """Only what lies in the file whole passes: the linker believes the rest."""
    why = ctypes.create_string_buffer(256)
    good = image_check()(raw, len(raw), why, len(why))
    assert good == (not why.value)
    if good:
        start, size, count = *struct.unpack_from("<Q", raw, 32), *struct.unpack_from("<HH", raw, 54)
        assert (raw[:4], size) == (b"\x7fELF", 56)
        for at in range(start, start + size * count, size):
            offset, nbytes = struct.unpack_from("<Q16xQ", raw, at + 8)
            assert offset + nbytes <= len(raw)


# ---------------------------------------------------------------- runs
@st.composite
def addresses(draw):
    inside = st.integers(0, ROOM).map(lambda offset: memory().at + offset)
    around = st.sampled_from((-1, ROOM, ROOM + 1)).map(lambda offset: memory().at + offset)
    nowhere = st.sampled_from([0, 1, 4095, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
    return draw(st.one_of(inside, inside, around, nowhere))


@st.composite
def wires(draw):
    """Draw the 40 bytes of a tensor; only its address is one of those above."""
    shapes = draw(st.lists(st.integers(0, 64), max_size=3))
    rest = ContinuousTensor.make(0, shapes, draw(st.sampled_from(DataType)))._wire[8:]
    if draw(st.booleans()):
        rest = (draw(edited(st.just(rest), 2)) + bytes(32))[:32]
    return struct.pack("<Q", draw(addresses())) + rest


@st.composite
def views(draw):
    """Draw an args blob, its capacity, and a configuration."""
    slot = draw(st.sampled_from((0, 1, 1, 1)))
    tensors, scalars = 3, 2 * slot
    if draw(st.integers(0, 3)) == 0:
        tensors, scalars = draw(st.integers(0, 130)), draw(st.integers(0, 130))
    parts = [draw(wires()) for _ in range(min(tensors, 4))]
    parts += parts[-1:] * (tensors - len(parts))
    counts = struct.pack("<ii", tensors, scalars)
    if draw(st.integers(0, 3)) == 0:
        counts = (draw(edited(st.just(counts), 2)) + bytes(8))[:8]
    raw = counts + b"".join(parts) + draw(st.binary(min_size=8 * scalars, max_size=8 * scalars))
    if draw(st.integers(0, 3)) == 0:
        raw = raw[: draw(st.integers(0, len(raw)))]
    capacity = draw(st.one_of(st.none(), st.sampled_from(NUMBERS), st.integers(-1 << 63, 1 << 63)))
    knobs = [draw(st.one_of(st.just(0), numbers)) for _ in range(2)]
    config = struct.pack("<7i", *(_signed(k) for k in knobs), 0, 0, 0, 0, 0) + bytes(1024)
    return slot, raw, capacity, draw(st.one_of(st.just(CallConfig().to_bytes()), st.just(config)))


def _signed(value):
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


RUN_ERRORS = {ChipStatus[name] for name in ("VIEW", "ARGS", "CONFIG", "MEMORY", "ADDRESS")}
"""What a run on damaged arguments may end with; a kernel that adds also believes their shapes."""


def check_run(request):
    """A run is refused, or does what it should; it reads no byte after the end of its view."""
    slot, raw, capacity, config = request
    room = len(raw) if capacity is None else min(len(raw), capacity)
    tensors, scalars = struct.unpack_from("<ii", raw.ljust(8, b"\0"))
    fits = 0 <= tensors <= 128 and 0 <= scalars <= 128 and 8 + 40 * tensors + 8 * scalars <= room
    before = memory().bytes.raw
    try:
        chip().run(slot, raw, capacity, config)
    except ValueError:
        assert capacity is not None and not 0 <= capacity < 1 << 63
    except ChipError as error:
        assert (error.code == ChipStatus.VIEW) == (not fits), error
        if not fits and room >= 8:
            assert f"{tensors} tensors and {scalars} scalars in {room} bytes" in str(error)
        assert error.code in RUN_ERRORS or (slot, error.code) == (0, ChipStatus.FAULT), error
        if error.code != ChipStatus.ADDRESS:
            assert memory().bytes.raw == before
    else:
        assert fits
        assert (tensors, scalars) == (3, 2 * slot)
    free = chip().malloc(1)  # nothing of the run is left on the device
    chip().free(free)


CHIP_TARGETS = {
    "shared object": Target(objects(), check_image),
    "prepared blob": Target(blobs(), check_prepare),
    "run": Target(views(), check_run),
}


# ---------------------------------------------------------------- the tests
EXAMPLES = 40


@pytest.fixture(autouse=True, scope="module")
def _little_memory():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMPLER_SIM_DEVICE_MEMORY", str(DEVICE))
        yield
        chip().finalize()
        chip.cache_clear()


@pytest.mark.parametrize("name", CHIP_TARGETS)
def test_bytes_are_refused_or_do_what_they_say(name):
    run_fixed_and_new(CHIP_TARGETS[name], EXAMPLES)
