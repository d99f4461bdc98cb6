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
def test_the_chip_finds_counts_tensors_and_scalars_as_submitted_unless_it_takes_fewer(mode):
    with Worker(3, device_ids=[0], child_mode=mode) as w:
        at = w.share(np.zeros(256, np.uint8)).ctypes.data
        good, one_each = w.register(orchestration("nothing")), w.register(report(1, 1))

        def fails(handle, tensors, scalars, words):
            made = [ContinuousTensor.make(at, (i + 1,), DataType.UINT8) for i in range(tensors)]
            args = make_args(*[(one, T.INPUT) for one in made], scalars=scalars)
            with pytest.raises(TaskError, match=words):
                w.run(lambda orch, *_: orch.submit_next_level(handle, args))
            w.run(lambda orch, *_: orch.submit_next_level(good))

        for tensors, scalars in ((0, 0), (2, 3), (128, 128), (1, 128)):
            numbers = [2**64 - 1 - i for i in range(scalars)]
            first, last = (numbers[0], numbers[-1]) if numbers else (0, 0)
            words = f"{tensors} {scalars} {first} {last} {tensors}"
            fails(w.register(report(tensors, scalars)), tensors, numbers, words)
        for tensors, scalars in ((129, 0), (0, 129), (200, 300)):
            fails(one_each, tensors, range(scalars), str(tensors or scalars))
