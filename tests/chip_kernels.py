"""What the tests of chips share: kernels in C, and arguments over private arrays."""

from __future__ import annotations

import functools

import numpy as np

from simpler_ref.native_chip import ChipCallable, CoreCallable, compile_kernel
from simpler_ref.task_interface import ArgDirection, ContinuousTensor, TaskArgs

D = ArgDirection
ADD = [D.IN, D.IN, D.OUT]

KERNELS = """
#include "simpler_kernel.h"

enum { RETURN_CODE = 1, READ_AT, WRITE_AT, DIVIDE, ILLEGAL, OVERFLOW };

static volatile int sink;

static int32_t add(const SimplerCoreArgs *args)
{
    const float *x = (const float *)args->tensors[0].data, *y = (const float *)args->tensors[1].data;
    float *out = (float *)args->tensors[2].data;
    uint64_t i, end;
    simpler_share(args, simpler_elements(&args->tensors[2]), &i, &end);
    for (; i < end; i++)
        out[i] = x[i] + y[i];
    return 0;
}

__attribute__((noinline)) static int deep(volatile char *outer)
{
    volatile char inner[4096];
    inner[0] = outer[0];
    return deep(inner) + inner[0];
}

/* Every block adds 1 to its own place, so that each is seen to have run once. */
static int32_t mark(const SimplerCoreArgs *args)
{
    ((int32_t *)args->tensors[0].data)[args->block_idx] += 1;
    return 0;
}

/* Blocks that wait for each other, which is allowed with a thread for each. */
static int32_t meet(const SimplerCoreArgs *args)
{
    int32_t *here = (int32_t *)args->tensors[0].data;
    __atomic_fetch_add(here, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(here, __ATOMIC_SEQ_CST) < args->block_dim)
        continue;
    return 0;
}

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    volatile int zero = 0, one = 41;
    char start = 0;
#if WHAT == 0
    return add(args);
#elif WHAT == 1
    return mark(args);
#elif WHAT == 2
    return meet(args);
#else
    if (args->block_idx != args->block_dim - 1)
        return 0;
    switch (args->scalars[0]) {
    case RETURN_CODE: return (int32_t)args->scalars[1];
    case READ_AT: sink = *(volatile int *)args->scalars[1]; return 0;
    case WRITE_AT: *(volatile int *)args->scalars[1] = 7; return 0;
    case DIVIDE: sink = one / zero; return 0;
    case ILLEGAL: __builtin_trap();
    case OVERFLOW: return deep(&start);
    }
    return 0;
#endif
}
"""

RETURN_CODE, READ_AT, WRITE_AT, DIVIDE, ILLEGAL, OVERFLOW = range(1, 7)

ORCHESTRATIONS = """
#include "simpler_kernel.h"

int32_t nothing(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)device, (void)args;
    return 0;
}

int32_t returns_5(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)device, (void)args;
    return 5;
}

int32_t fails(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)args;
    return device->fail(device, "no luck today");
}

int32_t crashes(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)device, (void)args;
    *(volatile int *)16 = 1;
    return 0;
}

int32_t launches_unknown(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 99, 0, args->tensors_, args->tensor_count_, 0, 0);
}

int32_t launches_too_wide(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 1 << 20, args->tensors_, args->tensor_count_, 0, 0);
}

int32_t launches_with_less(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, args->tensor_count_ - 1, 0, 0);
}

/* The scalar is an address of the host's. */
int32_t launches_on_host(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    SimplerContinuousTensor tensors[3] = {args->tensors_[0], args->tensors_[1], args->tensors_[2]};
    tensors[1].data = args->scalars_[0];
    return device->launch(device, 0, 0, tensors, 3, 0, 0);
}

int32_t allocates_too_much(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)args;
    return device->alloc(device, 1ULL << 50) == 0 ? 0 : 77;
}

/* out = (x + y) + (x + y), through memory of the run. */
int32_t twice(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    SimplerContinuousTensor sum = args->tensors_[2];
    sum.data = device->alloc(device, 4 * simpler_elements(&sum));
    SimplerContinuousTensor first[3] = {args->tensors_[0], args->tensors_[1], sum};
    SimplerContinuousTensor second[3] = {sum, sum, args->tensors_[2]};
    if (device->launch(device, 0, 0, first, 3, 0, 0) || device->barrier(device))
        return 1;
    return device->launch(device, 0, 0, second, 3, 0, 0);
}

"""


@functools.cache
def orchestrations() -> bytes:
    return compile_kernel(ORCHESTRATIONS)


@functools.cache
def core(what, *signature) -> CoreCallable:
    return CoreCallable.build(signature, compile_kernel(KERNELS, extra_flags=[f"-DWHAT={what}"]))


add_core = functools.partial(core, 0, D.IN, D.IN, D.OUT)
mark_core = functools.partial(core, 1, D.INOUT)
meet_core = functools.partial(core, 2, D.INOUT)
bad_core = functools.partial(core, 3, D.SCALAR, D.SCALAR)


def orchestration(name, signature=(), children=()):
    return ChipCallable.build(signature, name, orchestrations(), children)


def host_args(*arrays, scalars=()):
    """Return arguments over arrays of this process, or tensors, in their order."""
    args = TaskArgs()
    for one in arrays:
        if isinstance(one, np.ndarray):
            one = ContinuousTensor.make(one.ctypes.data, one.shape, one.dtype)
        args.add_tensor(one)
    for scalar in scalars:
        args.add_scalar(scalar)
    return args


def numbers(count):
    """Return two arrays to add."""
    return np.arange(count, dtype=np.float32), np.full(count, 0.5, np.float32)
