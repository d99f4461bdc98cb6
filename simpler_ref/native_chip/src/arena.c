#define _GNU_SOURCE
#include "arena.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Address space without access at either end: a kernel that runs past the memory meets it, whatever its
 * stride. A multiple of any page size. */
#define GUARD (1ULL << 20)

/* Bytes that an allocation takes; 0 if that is more than there can be. */
static uint64_t rounded(uint64_t size)
{
    uint64_t up = (size + ARENA_ALIGN - 1) & ~(uint64_t)(ARENA_ALIGN - 1);
    return up < size ? 0 : up;
}

static uint64_t end_of(const Span *span)
{
    return span->at + rounded(span->size);
}

bool arena_open(Arena *arena, uint64_t size)
{
    const uint64_t guard = GUARD;
    size = (size + guard - 1) & ~(guard - 1);
    memset(arena, 0, sizeof *arena);
    void *mapping = mmap(NULL, size + 2 * guard, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return false;
    arena->mapping = mapping;
    arena->first = (uint64_t)(uintptr_t)mapping + guard;
    arena->end = arena->lowest = arena->first + size;
    /* A forked process has no use for the chip's memory, and would make every page of it be copied. */
    if (mprotect(arena->mapping + guard, size, PROT_READ | PROT_WRITE) == 0 &&
        madvise(arena->mapping, size + 2 * guard, MADV_DONTFORK) == 0)
        return true;
    arena_close(arena);
    return false;
}

void arena_close(Arena *arena)
{
    const uint64_t guard = GUARD;
    if (arena->mapping != NULL)
        munmap(arena->mapping, arena->end - arena->first + 2 * guard);
    free(arena->live);
    memset(arena, 0, sizeof *arena);
}

/* The first gap with room: its place in the ledger. The last one ends where the run's memory begins. */
static bool find_gap(const Arena *arena, uint64_t size, size_t *place, uint64_t *at)
{
    uint64_t from = arena->first;
    for (size_t i = 0; i <= arena->count; i++) {
        uint64_t to = i < arena->count ? arena->live[i].at : arena->lowest;
        if (to - from >= size) {
            *place = i;
            *at = from;
            return true;
        }
        if (i < arena->count)
            from = end_of(&arena->live[i]);
    }
    return false;
}

static bool make_room(Arena *arena)
{
    if (arena->count < arena->room)
        return true;
    size_t room = arena->room ? 2 * arena->room : 64;
    Span *live = realloc(arena->live, room * sizeof *live);
    if (live == NULL)
        return false;
    arena->live = live;
    arena->room = room;
    return true;
}

/* Rule CHIP-MEM-1, -3 */
uint64_t arena_malloc(Arena *arena, uint64_t size)
{
    size_t place;
    uint64_t at, takes = rounded(size);
    if (takes == 0 || !make_room(arena) || !find_gap(arena, takes, &place, &at))
        return 0;
    memmove(&arena->live[place + 1], &arena->live[place],
            (arena->count - place) * sizeof *arena->live);
    arena->live[place] = (Span){at, size};
    arena->count++;
    arena->used += takes;
    return at;
}

/* How many allocations begin at or below an address. */
static size_t rank(const Arena *arena, uint64_t at)
{
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena->live[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Rule CHIP-MEM-2 */
bool arena_free(Arena *arena, uint64_t at)
{
    size_t after = rank(arena, at);
    if (after == 0 || arena->live[after - 1].at != at)
        return false;
    arena->used -= rounded(arena->live[after - 1].size);
    memmove(&arena->live[after - 1], &arena->live[after],
            (arena->count - after) * sizeof *arena->live);
    arena->count--;
    return true;
}

static bool within(uint64_t at, uint64_t size, uint64_t first, uint64_t bytes)
{
    return at >= first && at - first <= bytes && size <= bytes - (at - first);
}

/* Rule CHIP-MEM-2, -4 */
bool arena_holds(const Arena *arena, uint64_t at, uint64_t size)
{
    size_t after = rank(arena, at);
    return after > 0 &&
           within(at, size, arena->live[after - 1].at, arena->live[after - 1].size);
}

bool arena_lends(const Arena *arena, uint64_t at, uint64_t size)
{
    return within(at, size, arena->lowest, arena->end - arena->lowest);
}

/* Rule CHIP-RUN-6 */
uint64_t arena_borrow(Arena *arena, uint64_t size)
{
    uint64_t takes = rounded(size);
    uint64_t floor = arena->count ? end_of(&arena->live[arena->count - 1]) : arena->first;
    if (takes == 0 || arena->lowest - floor < takes)
        return 0;
    arena->lowest -= takes;
    return arena->lowest;
}

void arena_return_all(Arena *arena)
{
    arena->lowest = arena->end;
}
