"""CHIP-LAYOUT: the structures between host, runtime and kernels."""

import ctypes
import re
import struct
import subprocess

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import CALL_CONFIG, RUNTIME_ENV
from simpler_ref.native_chip import ChipStatus, ChipStorageTaskArgs
from simpler_ref.native_chip.abi import INCLUDE_DIR, ContinuousTensorStorage, CoreArgsStorage
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
def test_the_headers_have_the_numbers_of_the_layout_and_the_enumerations():
    def values(prefix):
        return {n: int(v) for n, v in re.findall(rf"\b{prefix}(\w+) = (\d+)", HEADERS)}

    assert HEADER.read_text() == text(), "run python -m tests.layout_header"
    size, at = STRUCTS["SimplerContinuousTensor"]
    assert (size, at["dtype"]) == (L.TENSOR_WORDS * L.WORD, L.TENSOR_KIND * L.WORD)
    assert (at["data"], at["shapes"]) == (L.TENSOR_DATA * L.WORD, L.TENSOR_SHAPE * L.WORD)
    assert at["ndims"] == L.TENSOR_DIMS * L.WORD + 4
    assert CALL_CONFIG.size == L.CALL_CONFIG_SIZE == len(CallConfig().to_bytes())
    tensors, scalars = L.CHIP_MAX_TENSOR_ARGS, L.CHIP_MAX_SCALAR_ARGS
    assert ctypes.sizeof(ChipStorageTaskArgs) == 40 * tensors + 8 * scalars + 8 == 6152
    defined = {n: int(v) for n, v in re.findall(r"#define SIMPLER_(\w*MAX\w+) (\d+)", HEADERS)}
    assert defined.pop("MAX_DIMS") == L.CONTINUOUS_TENSOR_MAX_DIMS
    assert {n: v for n, v in defined.items() if "ARGS" in n} == {
        f"{of}_MAX_{what}_ARGS": getattr(L, f"{of}_MAX_{what}_ARGS")
        for of in ("CHIP", "CORE")
        for what in ("TENSOR", "SCALAR")
    }
    assert (L.CORE_MAX_TENSOR_ARGS, L.CORE_MAX_SCALAR_ARGS) == (16, 32)
    kinds = values("SIMPLER_")
    assert kinds.pop("DATA_TYPES") == len(DataType)
    assert kinds == {kind.name: kind for kind in (*DataType, *ArgDirection)}
    assert values("PTO2_E_") | values("SHIM_E_") == {one.name: one for one in ChipStatus if one}
    sizes = re.search(r"DTYPE_SIZES \{(.*)\}", HEADERS)[1].split(",")
    assert [int(size) for size in sizes] == [get_element_size(kind) for kind in DataType]
    domains = {"SimplerDomain": _Domain, "SimplerWaker": _Waker, "SimplerDomainShared": _Shared}
    asserted = {key: value for key, value in ASSERTED.items() if key[0] in domains}
    assert len(asserted) == 6
    for (name, field), value in asserted.items():
        kind = domains[name]
        assert value == (getattr(kind, field).offset if field else ctypes.sizeof(kind))


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
    """What it cannot take is refused and changes nothing."""
    args = ChipStorageTaskArgs()
    assert (len(args), args.tensor_count(), args.scalar_count()) == (0, 0, 0)
    tensors = [
        ContinuousTensor.make(0x1000 * (i + 1), (i + 1, 2), DataType.INT16, i == 1)
        for i in range(128)
    ]
    for tensor in tensors:
        args.add_tensor(tensor)
    with pytest.raises(ValueError, match="at most 128 tensors"):
        args.add_tensor(tensors[0])
    for value in (7, -1, 2.5, *range(125)):
        args.add_scalar(value)
    with pytest.raises(ValueError, match="at most 128 scalars"):
        args.add_scalar(1)
    with pytest.raises(RuntimeError, match="cannot add tensor after scalar"):
        args.add_tensor(tensors[0])
    for read in (args.tensor, args.scalar):
        for i in (-1, 128):
            with pytest.raises(IndexError, match="out of range"):
                read(i)
    assert (len(args), args.tensor_count(), args.scalar_count()) == (256, 128, 128)
    assert [args.tensor(i) for i in range(128)] == tensors
    assert [args.scalar(i) for i in range(3)] == [7, (1 << 64) - 1, scalar_to_uint64(2.5)]
    assert args.sizeof() == ChipStorageTaskArgs.sizeof() == 6152
    raw = ctypes.string_at(args.__ptr__(), args.sizeof())
    assert raw[:5120] == b"".join(tensor._wire for tensor in tensors)
    assert raw[5120:5128] == (7).to_bytes(8, "little")
    assert raw[6144:] == struct.pack("<ii", 128, 128)
    args.clear()
    assert len(args) == 0
    with pytest.raises(TypeError, match="ContinuousTensor, got int"):
        args.add_tensor(5)
    with pytest.raises(TypeError, match="elements of type float64, which DataType lacks"):
        args.add_tensor(ContinuousTensor.make(0x1000, (1,), "float64"))
