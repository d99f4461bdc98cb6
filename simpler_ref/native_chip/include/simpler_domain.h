/* Communication domains: chips whose kernels read and write each other's windows.
 *
 * A domain has ranks, 0 to size - 1, each on a chip of its own. Every rank has a window of the same size, and
 * buffers begin at the same place in each. A kernel names memory of another rank by the address that the same
 * place has in its own window, together with the rank.
 *
 * What a rank has written before `simpler_domain_notify`, or before it arrives at a barrier, others see after
 * the wait that this ends. Waits have a deadline, and end at once when the domain is broken because a rank
 * has failed or died. Pass on what they return: it fails the run, with a message.
 *
 * Ranks that wait for each other must run at the same time. Within a rank one block of a launch may wait;
 * several may if block i waits only for what blocks 0 to i of other ranks do.
 *
 * Rule WM-DOMAIN-1, WM-DOMAIN-2, WM-DOMAIN-3, WM-DOMAIN-4, WM-DOMAIN-6, WM-DOMAIN-7, WM-DOMAIN-8, WM-DOMAIN-9, WM-DOMAIN-11
 */
#ifndef SIMPLER_DOMAIN_H
#define SIMPLER_DOMAIN_H

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "simpler_kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SIMPLER_DOMAIN_MAX_RANKS 64

/* What a rank waits on: it sleeps on `wakes` until somebody has changed what it waits for. */
typedef struct SimplerWaker {
    uint32_t wakes;
    uint32_t sleepers;
    uint32_t arrived; /* one more than the round of the barrier at which the rank has arrived last */
    uint32_t padding[13]; /* a cache line for each */
} SimplerWaker;

/* What the ranks of a domain share, besides the windows; native_chip/domains.py has the same, and lays it out. */
typedef struct SimplerDomainShared {
    uint32_t size;
    uint32_t broken; /* 0: intact; 1: `text` is being written; 2: it says why */
    char text[504];
    uint64_t barrier; /* rounds done << 32 | ranks that have arrived in this round */
    uint64_t padding[7];
    uint32_t chips[SIMPLER_DOMAIN_MAX_RANKS]; /* the chip of each rank */
    SimplerWaker wakers[SIMPLER_DOMAIN_MAX_RANKS];
    char name[128];
} SimplerDomainShared;

/* A domain as one rank sees it: `device_ctx` is the address of this. */
typedef struct SimplerDomain {
    uint32_t rank;
    uint32_t size;
    uint64_t window_size;
    uint64_t timeout_ns; /* of waits that name none */
    uint64_t shared;     /* address of a SimplerDomainShared */
    uint64_t windows[SIMPLER_DOMAIN_MAX_RANKS];
} SimplerDomain;

SIMPLER_STATIC_ASSERT(sizeof(SimplerDomain) == 544);
SIMPLER_STATIC_ASSERT(offsetof(SimplerDomain, windows) == 32);
SIMPLER_STATIC_ASSERT(sizeof(SimplerWaker) == 64);
SIMPLER_STATIC_ASSERT(offsetof(SimplerDomainShared, barrier) == 512);
SIMPLER_STATIC_ASSERT(offsetof(SimplerDomainShared, wakers) == 832);
SIMPLER_STATIC_ASSERT(offsetof(SimplerDomainShared, name) == 4928);

/* The domain that a scalar of a task stands for. */
static inline const SimplerDomain *simpler_domain(uint64_t device_ctx)
{
    return (const SimplerDomain *)(uintptr_t)device_ctx;
}

static inline uint32_t simpler_domain_rank(const SimplerDomain *domain)
{
    return domain->rank;
}

static inline uint32_t simpler_domain_size(const SimplerDomain *domain)
{
    return domain->size;
}

/* Where the window of a rank begins; 0 if there is no such rank. */
static inline uint64_t simpler_domain_base(const SimplerDomain *domain, uint32_t rank)
{
    return rank < domain->size ? domain->windows[rank] : 0;
}

/* The place in a rank's window that corresponds to `bytes` bytes at `mine` in the own one. NULL if there is
 * no such rank, or they are not inside the own window. */
static inline void *simpler_domain_peer(const SimplerDomain *domain, uint32_t rank, const void *mine,
                                        uint64_t bytes)
{
    const uint64_t offset = (uint64_t)(uintptr_t)mine - domain->windows[domain->rank];
    if (rank >= domain->size || offset > domain->window_size || bytes > domain->window_size - offset)
        return NULL;
    return (void *)(uintptr_t)(domain->windows[rank] + offset);
}

/* Copy `bytes` bytes from `from` to a rank's window: `to` is the place in the own one. Returns 0 or an error. */
static inline int32_t simpler_domain_put(const SimplerDomain *domain, uint32_t rank, void *to,
                                         const void *from, uint64_t bytes)
{
    void *there = simpler_domain_peer(domain, rank, to, bytes);
    if (there == NULL)
        return SIMPLER_DOMAIN_OUTSIDE;
    memmove(there, from, bytes);
    return 0;
}

/* Copy `bytes` bytes from a rank's window to `to`: `from` is the place in the own one. Returns 0 or an error. */
static inline int32_t simpler_domain_get(const SimplerDomain *domain, uint32_t rank, void *to,
                                         const void *from, uint64_t bytes)
{
    const void *there = simpler_domain_peer(domain, rank, from, bytes);
    if (there == NULL)
        return SIMPLER_DOMAIN_OUTSIDE;
    memmove(to, there, bytes);
    return 0;
}

/* ---------------------------------------------------------------- waiting */

static inline SimplerDomainShared *simpler_domain_shared_(const SimplerDomain *domain)
{
    return (SimplerDomainShared *)(uintptr_t)domain->shared;
}

static inline long simpler_futex_(uint32_t *word, int operation, uint32_t value,
                                  const struct timespec *timeout)
{
    return syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

static inline uint64_t simpler_now_ns_(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Wake a rank, after what it may wait for was changed. A sleeper counts itself before it reads `wakes` and
 * looks again; so it either sees the change, or is counted here, or finds `wakes` changed when it falls asleep. */
static inline void simpler_wake_(SimplerWaker *waker)
{
    __atomic_fetch_add(&waker->wakes, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&waker->sleepers, __ATOMIC_SEQ_CST) != 0)
        simpler_futex_(&waker->wakes, FUTEX_WAKE, 0x7fffffff, NULL);
}

/* Break a domain, unless it is broken: all waits in it end. */
static inline void simpler_domain_break_(SimplerDomainShared *shared, const char *why)
{
    uint32_t intact = 0;
    if (!__atomic_compare_exchange_n(&shared->broken, &intact, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    strncpy(shared->text, why, sizeof shared->text - 1); /* what follows is zero */
    __atomic_store_n(&shared->broken, 2, __ATOMIC_SEQ_CST);
    for (uint32_t rank = 0; rank < shared->size; rank++)
        simpler_wake_(&shared->wakers[rank]);
}

/* Whether a wait is over: the word is at least `value`, or with `until_other` differs from it. */
static inline int simpler_domain_met_(const uint32_t *word, uint32_t value, int until_other)
{
    const uint32_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    return until_other ? now != value : (int32_t)now >= (int32_t)value;
}

#define SIMPLER_DOMAIN_SPINS_ 2000

static inline int32_t simpler_domain_until_(const SimplerDomain *domain, const uint32_t *word,
                                            uint32_t value, int until_other, uint64_t timeout_ns)
{
    SimplerDomainShared *shared = simpler_domain_shared_(domain);
    SimplerWaker *waker = &shared->wakers[domain->rank];
    int32_t status = 0;
    for (int i = 0; i < SIMPLER_DOMAIN_SPINS_; i++) {
        if (simpler_domain_met_(word, value, until_other))
            return 0;
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    const uint64_t wanted = timeout_ns ? timeout_ns : domain->timeout_ns, now = simpler_now_ns_();
    const uint64_t deadline = now + wanted < now ? UINT64_MAX : now + wanted;
    __atomic_fetch_add(&waker->sleepers, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        const uint32_t wakes = __atomic_load_n(&waker->wakes, __ATOMIC_SEQ_CST);
        if (simpler_domain_met_(word, value, until_other))
            break;
        if (__atomic_load_n(&shared->broken, __ATOMIC_ACQUIRE) != 0) {
            status = SIMPLER_DOMAIN_BROKEN;
            break;
        }
        const uint64_t here = simpler_now_ns_();
        if (here >= deadline) {
            status = SIMPLER_DOMAIN_TIMEOUT;
            break;
        }
        const uint64_t rest = deadline - here;
        const struct timespec left = {(time_t)(rest / 1000000000u), (long)(rest % 1000000000u)};
        simpler_futex_(&waker->wakes, FUTEX_WAIT, wakes, &left);
    }
    __atomic_fetch_sub(&waker->sleepers, 1, __ATOMIC_SEQ_CST);
    return status;
}

/* Add to a signal in a rank's window, and wake that rank: `signal` is the place in the own window. Signals are
 * 0 at the start. Returns 0 or an error. */
static inline int32_t simpler_domain_notify(const SimplerDomain *domain, uint32_t rank, int32_t *signal,
                                            int32_t add)
{
    int32_t *there = (int32_t *)simpler_domain_peer(domain, rank, signal, sizeof *signal);
    if (there == NULL || (uintptr_t)there % sizeof *there != 0)
        return SIMPLER_DOMAIN_OUTSIDE;
    __atomic_fetch_add(there, add, __ATOMIC_SEQ_CST);
    simpler_wake_(&simpler_domain_shared_(domain)->wakers[rank]);
    return 0;
}

/* Wait until a signal in the own window is at least `value`; for at most `timeout_ns`, or, if that is 0, the
 * domain's deadline. Returns 0 or an error. */
static inline int32_t simpler_domain_wait(const SimplerDomain *domain, const int32_t *signal, int32_t value,
                                          uint64_t timeout_ns)
{
    if (simpler_domain_peer(domain, domain->rank, signal, sizeof *signal) == NULL ||
        (uintptr_t)signal % sizeof *signal != 0)
        return SIMPLER_DOMAIN_OUTSIDE;
    return simpler_domain_until_(domain, (const uint32_t *)signal, (uint32_t)value, 0, timeout_ns);
}

/* Wait until every rank is here; see `simpler_domain_wait`. After an error the rank has not arrived. One block
 * of each rank calls this: launch one block, or let the others return. */
static inline int32_t simpler_domain_barrier(const SimplerDomain *domain, uint64_t timeout_ns)
{
    SimplerDomainShared *shared = simpler_domain_shared_(domain);
    uint64_t *barrier = &shared->barrier;
    uint32_t *arrived = &shared->wakers[domain->rank].arrived;
    const uint32_t round = (uint32_t)(__atomic_load_n(barrier, __ATOMIC_SEQ_CST) >> 32);
    if (__atomic_exchange_n(arrived, round + 1, __ATOMIC_SEQ_CST) == round + 1) {
        simpler_domain_break_(shared, "two blocks of a rank were at one barrier: launch one block");
        return SIMPLER_DOMAIN_TWICE;
    }
    uint64_t now = __atomic_add_fetch(barrier, 1, __ATOMIC_SEQ_CST);
    if ((uint32_t)now == domain->size) {
        __atomic_store_n(barrier, (uint64_t)(round + 1) << 32, __ATOMIC_SEQ_CST);
        for (uint32_t rank = 0; rank < domain->size; rank++)
            simpler_wake_(&shared->wakers[rank]);
        return 0;
    }
    const uint32_t *rounds = (const uint32_t *)barrier + 1; /* the upper half: all is little-endian */
    const int32_t status = simpler_domain_until_(domain, rounds, round, 1, timeout_ns);
    if (status == 0)
        return 0;
    for (now = __atomic_load_n(barrier, __ATOMIC_ACQUIRE); (uint32_t)(now >> 32) == round;)
        if ((uint32_t)now == domain->size) /* the last one is just ending the round */
            now = __atomic_load_n(barrier, __ATOMIC_ACQUIRE);
        else if (__atomic_compare_exchange_n(barrier, &now, now - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE)) {
            __atomic_store_n(arrived, round, __ATOMIC_SEQ_CST);
            return status;
        }
    return 0;
}

/* ---------------------------------------------------------------- for compiled Python
 *
 * The same as functions, which it cannot inline; each shared object that needs them defines SIMPLER_CALL. */

#ifdef SIMPLER_CALL
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

#ifdef __cplusplus
}
#endif
#endif
