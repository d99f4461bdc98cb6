/* The functions of simpler_domain.h for compiled Python, which cannot inline them. Included once in each
 * shared object that needs them. */
#ifndef SIMPLER_DOMAIN_CALLS_H
#define SIMPLER_DOMAIN_CALLS_H

#include "simpler_domain.h"

#ifndef SIMPLER_CALL
#define SIMPLER_CALL
#endif

SIMPLER_CALL uint64_t simpler_call_rank(uint64_t ctx)
{
    return simpler_domain_rank(simpler_domain(ctx));
}

SIMPLER_CALL uint64_t simpler_call_size(uint64_t ctx)
{
    return simpler_domain_size(simpler_domain(ctx));
}

SIMPLER_CALL uint64_t simpler_call_base(uint64_t ctx, uint64_t rank)
{
    return rank < SIMPLER_DOMAIN_MAX_RANKS ? simpler_domain_base(simpler_domain(ctx), (uint32_t)rank) : 0;
}

SIMPLER_CALL uint64_t simpler_call_peer(uint64_t ctx, uint64_t rank, uint64_t mine, uint64_t bytes)
{
    const uint32_t which = rank < SIMPLER_DOMAIN_MAX_RANKS ? (uint32_t)rank : SIMPLER_DOMAIN_MAX_RANKS;
    return (uint64_t)(uintptr_t)simpler_domain_peer(simpler_domain(ctx), which, (void *)(uintptr_t)mine, bytes);
}

SIMPLER_CALL void simpler_call_copy(uint64_t to, uint64_t from, uint64_t bytes)
{
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
}

SIMPLER_CALL int32_t simpler_call_notify(uint64_t ctx, uint64_t rank, uint64_t signal, int64_t add)
{
    const uint32_t which = rank < SIMPLER_DOMAIN_MAX_RANKS ? (uint32_t)rank : SIMPLER_DOMAIN_MAX_RANKS;
    return simpler_domain_notify(simpler_domain(ctx), which, (int32_t *)(uintptr_t)signal, (int32_t)add);
}

SIMPLER_CALL int32_t simpler_call_wait(uint64_t ctx, uint64_t signal, int64_t value, uint64_t timeout_ns)
{
    return simpler_domain_wait(simpler_domain(ctx), (const int32_t *)(uintptr_t)signal, (int32_t)value,
                               timeout_ns);
}

SIMPLER_CALL int32_t simpler_call_barrier(uint64_t ctx, uint64_t timeout_ns)
{
    return simpler_domain_barrier(simpler_domain(ctx), timeout_ns);
}

#endif
