/* What a run records if flags of its configuration ask for it, and the files made from that.
 *
 * Each block has a record of its own, made before its wave, so that cores write without a lock. All else is
 * recorded by the thread of the run, between waves. */
#ifndef SIMPLER_RECORDS_H
#define SIMPLER_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "callable.h"
#include "counters.h"

typedef struct BlockRecord {
    uint32_t launch;
    int32_t core;   /* thread of the pool: 0 is the caller's; -1 if the block did not run */
    int64_t queued; /* times in ns of the monotonic clock */
    int64_t begin;
    int64_t end;
    int64_t seen; /* when the pool took note of the end */
    uint64_t counts[MAX_COUNTS];
} BlockRecord;

typedef struct LaunchRecord {
    const Core *core;
    int64_t begin;
    int64_t end;
    size_t wave;
    size_t first_tensor; /* of all that were recorded */
    int32_t tensor_count;
} LaunchRecord;

/* An argument of a launch in the file of dumps. */
typedef struct DumpRecord {
    size_t launch;
    int32_t index; /* of the argument: scalars follow the tensors */
    bool after;
    uint64_t at;
    uint64_t bytes;
} DumpRecord;

/* A scope begins or ends: the run, or a wave in it. */
typedef struct ScopeRecord {
    bool begins;
    int32_t depth;
    size_t given_back; /* launches of earlier waves */
    size_t launched;
    uint64_t heap;
} ScopeRecord;

typedef struct List {
    void *items;
    size_t count, room;
} List;

typedef struct Records {
    const SimplerCallConfig *config;
    const char *name; /* of the orchestration function */
    List blocks;      /* BlockRecord */
    List launches;    /* LaunchRecord */
    List waves;       /* size_t: the first block of each */
    List tensors;     /* SimplerContinuousTensor */
    List dumps;       /* DumpRecord */
    List scopes;      /* ScopeRecord */
    size_t waiting;   /* the first launch of the wave that is being made */
    int bin;          /* the file of dumps, which has no name yet; 0 if there is none */
    Counters counters;
} Records;

int64_t now_ns(void);

/* Add zeroed items to a list; returns the first of them, NULL if there is no memory. */
void *list_add(List *list, size_t count, size_t size);

/* Whether a configuration has a flag. */
bool records_asked(const SimplerCallConfig *config);

/* Begin. On failure returns false, with the reason in `why`, and nothing is left. */
bool records_begin(Records *records, const SimplerCallConfig *config, const char *name, char *why, size_t room);

/* Add a launch; `heap` is what the run has allocated. False if there is no memory. */
bool records_launch(Records *records, const Core *core, const SimplerCoreArgs *args, uint64_t heap,
                    int64_t begin, int64_t end);

/* Take note that a wave of so many blocks begins. `blocks` gets their records, which say that they have not
 * run; NULL if nothing is recorded of blocks. False if there is no memory. */
bool records_wave(Records *records, size_t count, BlockRecord **blocks);

/* Take note that it has ended. */
bool records_wave_end(Records *records, uint64_t heap, bool failed);

/* Write the files. On failure returns false, with the reason in `why`. */
bool records_write(Records *records, uint64_t heap, bool failed, char *why, size_t room);

void records_free(Records *records);

/* ---------------------------------------------------------------- the contents of each file */

/* The blocks that ran, by core, then by time. */
typedef struct Ran {
    BlockRecord *blocks;
    size_t count;
} Ran;

const LaunchRecord *launch_record(const Records *records, size_t i);
const SimplerContinuousTensor *tensor_record(const Records *records, const LaunchRecord *launch, int32_t i);

const char *dtype_name(const SimplerContinuousTensor *tensor);

/* Element type, shape and strides of a tensor, as members of an object. */
void write_elements(FILE *file, const SimplerContinuousTensor *tensor);

void write_swimlane(FILE *file, const Records *records, const Ran *ran);
bool write_deps(FILE *file, const Records *records); /* false if there is no memory */
void write_scopes(FILE *file, const Records *records, bool failed);
void write_counts(FILE *file, const Records *records, const Ran *ran);
void write_dumps(FILE *file, const Records *records);

/* Make the file of dumps; false with `errno` if that fails. */
bool dump_open(Records *records, const char *folder);

/* Dump what a launch reads, with its scalars, if it has not run, else what it writes. */
bool dump_launch(Records *records, size_t launch, const uint64_t *scalars, int32_t scalar_count, bool after);

/* Put the bytes where they belong in a folder. */
bool dump_store(const Records *records, int folder);

#endif
