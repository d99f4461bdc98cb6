"""CHIP-LAYOUT: the structures between host, runtime and kernels."""

import ctypes
import re
import struct
import subprocess

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import CALL_CONFIG, RUNTIME_ENV
from simpler_ref.native_chip import ChipStatus, ChipStorageTaskArgs
from simpler_ref.native_chip.abi import (
    INCLUDE_DIR,
    ContinuousTensorStorage,
    CoreArgsStorage,
)
from simpler_ref.native_chip.domains import _Domain, _Shared, _Waker
from simpler_ref.task_interface import (
    ArgDirection,
    CallConfig,
    ContinuousTensor,
    DataType,
    get_element_size,
    scalar_to_uint64,
)
from tests.layout_header import HEADER, offsets, text

HEADERS = "".join(
    (INCLUDE_DIR / f"{name}.h").read_text()
    for name in ("simpler_layout", "simpler_l2", "simpler_kernel", "simpler_domain")
)

ASSERTED = {
    (struct, field): int(value)
    for struct, field, value in re.findall(
        r"ASSERT\((?:sizeof|offsetof)\((\w+)(?:, (\w+))?\) == (\d+)\)",
        HEADERS + "\n".join(offsets()),
    )
}


def of_ctypes(struct):
    """Return the size of a structure and the offsets of its fields."""
    fields = {name: getattr(struct, name).offset for name, *_ in struct._fields_}
    return ctypes.sizeof(struct), fields


STRUCTS = {
    "SimplerContinuousTensor": of_ctypes(ContinuousTensorStorage),
    "SimplerCallConfig": (CALL_CONFIG.size, CALL_CONFIG.offsets),
    "SimplerChipStorageTaskArgs": of_ctypes(ChipStorageTaskArgs),
    "SimplerCoreArgs": of_ctypes(CoreArgsStorage),
    "SimplerRuntimeEnv": (RUNTIME_ENV.size, RUNTIME_ENV.offsets),
}


@pytest.mark.spec("CHIP-LAYOUT-1")
@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_is_where_it_is_in_c(name):
    size, offsets = STRUCTS[name]
    there = {(name, ""): size} | {(name, field): at for field, at in offsets.items()}
    assert there == {key: value for key, value in ASSERTED.items() if key[0] == name}


@pytest.mark.spec("CHIP-LAYOUT-1")
def test_domains_are_laid_out_as_kernels_have_them():
    kinds = {"SimplerDomain": _Domain, "SimplerWaker": _Waker, "SimplerDomainShared": _Shared}
    asserted = {key: value for key, value in ASSERTED.items() if key[0] in kinds}
    assert len(asserted) == 6
    for (name, field), value in asserted.items():
        kind = kinds[name]
        assert value == (getattr(kind, field).offset if field else ctypes.sizeof(kind))


@pytest.mark.spec("CHIP-LAYOUT-1")
def test_the_header_has_the_numbers_of_the_layout():
    assert HEADER.read_text() == text(), "run python -m tests.layout_header"
    assert ASSERTED["SimplerContinuousTensor", ""] == L.TENSOR_WORDS * L.WORD
    assert ASSERTED["SimplerContinuousTensor", "data"] == L.TENSOR_DATA * L.WORD
    assert ASSERTED["SimplerContinuousTensor", "shapes"] == L.TENSOR_SHAPE * L.WORD
    assert ASSERTED["SimplerContinuousTensor", "ndims"] == L.TENSOR_DIMS * L.WORD + 4
    assert ASSERTED["SimplerContinuousTensor", "dtype"] == L.TENSOR_KIND * L.WORD
    assert ASSERTED["SimplerCallConfig", ""] == L.CALL_CONFIG_SIZE == len(CallConfig().to_bytes())
    tensors, scalars = L.CHIP_MAX_TENSOR_ARGS, L.CHIP_MAX_SCALAR_ARGS
    assert ctypes.sizeof(ChipStorageTaskArgs) == 40 * tensors + 8 * scalars + 8 == 6152
    assert (define("SIMPLER_CHIP_MAX_TENSOR_ARGS"), define("SIMPLER_CHIP_MAX_SCALAR_ARGS")) == (
        tensors,
        scalars,
    )
    assert define("SIMPLER_MAX_DIMS") == L.CONTINUOUS_TENSOR_MAX_DIMS
    assert define("SIMPLER_CORE_MAX_TENSOR_ARGS") == L.CORE_MAX_TENSOR_ARGS == 16
    assert define("SIMPLER_CORE_MAX_SCALAR_ARGS") == L.CORE_MAX_SCALAR_ARGS == 32


def define(name):
    return int(re.search(rf"#define {name} (\d+)", HEADERS)[1])


def values(prefix):
    return {name: int(value) for name, value in re.findall(rf"\b{prefix}(\w+) = (\d+)", HEADERS)}


@pytest.mark.spec("CHIP-LAYOUT-1")
def test_enumerations_agree():
    kinds = values("SIMPLER_")
    assert kinds.pop("DATA_TYPES") == len(DataType)
    assert kinds == {kind.name: kind for kind in (*DataType, *ArgDirection)}
    assert values("PTO2_E_") | values("SHIM_E_") == {one.name: one for one in ChipStatus if one}
    sizes = re.search(r"DTYPE_SIZES \{(.*)\}", HEADERS)[1].split(",")
    assert [int(size) for size in sizes] == [get_element_size(kind) for kind in DataType]


@pytest.mark.spec("CHIP-LAYOUT-1")
@pytest.mark.parametrize("flags", [("-std=c11",), ("-x", "c++", "-std=c++17")], ids=["C", "C++"])
def test_the_headers_compile_without_a_warning_and_have_these_offsets(tmp_path, flags):
    source = tmp_path / "header.c"
    source.write_text("\n".join(['#include "simpler_kernel.h"', *offsets(), ""]))
    strict = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-fsyntax-only"]
    done = subprocess.run(
        ["cc", *flags, *strict, f"-I{INCLUDE_DIR}", str(source)], capture_output=True, text=True
    )
    if "cc1plus" in done.stderr:
        pytest.skip("no C++ compiler here")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.spec("CHIP-LAYOUT-4")
def test_the_structure_of_arguments_is_a_container_at_an_address():
    args = ChipStorageTaskArgs()
    assert (len(args), args.tensor_count(), args.scalar_count()) == (0, 0, 0)
    tensors = [
        ContinuousTensor.make(0x1000 * (i + 1), (i + 1, 2), DataType.INT16, i == 1)
        for i in range(3)
    ]
    for tensor in tensors:
        args.add_tensor(tensor)
    for value in (7, -1, 2.5):
        args.add_scalar(value)
    assert (len(args), args.tensor_count(), args.scalar_count()) == (6, 3, 3)
    assert [args.tensor(i) for i in range(3)] == tensors
    assert [args.scalar(i) for i in range(3)] == [7, (1 << 64) - 1, scalar_to_uint64(2.5)]
    assert args.sizeof() == ChipStorageTaskArgs.sizeof() == 6152
    raw = ctypes.string_at(args.__ptr__(), args.sizeof())
    assert raw[:120] == b"".join(tensor._wire for tensor in tensors)
    assert raw[5120:5128] == (7).to_bytes(8, "little")
    assert raw[6144:] == struct.pack("<ii", 3, 3)
    args.clear()
    assert len(args) == 0


@pytest.mark.spec("CHIP-LAYOUT-4")
def test_what_the_container_cannot_take_is_refused_and_changes_nothing():
    args, tensor = ChipStorageTaskArgs(), ContinuousTensor.make(0x1000, (1,), DataType.INT8)
    for _ in range(128):
        args.add_tensor(tensor)
    with pytest.raises(ValueError, match="at most 128 tensors"):
        args.add_tensor(tensor)
    for i in range(128):
        args.add_scalar(i)
    with pytest.raises(ValueError, match="at most 128 scalars"):
        args.add_scalar(1)
    with pytest.raises(RuntimeError, match="cannot add tensor after scalar"):
        args.add_tensor(tensor)
    with pytest.raises(TypeError, match="ContinuousTensor, got int"):
        ChipStorageTaskArgs().add_tensor(5)
    with pytest.raises(TypeError, match="elements of type float64, which DataType lacks"):
        ChipStorageTaskArgs().add_tensor(ContinuousTensor.make(0x1000, (1,), "float64"))
    for i in (-1, 128):
        for read in (args.tensor, args.scalar):
            with pytest.raises(IndexError, match="out of range"):
                read(i)
    assert len(args) == 256
