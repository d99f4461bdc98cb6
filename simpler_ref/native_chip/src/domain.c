/* The memory of a domain, as the host lays it out: what the ranks share, a SimplerDomain for each, and the
 * windows, between which nothing can be accessed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

#define SIMPLER_CALL __attribute__((visibility("default")))
#include "simpler_domain_calls.h"

#define EXPORT __attribute__((visibility("default")))
#define CONTEXTS 8192  /* where the SimplerDomains begin */
#define STRIDE 576     /* from one to the next */
#define WINDOWS 65536  /* where the windows begin */
#define GUARD 65536    /* after each of them; a multiple of any page size */

_Static_assert(sizeof(SimplerDomainShared) <= CONTEXTS, "they overlap");
_Static_assert(sizeof(SimplerDomain) <= STRIDE, "they overlap");
_Static_assert(CONTEXTS + STRIDE * SIMPLER_DOMAIN_MAX_RANKS <= WINDOWS, "they overlap");

static SimplerDomainShared *shared_at(uint64_t at)
{
    return (SimplerDomainShared *)(uintptr_t)at;
}

/* The SimplerDomain of a rank, and where its window begins. */
EXPORT uint64_t shim_domain_context(uint64_t at, uint32_t rank)
{
    return at + CONTEXTS + (uint64_t)STRIDE * rank;
}

EXPORT uint64_t shim_domain_window(uint64_t at, uint32_t rank)
{
    const SimplerDomain *domain = simpler_domain(shim_domain_context(at, 0));
    return at + WINDOWS + rank * (domain->window_size + GUARD);
}

EXPORT uint64_t shim_domain_window_bytes(uint64_t at)
{
    return simpler_domain(shim_domain_context(at, 0))->window_size;
}

/* The size of each window when `bytes` are wanted: whole pages. */
EXPORT uint64_t shim_domain_window_size(uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* How many bytes a domain takes. */
EXPORT uint64_t shim_domain_bytes(uint32_t size, uint64_t window_size)
{
    return WINDOWS + size * (window_size + GUARD);
}

/* Lay out a domain in zeroed memory. `chips` has the chip of each rank. */
EXPORT void shim_domain_make(uint64_t at, const char *name, uint32_t size, const uint32_t *chips,
                             uint64_t window_size, uint64_t timeout_ns)
{
    SimplerDomainShared *shared = shared_at(at);
    snprintf(shared->name, sizeof shared->name, "%s", name);
    shared->size = size;
    memcpy(shared->chips, chips, size * sizeof *chips);
    for (uint32_t rank = 0; rank < size; rank++) {
        SimplerDomain *domain = (SimplerDomain *)(uintptr_t)shim_domain_context(at, rank);
        domain->rank = rank;
        domain->size = size;
        domain->window_size = window_size;
        domain->timeout_ns = timeout_ns;
        domain->shared = at;
        for (uint32_t other = 0; other < size; other++)
            domain->windows[other] = at + WINDOWS + other * (window_size + GUARD);
    }
}

/* Make what is between the windows inaccessible in this process. Returns false if the system refuses. */
EXPORT int32_t shim_domain_guard(uint64_t at)
{
    const SimplerDomain *domain = simpler_domain(shim_domain_context(at, 0));
    const uint64_t window_size = domain->window_size;
    for (uint32_t rank = 0; rank < domain->size; rank++)
        if (mprotect((void *)(uintptr_t)(domain->windows[rank] + window_size), GUARD, PROT_NONE) != 0)
            return 0;
    return 1;
}

EXPORT uint32_t shim_domain_size(uint64_t at)
{
    return shared_at(at)->size;
}

EXPORT const char *shim_domain_name(uint64_t at)
{
    return shared_at(at)->name;
}

/* The rank that a chip has; −1 if none. */
EXPORT int32_t shim_domain_rank_of(uint64_t at, uint32_t chip)
{
    const SimplerDomainShared *shared = shared_at(at);
    for (uint32_t rank = 0; rank < shared->size; rank++)
        if (shared->chips[rank] == chip)
            return (int32_t)rank;
    return -1;
}

/* The chip that a rank has. */
EXPORT uint32_t shim_domain_chip_of(uint64_t at, uint32_t rank)
{
    return shared_at(at)->chips[rank];
}

/* How often a rank was woken, if it sleeps until another one does something; else −1. */
EXPORT int64_t shim_domain_sleeps(uint64_t at, uint32_t rank)
{
    SimplerBell *bell = &shared_at(at)->bells[rank];
    const uint32_t rung = __atomic_load_n(&bell->rung, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&bell->sleepers, __ATOMIC_SEQ_CST) != 0 ? (int64_t)rung : -1;
}

/* Break a domain, unless it is broken: all waits in it end, with an error. `why` is kept.
 * Rule WM-DOMAIN-9 */
EXPORT void shim_domain_break(uint64_t at, const char *why)
{
    simpler_domain_break_(shared_at(at), why);
}

EXPORT int32_t shim_domain_is_broken(uint64_t at)
{
    return __atomic_load_n(&shared_at(at)->broken, __ATOMIC_ACQUIRE) != 0;
}

/* Why a domain is broken; NULL if it is intact. */
EXPORT const char *shim_domain_broken(uint64_t at)
{
    SimplerDomainShared *shared = shared_at(at);
    for (int i = 0; i < 1000 && __atomic_load_n(&shared->broken, __ATOMIC_ACQUIRE) == 1; i++)
        usleep(100); /* the text is being written, unless its writer has died */
    const uint32_t broken = __atomic_load_n(&shared->broken, __ATOMIC_ACQUIRE);
    return broken == 0 ? NULL : broken == 2 ? shared->text : "one of its ranks has failed";
}
