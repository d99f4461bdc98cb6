/* The memory of a simulated chip: one mapping, with a ledger of what is allocated in it.
 *
 * Devices have addresses of their own, in every process: device n has the n-th strip of a part of the
 * address space where nothing else is. So an address determines its device, and no chip is asked.
 *
 * Allocations of the user grow from the low end; what a run needs for its own time grows from the high
 * end and goes all at once. Nothing of the ledger is in the chip's memory, so a kernel that writes
 * beyond its tensors cannot damage it. */
#ifndef SIMPLER_ARENA_H
#define SIMPLER_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Span {
    uint64_t at;
    uint64_t size;
} Span;

typedef struct Arena {
    int32_t device_id;
    char *mapping; /* with a strip without access at either end */
    uint64_t first;
    uint64_t end;
    uint64_t lowest; /* of the run's own memory; `end` between runs */
    Span *live;      /* allocations of the user, by address */
    size_t count;
    uint64_t used;
    Span *windows; /* memory that devices share: the host's to allocate, this device's to use */
    size_t windows_count;
    char owner[96]; /* text of `arena_owner` */
} Arena;

#define ARENA_ALIGN 64

/* How many devices with so much memory have addresses of their own: ids from 0 to one less. */
uint64_t arena_devices(uint64_t size);

/* Open the memory of a device. Where its addresses are taken, say by the same device opened twice in a
 * process, or where the machine has none there, it gets others, which are no device's. */
bool arena_open(Arena *arena, uint64_t size, int32_t device_id);
void arena_close(Arena *arena);

/* Allocate. Returns 0 if there is no room. */
uint64_t arena_malloc(Arena *arena, uint64_t size);

/* Free an allocation. Returns false if none begins there. */
bool arena_free(Arena *arena, uint64_t at);

/* Take a window into the ledger, and out of it. Returns false if there is no memory, or no such window. */
bool arena_open_window(Arena *arena, uint64_t at, uint64_t size);
bool arena_close_window(Arena *arena, uint64_t at);

/* Say whether bytes [at, at + size) lie in one allocation of the user, in a window, or in the run's memory. */
bool arena_holds(const Arena *arena, uint64_t at, uint64_t size);

/* Name the owner of an address, if it is another device: ": address 0x… belongs to device 1, this is device
 * 0", else nothing. Devices with memory of another size do not count. The text stays until the next call. */
const char *arena_owner(Arena *arena, uint64_t at);

/* Allocate for the time of a run; free all of that. */
uint64_t arena_borrow(Arena *arena, uint64_t size);
void arena_return_all(Arena *arena);

#endif
