"""The kernels of the ported programs, built for the simulated chip."""

from simpler_ref.native_chip import compile_kernel
from simpler_ref.task_interface import ArgDirection, ChipCallable, CoreCallable

D = ArgDirection
_ADD = r"""
#include "simpler_kernel.h"

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const float *a = (const float *)args->tensors[0].data, *b = (const float *)args->tensors[1].data;
    float *c = (float *)args->tensors[2].data;
    uint64_t i, end;
    simpler_share(args, simpler_elements(&args->tensors[2]), &i, &end);
    for (; i < end; i++)
        c[i] = a[i] + b[i];
    return 0;
}
"""
_NOTE_SIZES = r"""
#include "simpler_kernel.h"

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerRuntimeEnv *env = (const SimplerRuntimeEnv *)args->runtime_env;
    int64_t *out = (int64_t *)args->tensors[0].data;
    if (args->block_idx == 0) {
        out[0] = (int64_t)env->ring_task_window[0];
        out[1] = (int64_t)env->ring_heap[0];
        out[2] = (int64_t)env->ring_dep_pool[0];
    }
    return 0;
}
"""
_ALL_REDUCE = r"""
#include "simpler_domain.h"

/* tensors: x, sum (host), window; scalars: device_ctx */
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerDomain *domain = simpler_domain(args->scalars[0]);
    const float *x = (const float *)args->tensors[0].data;
    float *sum = (float *)args->tensors[1].data, *mine = (float *)args->tensors[2].data;
    const uint64_t n = simpler_elements(&args->tensors[0]);
    int32_t status;
    memcpy(mine, x, n * sizeof *x);
    if ((status = simpler_domain_barrier(domain, 0)) != 0)
        return status;
    memset(sum, 0, n * sizeof *sum);
    for (uint32_t rank = 0; rank < simpler_domain_size(domain); rank++) {
        const float *theirs = simpler_domain_peer(domain, rank, mine, n * sizeof *x);
        for (uint64_t i = 0; i < n; i++)
            sum[i] += theirs[i];
    }
    return 0;
}
"""


def _one_kernel(source, signature):
    core = CoreCallable.build(signature=signature, binary=compile_kernel(source))
    return ChipCallable.from_kernel(core)


def build_note_sizes():
    """Return the chip callable that writes the first ring's sizes, as it was asked for."""
    return _one_kernel(_NOTE_SIZES, [D.INOUT])


def build_all_reduce():
    """Return the chip callable of the sum over all ranks of a domain."""
    return _one_kernel(_ALL_REDUCE, [D.IN, D.OUT, D.INOUT])


def build_vector_add():
    """Return the chip callable of c = a + b."""
    return _one_kernel(_ADD, [D.IN, D.IN, D.OUT])
