/* What a run records if its configuration has diagnostics flags. The caller makes files of it: see
 * extras/diagnostics/chip.py, which reads these structures.
 *
 * Into the file of `pto2_record` go the name of the function, then a frame for each wave: a WaveRecord and as
 * many records of each other kind as that says. The last frame has the launches that did not run, if any. Each
 * block has a record of its own, made before its wave, so that cores write without a lock; all else is recorded
 * by the thread of the run. */
#ifndef SIMPLER_RECORDS_H
#define SIMPLER_RECORDS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "callable.h"

#define MAX_LAUNCHES 64 /* of a wave */
#define MAX_CORES 4096
#define MAX_COUNTS 5 /* the cycles and the others of an event type, or of the system */

typedef struct WaveRecord {
    uint64_t launches;
    uint64_t blocks; /* 0 if nothing is recorded of blocks */
    uint64_t dumps;
    uint64_t heap_before; /* what the run had allocated at the first launch */
    uint64_t heap_after;
    int32_t ran; /* 1: its blocks were handed out; 0: the run has failed before */
    int32_t counters_error; /* why a core's counters cannot be read */
} WaveRecord;

typedef struct LaunchRecord {
    int64_t begin; /* times in ns of the monotonic clock */
    int64_t end;
    int64_t func_id;
    uint8_t directions[SIMPLER_CORE_MAX_TENSOR_ARGS];
    SimplerCoreArgs args;
} LaunchRecord;

typedef struct BlockRecord {
    uint32_t launch; /* of the wave */
    int32_t core;    /* thread of the pool: 0 is the caller's; -1 if the block did not run */
    int64_t queued;
    int64_t begin;
    int64_t end;
    int64_t seen; /* when the pool took note of the end */
    uint64_t counts[MAX_COUNTS];
} BlockRecord;

/* A tensor of a launch in the file of bytes, where each follows the one before. */
typedef struct DumpRecord {
    uint32_t launch; /* of the wave */
    int32_t index;
    int64_t after; /* 1: after the wave, else before it */
    uint64_t bytes;
} DumpRecord;

/* A run that records; of each core the descriptors of its counters, plus 1, 0 if not yet open. */
typedef struct Records {
    SimplerRecording to;
    int32_t dump_level;
    bool of_blocks;
    atomic_int counters_error;
    bool begun; /* the wave is running */
    uint64_t heap_before;
    LaunchRecord launches[MAX_LAUNCHES];
    BlockRecord *blocks;
    DumpRecord dumps[MAX_LAUNCHES * SIMPLER_CORE_MAX_TENSOR_ARGS * 2];
    size_t dump_count;
    int files[MAX_CORES][MAX_COUNTS];
} Records;

typedef struct Wave Wave;

int64_t now_ns(void);

/* Whether a configuration has a flag. */
bool records_asked(const SimplerCallConfig *config);

/* All of these return false, with `errno`, if something cannot be recorded. A run begins, a launch is made, a
 * wave is about to run, and has ended, or cannot run any more. `heap` is what the run has allocated. */
bool records_begin(Records *records, const SimplerCallConfig *config, const char name[MAX_NAME + 1]);
void records_launch(Records *records, const Wave *wave, uint64_t heap, int64_t begin);
bool records_wave(Records *records, Wave *wave);
bool records_wave_end(Records *records, Wave *wave, uint64_t heap, bool failed);
void records_end(Records *records);

/* What the calling thread, always the same for a core, has counted so far. */
void records_count(Records *records, int32_t core, uint64_t counts[MAX_COUNTS]);

#endif
