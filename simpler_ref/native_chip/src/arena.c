#define _GNU_SOURCE
#include "arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Address space without access at either end: a kernel that runs past the memory meets it, whatever its
 * stride. A multiple of any page size. */
#define GUARD (1ULL << 20)

/* The devices' part of the address space: programs, stacks, heaps and mappings are elsewhere on every
 * 64-bit Linux with 47 bits or more for a process, and so does the shadow memory of sanitizers. From its end
 * to 0x540000000000 is room for windows that devices share: addresses without an owner. */
#define DEVICES_FIRST 0x400000000000ULL
#define DEVICES_END 0x500000000000ULL

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

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

/* Address space that a device with so much memory takes: its strip. */
static uint64_t strip_of(uint64_t size)
{
    const uint64_t guard = GUARD;
    return ((size + guard - 1) & ~(guard - 1)) + 2 * guard;
}

uint64_t arena_devices(uint64_t size)
{
    return (DEVICES_END - DEVICES_FIRST) / strip_of(size);
}

static void *reserve(uint64_t at, uint64_t bytes)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *mapping =
        mmap((void *)(uintptr_t)at, bytes, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapping != MAP_FAILED) /* Linux before 4.17 treats the address as a hint */
        return mapping;
    return mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
}

/* Rule CHIP-MEM-6 */
bool arena_open(Arena *arena, uint64_t size, int32_t device_id)
{
    const uint64_t guard = GUARD, strip = strip_of(size);
    size = strip - 2 * guard;
    memset(arena, 0, sizeof *arena);
    void *mapping = reserve(DEVICES_FIRST + (uint64_t)device_id * strip, strip);
    if (mapping == MAP_FAILED)
        return false;
    arena->device_id = device_id;
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
    if (arena->mapping != NULL)
        munmap(arena->mapping, arena->end - arena->first + 2 * GUARD);
    free(arena->live);
    free(arena->windows);
    memset(arena, 0, sizeof *arena);
}

/* The first gap with room: its index in the ledger. The last one ends where the run's memory begins. */
static bool find_gap(const Arena *arena, uint64_t size, size_t *index, uint64_t *at)
{
    uint64_t from = arena->first;
    for (size_t i = 0; i <= arena->count; i++) {
        uint64_t to = i < arena->count ? arena->live[i].at : arena->lowest;
        if (to - from >= size) {
            *index = i;
            *at = from;
            return true;
        }
        if (i < arena->count)
            from = end_of(&arena->live[i]);
    }
    return false;
}

static bool make_room(Span **spans, size_t count)
{
    Span *larger = realloc(*spans, (count + 1) * sizeof *larger);
    if (larger != NULL)
        *spans = larger;
    return larger != NULL;
}

/* Rule CHIP-MEM-1, CHIP-MEM-2 */
uint64_t arena_malloc(Arena *arena, uint64_t size)
{
    size_t index;
    uint64_t at, takes = rounded(size);
    if (takes == 0 || !make_room(&arena->live, arena->count) || !find_gap(arena, takes, &index, &at))
        return 0;
    memmove(&arena->live[index + 1], &arena->live[index],
            (arena->count - index) * sizeof *arena->live);
    arena->live[index] = (Span){at, size};
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

/* Rule CHIP-MEM-2, CHIP-MEM-4 */
bool arena_holds(const Arena *arena, uint64_t at, uint64_t size)
{
    size_t after = rank(arena, at);
    if (after > 0 && within(at, size, arena->live[after - 1].at, arena->live[after - 1].size))
        return true;
    for (size_t i = 0; i < arena->windows_count; i++)
        if (within(at, size, arena->windows[i].at, arena->windows[i].size))
            return true;
    return arena->lowest < arena->end && within(at, size, arena->lowest, arena->end - arena->lowest);
}

/* Rule WM-DOMAIN-4 */
bool arena_open_window(Arena *arena, uint64_t at, uint64_t size)
{
    if (!make_room(&arena->windows, arena->windows_count))
        return false;
    arena->windows[arena->windows_count++] = (Span){at, size};
    return true;
}

bool arena_close_window(Arena *arena, uint64_t at)
{
    for (size_t i = 0; i < arena->windows_count; i++)
        if (arena->windows[i].at == at) {
            arena->windows[i] = arena->windows[--arena->windows_count];
            return true;
        }
    return false;
}

/* Rule CHIP-MEM-6 */
const char *arena_owner(Arena *arena, uint64_t at)
{
    arena->owner[0] = '\0';
    if (at < DEVICES_FIRST || at >= DEVICES_END)
        return arena->owner;
    uint64_t strip = arena->end - arena->first + 2 * GUARD;
    uint64_t owner = (at - DEVICES_FIRST) / strip;
    if (owner != (uint64_t)arena->device_id)
        snprintf(arena->owner, sizeof arena->owner, ": address 0x%llx belongs to device %llu, this is device %d",
                 (unsigned long long)at, (unsigned long long)owner, (int)arena->device_id);
    return arena->owner;
}

/* Rule CHIP-RUN-5 */
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
