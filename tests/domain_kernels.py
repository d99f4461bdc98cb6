"""Kernels of domains for tests: one in C that does as a scalar says, and the same in Python."""

from __future__ import annotations

import functools

from simpler_ref import CallConfig, TaskArgs
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    CoreCallable,
    InOut,
    Scalar,
    barrier,
    compile_kernel,
    core_kernel,
    domain_base,
    domain_rank,
    domain_size,
    get,
    notify,
    peer,
    put,
    wait,
)
from simpler_ref.task_interface import ArgDirection, CommBufferSpec, ContinuousTensor

D = ArgDirection

(LOOK, MEET, RING, PULL, WAIT, BARRIER, NOTE_BARRIER, FAIL, DIE, OUTSIDE, BEYOND, RETRY) = range(12)
TIMEOUT, BROKEN, OUT_OF_WINDOW, TWICE = -1300, -1301, -1302, -1303

IN_C = """
#define _GNU_SOURCE
#include <signal.h>
#include "simpler_domain.h"

enum { LOOK, MEET, RING, PULL, WAIT, BARRIER, NOTE_BARRIER, FAIL, DIE, OUTSIDE, BEYOND, RETRY };

/* tensors: out (host), data and signals (window); scalars: what, device_ctx, n */
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerDomain *domain = simpler_domain(args->scalars[1]);
    const uint64_t n = args->scalars[2];
    int64_t *out = (int64_t *)args->tensors[0].data, *data = (int64_t *)args->tensors[1].data;
    int32_t *signals = (int32_t *)args->tensors[2].data;
    const uint32_t rank = simpler_domain_rank(domain), size = simpler_domain_size(domain);
    const uint32_t next = (rank + 1) % size;
    int32_t status;
    switch (args->scalars[0]) {
    case LOOK:
        out[0] = rank, out[1] = size, out[2] = (int64_t)domain->window_size;
        for (uint32_t r = 0; r <= size; r++)
            out[3 + r] = (int64_t)simpler_domain_base(domain, r);
        return 0;
    case MEET: /* everyone adds what all others have */
        for (int i = 0; i < 4; i++)
            data[i] += 10 * rank;
        if ((status = simpler_domain_barrier(domain, 0)) != 0)
            return status;
        for (uint32_t r = 0; r < size; r++) {
            const int64_t *theirs = simpler_domain_peer(domain, r, data, 32);
            for (int i = 0; i < 4; i++)
                out[i] += theirs[i];
        }
        return 0;
    case RING: /* n times around: what the last rank sent, plus one */
        for (uint64_t round = 0; round < n; round++) {
            const int32_t sent = (int32_t)(round + (rank != 0));
            if (sent != 0 && (status = simpler_domain_wait(domain, signals, sent, 0)) != 0)
                return status;
            out[0] = data[0] + 1;
            if ((status = simpler_domain_put(domain, next, data, out, 8)) != 0 ||
                (status = simpler_domain_notify(domain, next, signals, 1)) != 0)
                return status;
        }
        return 0;
    case PULL: /* the next rank's data */
        data[1] = 100 + rank;
        if ((status = simpler_domain_barrier(domain, 0)) != 0)
            return status;
        return simpler_domain_get(domain, next, out, data, 16);
    case WAIT: return simpler_domain_wait(domain, signals, 1, n);
    case BARRIER: return simpler_domain_barrier(domain, n);
    case NOTE_BARRIER: /* the others know that it runs, and the host sees how the wait ended */
        for (uint32_t r = 0; r < size; r++)
            simpler_domain_notify(domain, r, signals, 1);
        data[0] = simpler_domain_barrier(domain, 0);
        return 0;
    case FAIL: /* when n others run */
    case DIE:
        if ((status = simpler_domain_wait(domain, signals, (int32_t)n, 0)) != 0)
            return status;
        if (args->scalars[0] == DIE)
            raise(SIGKILL);
        return 77;
    case OUTSIDE:
        out[0] = simpler_domain_put(domain, size, data, out, 8);
        out[1] = simpler_domain_put(domain, next, data, out, domain->window_size + 1);
        out[2] = simpler_domain_get(domain, next, out, out, 8);
        out[3] = simpler_domain_notify(domain, size, signals, 1);
        out[4] = simpler_domain_notify(domain, next, (int32_t *)out, 1);
        out[5] = simpler_domain_wait(domain, (int32_t *)out, 1, n);
        out[6] = simpler_domain_peer(domain, next, data - 64, 8) == NULL;
        return 0;
    case BEYOND: ((volatile char *)simpler_domain_base(domain, next))[domain->window_size] = 1; return 0;
    case RETRY: /* rank 0 gives up before the others come */
        if (rank == 0) {
            data[0] = simpler_domain_barrier(domain, 1);
            for (uint32_t r = 1; r < size; r++)
                simpler_domain_notify(domain, r, signals, 1);
        } else if ((status = simpler_domain_wait(domain, signals, 1, 0)) != 0) {
            return status;
        }
        for (int i = 0; i < 3; i++)
            if ((status = simpler_domain_barrier(domain, 0)) != 0)
                return status;
        out[0] = data[0];
        return 0;
    }
    return 0;
}
"""

SIGNATURE = [D.INOUT, D.INOUT, D.INOUT, D.SCALAR, D.SCALAR, D.SCALAR]
BUFFERS = [CommBufferSpec("data", "int64", 4), CommBufferSpec("signals", "int32", 4)]
ONE_BLOCK = CallConfig(block_dim=1)


@functools.cache
def in_c() -> ChipCallable:
    return ChipCallable.from_kernel(CoreCallable.build(SIGNATURE, compile_kernel(IN_C)))


@functools.cache
def in_python() -> ChipCallable:
    """Return a kernel in Python, which knows LOOK to PULL, WAIT, BARRIER and OUTSIDE."""
    i64, i32, number = InOut("int64"), InOut("int32"), Scalar("int64")

    @core_kernel(out=i64, data=i64, signals=i32, what=number, ctx=Scalar("uint64"), n=number)
    def kernel(out, data, signals, what, ctx, n):
        rank, size = domain_rank(ctx), domain_size(ctx)
        following = (rank + 1) % size
        if what == LOOK:
            out[0], out[1] = rank, size
            for r in range(size + 1):
                out[3 + r] = domain_base(ctx, r)
        elif what == MEET:
            for i in range(4):
                data[i] += 10 * rank
            status = barrier(ctx)
            if status != 0:
                return status
            for r in range(size):
                theirs = peer(ctx, r, data)
                for i in range(4):
                    out[i] += theirs[i]
        elif what == RING:
            for turn in range(n):
                status = wait(ctx, signals, 0, turn + (rank != 0))
                if status != 0:
                    return status
                out[0] = data[0] + 1
                status = put(ctx, following, data[:1], out[:1])
                if status != 0:
                    return status
                status = notify(ctx, following, signals, 0)
                if status != 0:
                    return status
        elif what == PULL:
            data[1] = 100 + rank
            status = barrier(ctx)
            if status != 0:
                return status
            return get(ctx, following, out[:2], data[:2])
        elif what == WAIT:
            return wait(ctx, signals, 0, 1, n)
        elif what == BARRIER:
            return barrier(ctx, n)
        elif what == OUTSIDE:
            out[0] = put(ctx, size, data[:1], out[:1])
            out[1] = put(ctx, following, data, out)  # longer than its place
            out[2] = get(ctx, following, out[:1], out[:1])
            out[3] = notify(ctx, size, signals, 0)
            out[4] = notify(ctx, following, signals, signals.size)
            out[5] = wait(ctx, signals, -1, 1, n)
            out[6] = 1
        return 0

    return ChipCallable.from_kernel(kernel)


def args_for(domain, chip, out, what, n=0) -> TaskArgs:
    """Return the arguments of the kernel on a chip."""
    context, args = domain[chip], TaskArgs()
    args.add_tensor(out, T.INOUT)
    for one in BUFFERS:
        at = context.buffer_ptrs[one.name]
        there = ContinuousTensor.make(at, (one.count,), one.dtype, child_memory=True)
        args.add_tensor(there, T.INOUT)
    for scalar in (what, context.device_ctx, n):
        args.add_scalar(scalar)
    return args
