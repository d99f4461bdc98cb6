"""CHIP-ARGS: what a run accepts."""

import ctypes
import struct

import numpy as np
import pytest

from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipStatus,
    ChipWorker,
    CoreCallable,
    compile_kernel,
)
from simpler_ref.task_interface import ArgDirection as D
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType, TaskArgs
from tests import chip_kernels as K
from tests.chip_kernels import host_args, numbers

from .conftest import refused


@pytest.mark.spec("CHIP-ARGS-1")
@pytest.mark.parametrize(
    ("counts", "capacity"),
    [
        *(((-1, 0), 100), ((0, -1), 100), ((1, 0), 47), ((129, 0), 9999), ((0, 129), 9999)),
        *(((0, 0), 7), ((2**31 - 1, 2**31 - 1), 100), ((0, 0), -1), ((128, 128), 8 + 128 * 48 - 1)),
    ],
)
def test_a_view_that_walks_out_of_its_bounds_is_refused_with_both_counts(adder, counts, capacity):
    view = ctypes.create_string_buffer(struct.pack("<ii", *counts), 16384)
    with refused(ChipStatus.VIEW, rf" in {capacity} bytes") as error:
        adder.run(0, ctypes.addressof(view), capacity, CallConfig().to_bytes())
    if capacity >= 8:
        assert f"{counts[0]} tensors and {counts[1]} scalars" in str(error.value)


@pytest.mark.spec("CHIP-ARGS-1")
def test_a_view_in_any_memory_is_run_by_address_or_as_a_buffer(adder):
    x, y = numbers(10)
    out = np.zeros(10, np.float32)
    wires = [ContinuousTensor.make(a.ctypes.data, a.shape, a.dtype)._wire for a in (x, y, out)]
    view = struct.pack("<ii", 3, 0) + b"".join(wires)
    config = CallConfig().to_bytes()
    adder.run(0, view, config=config)
    assert np.array_equal(out, x + y)
    held, held_config = ctypes.create_string_buffer(view), ctypes.create_string_buffer(config)
    out[...] = 0
    adder.run(0, ctypes.addressof(held), len(view), ctypes.addressof(held_config))
    assert np.array_equal(out, x + y)
    adder.run(0, bytearray(view), len(view), config)


@pytest.mark.spec("CHIP-ARGS-2")
def test_arguments_that_do_not_fit_the_signature_are_refused(adder):
    x, y = numbers(4)
    for args in (host_args(x, y), host_args(x, y, x, y)):
        with refused(ChipStatus.ARGS, "takes 3 tensors and up to 128 scalars by its signature"):
            adder.run_args(0, args)
    fixed = CoreCallable.build([D.INOUT, D.SCALAR], K.mark_core().binary, name="fixed")
    adder.prepare(1, ChipCallable.from_kernel(fixed))
    for scalars in ((), (1, 2)):
        with refused(ChipStatus.ARGS, f"takes 1 tensors and 1 scalars .*got 1 and {len(scalars)}"):
            adder.run_args(1, host_args(x, scalars=scalars))


NOTES_SCALARS = """
#include "simpler_kernel.h"
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    int64_t *out = (int64_t *)args->tensors[0].data;
    if (args->block_idx == 0)
        for (int32_t i = 0; i < args->scalar_count; i++)
            out[i] = (int64_t)args->scalars[i];
    return 0;
}
"""


NEGATIVE = """
#include "simpler_kernel.h"
int32_t go(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, 1, args->scalars_, -1);
}
"""


@pytest.mark.spec("CHIP-ARGS-6")
def test_without_scalars_or_all_in_a_signature_a_launch_takes_up_to_32_scalars_and_16_tensors(chip):
    core = CoreCallable.build([D.INOUT], compile_kernel(NOTES_SCALARS), name="notes")
    adds = CoreCallable.build((), K.add_core().binary)
    any_tensors = NEGATIVE.replace("1, args->scalars_, -1", "args->tensor_count_, 0, 0")
    for slot, (source, one, signature) in enumerate(
        (
            (NEGATIVE, core, [D.INOUT]),
            (any_tensors, adds, [D.IN, D.IN, D.OUT]),
            (any_tensors, adds, [D.IN] * 17),
        )
    ):
        chip.prepare(slot, ChipCallable.build(signature, "go", compile_kernel(source), [(0, one)]))
    chip.prepare(3, ChipCallable.from_kernel(core))
    out, (x, y) = np.zeros(32, np.int64), numbers(8)
    words = "1 tensors and 33 scalars; by its signature it takes 1 tensors and up to 32 scalars"
    with refused(ChipStatus.ARGS, words):
        chip.run_args(3, host_args(out, scalars=range(33)))
    with refused(ChipStatus.ARGS, "1 tensors and -1 scalars"):
        chip.run_args(0, host_args(out))
    with refused(ChipStatus.ARGS, "17 tensors and 0 scalars; a kernel takes at most 16 and 32"):
        chip.run_args(2, host_args(*[x] * 17))
    for count in (0, 1, 32):
        chip.run_args(3, host_args(out, scalars=range(1, count + 1)))
        assert out.tolist() == [*range(1, count + 1)] + [0] * (32 - count)
    chip.run_args(1, host_args(x, y, x))
    assert np.array_equal(x, numbers(8)[0] + y)


@pytest.mark.spec("CHIP-ARGS-3")
def test_tensors_that_make_no_sense_are_refused(adder):
    good = ContinuousTensor.make(0x1000, (1,), DataType.FLOAT32)._wire
    for at, value in ((28, 6), (32, 12), (32, 255)):
        bad = good[:at] + bytes([value]) + good[at + 1 :]
        with refused(ChipStatus.ARGS, "dimensions and element type"):
            adder.run(0, struct.pack("<ii", 3, 0) + bad * 3, config=CallConfig().to_bytes())
    big = struct.pack("<Q5IIBB6x", 0x1000, *[2**32 - 1] * 5, 5, 0, 0)
    with pytest.raises(ChipError, match="does not fit an address space"):
        adder.run(0, struct.pack("<ii", 3, 0) + big * 3, config=CallConfig().to_bytes())


@pytest.mark.spec("CHIP-ARGS-4")
def test_knobs_out_of_range_and_values_that_cannot_be_are_refused(adder):
    x, y = numbers(4)
    for fields, words in (
        ({"block_dim": 49}, "block_dim is 49; this chip has 48 cores"),
        ({"aicpu_thread_num": 0}, "aicpu_thread_num is 0; give 1 to 64"),
        ({"aicpu_thread_num": 65}, "aicpu_thread_num is 65"),
        ({"enable_pmu": 3, "output_prefix": "x"}, "enable_pmu is 3; it can be 0, 1 .arithmetic."),
    ):
        with refused(ChipStatus.CONFIG, words):
            adder.run_args(0, host_args(x, y, x), CallConfig(**fields))
    negative = struct.pack("<7i1024x", -1, 3, 0, 0, 0, 0, 0)
    for config, words in ((negative, "block_dim is -1"), (0, "configuration is missing")):
        with pytest.raises(ChipError, match=words):
            adder.run(0, bytes(8), config=config)
    for kind, call in (
        *((ValueError, lambda: adder.malloc(0)), (TypeError, lambda: adder.malloc(1.5))),
        *((ValueError, lambda: adder.free(-1)), (ValueError, lambda: adder.copy_to(0, 1))),
        (ValueError, lambda: adder.copy_to(0, b"abc", 4)),
        (ValueError, lambda: adder.copy_from(b"abc", 0)),
        (TypeError, lambda: adder.prepare("0", b"")),
        (ValueError, lambda: adder.run(0, bytes(8), 8, b"short")),
        *((ValueError, lambda: ChipWorker(-1)), (TypeError, lambda: ChipWorker("0"))),
        (TypeError, lambda: adder.run(0, bytes(8), 8, None)),
        (TypeError, lambda: adder.run_args(0, TaskArgs(), 3)),
    ):
        with pytest.raises(kind):
            call()
