/* What a run records if `enable_l2_swimlane` asks for it: when each block ran, and on which core.
 *
 * Each block has a record of its own, made before its wave, so that cores write without a lock. */
#ifndef SIMPLER_RECORDS_H
#define SIMPLER_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct BlockRecord {
    uint32_t launch;
    int32_t core;   /* thread of the pool: 0 is the caller's; -1 if the block did not run */
    int64_t queued; /* times in ns of the monotonic clock */
    int64_t begin;
    int64_t end;
    int64_t seen; /* when the pool took note of the end */
} BlockRecord;

typedef struct LaunchRecord {
    int64_t begin;
    int64_t end;
} LaunchRecord;

typedef struct Records {
    BlockRecord *blocks;
    size_t count, room;
    LaunchRecord *launches;
    size_t launched, launch_room;
    size_t *waves; /* the first block of each */
    size_t waved, wave_room;
} Records;

int64_t now_ns(void);

/* Add a launch; false if there is no memory. */
bool records_launch(Records *records, int64_t begin, int64_t end);

/* Add a wave of blocks that have not run; returns their records, NULL if there is no memory. */
BlockRecord *records_wave(Records *records, size_t blocks);

/* Write the file below a folder, which is made. On failure returns false, with the reason in `why`. */
bool records_write(const Records *records, int level, const char *folder, char *why, size_t room);

void records_free(Records *records);

#endif
