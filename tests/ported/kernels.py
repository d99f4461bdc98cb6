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
_LAUNCH = r"""
#include "simpler_kernel.h"

int32_t entry(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, 3, 0, 0);
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


_EXPERTS = r"""
#include "simpler_domain.h"

/* tensors: tokens, results (host), windows: inbox, experts, outbox; route (host); scalars: device_ctx,
 * tokens of a rank, width. Expert e is on rank e % size, and multiplies by e + 1. */
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerDomain *domain = simpler_domain(args->scalars[0]);
    const uint64_t tokens = args->scalars[1], width = args->scalars[2], row = width * sizeof(float);
    const float *x = (const float *)args->tensors[0].data;
    float *y = (float *)args->tensors[1].data, *inbox = (float *)args->tensors[2].data;
    int32_t *experts = (int32_t *)args->tensors[3].data;
    float *outbox = (float *)args->tensors[4].data;
    const int32_t *route = (const int32_t *)args->tensors[5].data;
    const uint32_t rank = simpler_domain_rank(domain), size = simpler_domain_size(domain);
    int32_t status;
    for (uint64_t t = 0; t < tokens; t++) { /* dispatch */
        const uint32_t there = (uint32_t)route[t] % size;
        const uint64_t at = rank * tokens + t;
        const int32_t expert = route[t] + 1;
        if ((status = simpler_domain_put(domain, there, inbox + at * width, x + t * width, row)) != 0 ||
            (status = simpler_domain_put(domain, there, experts + at, &expert, sizeof expert)) != 0)
            return status;
    }
    if ((status = simpler_domain_barrier(domain, 0)) != 0)
        return status;
    for (uint64_t at = 0; at < size * tokens; at++) { /* what has come, and back */
        float *token = inbox + at * width;
        if (experts[at] == 0)
            continue;
        for (uint64_t i = 0; i < width; i++)
            token[i] *= (float)experts[at];
        const uint32_t home = (uint32_t)(at / tokens);
        if ((status = simpler_domain_put(domain, home, outbox + at % tokens * width, token, row)) != 0)
            return status;
    }
    if ((status = simpler_domain_barrier(domain, 0)) != 0)
        return status;
    memcpy(y, outbox, tokens * row);
    return 0;
}
"""
_FEED_FORWARD = r"""
#include "simpler_domain.h"

/* tensors: x, columns of the first weights, rows of the second, y (host), window: partial sums;
 * scalars: device_ctx, rows of x, width, hidden units of a rank */
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerDomain *domain = simpler_domain(args->scalars[0]);
    const uint64_t rows = args->scalars[1], width = args->scalars[2], hidden = args->scalars[3];
    const float *x = (const float *)args->tensors[0].data, *w1 = (const float *)args->tensors[1].data;
    const float *w2 = (const float *)args->tensors[2].data;
    float *y = (float *)args->tensors[3].data, *partial = (float *)args->tensors[4].data;
    int32_t status;
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t h = 0; h < hidden; h++) {
            float unit = 0;
            for (uint64_t i = 0; i < width; i++)
                unit += x[r * width + i] * w1[i * hidden + h];
            for (uint64_t i = 0; unit > 0 && i < width; i++)
                partial[r * width + i] += unit * w2[h * width + i];
        }
    if ((status = simpler_domain_barrier(domain, 0)) != 0)
        return status;
    for (uint32_t rank = 0; rank < simpler_domain_size(domain); rank++) {
        const float *theirs = simpler_domain_peer(domain, rank, partial, rows * width * sizeof *y);
        for (uint64_t i = 0; i < rows * width; i++)
            y[i] = (rank == 0 ? 0 : y[i]) + theirs[i];
    }
    return 0;
}
"""


def _one_kernel(source, signature):
    return ChipCallable.from_kernel(
        CoreCallable.build(signature=signature, binary=compile_kernel(source))
    )


def build_note_sizes():
    """Return the chip callable that writes the first ring's sizes, as it was asked for."""
    return _one_kernel(_NOTE_SIZES, [D.INOUT])


def build_all_reduce():
    """Return the chip callable of the sum over all ranks of a domain."""
    return _one_kernel(_ALL_REDUCE, [D.IN, D.OUT, D.INOUT])


def build_experts():
    """Return the chip callable that sends tokens to the ranks of their experts, and back."""
    return _one_kernel(_EXPERTS, [D.IN, D.OUT, D.INOUT, D.INOUT, D.INOUT, D.IN])


def build_feed_forward():
    """Return the chip callable of a rank's part of a layer, and of the sum over all ranks."""
    return _one_kernel(_FEED_FORWARD, [D.IN, D.IN, D.IN, D.OUT, D.INOUT])


def build_vector_add():
    """Return the chip callable of c = a + b."""
    signature = [D.IN, D.IN, D.OUT]
    core = CoreCallable.build(signature=signature, binary=compile_kernel(_ADD))
    return ChipCallable.build(
        signature=signature,
        func_name="entry",
        binary=compile_kernel(_LAUNCH),
        children=[(0, core)],
    )
