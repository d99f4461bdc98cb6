/* Counters of the processor for each core of the chip, or the system's own where there are none. */
#ifndef SIMPLER_COUNTERS_H
#define SIMPLER_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define MAX_COUNTS 5 /* the cycles and those of an event type, or of the system */

typedef struct Counters {
    int32_t event_type; /* 0: nothing is counted */
    int count;
    bool hardware;
    atomic_int error; /* why a core's counters cannot be read */
    int (*files)[MAX_COUNTS]; /* of each core, plus 1; 0 if not yet open */
} Counters;

/* Prepare for cores 0 to `cores` - 1, of which the calling thread is the first; false if there is no memory. */
bool counters_open(Counters *counters, int32_t event_type, int32_t cores);

/* What they have counted of the calling thread, which is always the same for a core. */
void counters_read(Counters *counters, int32_t core, uint64_t counts[MAX_COUNTS]);

/* Names, the cycles left out. */
const char *counters_name(const Counters *counters, int i);

bool counters_knows(int32_t event_type);
void counters_close(Counters *counters, int32_t cores);

#endif
