"""FLOW-EDGE: the edge to the chip."""

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, compile_kernel
from simpler_ref.task_interface import ArgDirection as D
from tests.chip_kernels import orchestration
from tests.support import make_args

REPORT = """
#include "simpler_kernel.h"

/* Tell through the failure what was found: counts, the last scalar, a shape. */
int32_t report(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    static char words[200];
    int n = 0, s = args->scalar_count_, t = args->tensor_count_;
    const uint64_t numbers[] = {
        (uint64_t)t, (uint64_t)s, s ? args->scalars_[0] : 0, s ? args->scalars_[s - 1] : 0,
        t ? args->tensors_[t - 1].shapes[0] : 0,
    };
    for (int k = 0; k < 5; k++) {
        char digits[24];
        int d = 0;
        uint64_t v = numbers[k];
        do digits[d++] = (char)('0' + v % 10); while (v /= 10);
        while (d) words[n++] = digits[--d];
        words[n++] = ' ';
    }
    words[n] = 0;
    return device->fail(device, words);
}
"""


def report(tensors, scalars):
    signature = [D.IN] * tensors + [D.SCALAR] * scalars
    return ChipCallable.build(signature, "report", compile_kernel(REPORT), [])


@pytest.mark.spec("FLOW-EDGE-2")
def test_the_chip_finds_counts_tensors_and_scalars_as_submitted(mode):
    with Worker(3, device_ids=[0], child_mode=mode) as w:
        at = w.share(np.zeros(256, np.uint8)).ctypes.data
        for tensors, scalars in ((0, 0), (2, 3), (128, 128), (1, 128)):
            made = [ContinuousTensor.make(at, (i + 1,), DataType.UINT8) for i in range(tensors)]
            numbers = [2**64 - 1 - i for i in range(scalars)]
            args = make_args(*[(one, T.INPUT) for one in made], scalars=numbers)
            handle = w.register(report(tensors, scalars))
            first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
            words = f"{tensors} {scalars} {first} {last} {tensors}"
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_, h=handle, args=args: orch.submit_next_level(h, args))


@pytest.mark.spec("FLOW-EDGE-2")
def test_more_arguments_than_a_chip_takes_fail_the_task_with_the_numbers():
    with Worker(3, device_ids=[0]) as w:
        memory, handle = w.share(np.zeros(8, np.uint8)), w.register(report(1, 1))
        good = w.register(orchestration("nothing"))
        for tensors, scalars in ((129, 0), (0, 129), (200, 300)):
            args = make_args(*[(memory, T.INPUT)] * tensors, scalars=range(scalars))
            with pytest.raises(TaskError, match=str(tensors or scalars)):
                w.run(lambda orch, *_, args=args: orch.submit_next_level(handle, args))
            w.run(lambda orch, *_: orch.submit_next_level(good))
