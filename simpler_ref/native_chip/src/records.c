#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

enum { MARKED = 1 }; /* the level of dumps at which only marked tensors are */

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

bool records_asked(const SimplerCallConfig *config)
{
    return config->enable_l2_swimlane || config->enable_dump_tensor || config->enable_pmu ||
           config->enable_dep_gen || config->enable_scope_stats;
}

/* Append memory to a file; returns how many bytes, fewer if not all of it is there, or -1. */
static int64_t append(int fd, const void *from, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        const ssize_t written = write(fd, (const char *)from + done, bytes - done);
        if (written < 0 && errno != EINTR && errno != EFAULT)
            return -1;
        if (written == 0 || (written < 0 && errno == EFAULT))
            break;
        done += written > 0 ? (uint64_t)written : 0;
    }
    return (int64_t)done;
}

static bool append_all(const Records *records, const void *from, size_t count, size_t size)
{
    return append(records->to.records, from, count * size) == (int64_t)(count * size);
}

bool records_begin(Records *records, const SimplerCallConfig *config, const char name[MAX_NAME + 1])
{
    records->dump_level = config->enable_dump_tensor;
    records->of_blocks = config->enable_l2_swimlane || config->enable_pmu;
    atomic_store(&records->counters_error, 0);
    return append_all(records, name, MAX_NAME + 1, 1);
}

void records_launch(Records *records, const Wave *wave, uint64_t heap, int64_t begin)
{
    const Launch *launch = &wave->launches[wave->count - 1];
    LaunchRecord *made = &records->launches[wave->count - 1];
    if (wave->count == 1)
        records->heap_before = heap;
    made->func_id = launch->core->func_id;
    memcpy(made->directions, launch->core->signature.directions, sizeof made->directions);
    made->args = launch->args;
    made->begin = begin;
    made->end = now_ns();
}

/* ---------------------------------------------------------------- dumps */

/* Dump what the launches of a wave read, before it, or what they wrote, after it.
 * Rule FLAG-CHIP-6 */
static bool dump(Records *records, const Wave *wave, bool after)
{
    static const uint8_t sizes[SIMPLER_DATA_TYPES] = SIMPLER_DTYPE_SIZES;
    for (uint32_t i = 0; i < wave->count && records->dump_level != 0; i++) {
        const SimplerCoreArgs *args = &records->launches[i].args;
        for (int32_t k = 0; k < args->tensor_count; k++) {
            const SimplerContinuousTensor *tensor = &args->tensors[k];
            if (!(records->launches[i].directions[k] & (after ? SIMPLER_OUT : SIMPLER_IN)) ||
                (records->dump_level == MARKED && !simpler_is_marked(tensor)))
                continue;
            const uint64_t size = simpler_elements(tensor) * sizes[tensor->dtype];
            const void *from = (const void *)(uintptr_t)tensor->data;
            const int64_t bytes = records->to.bytes < 0 ? 0 : append(records->to.bytes, from, size);
            if (bytes < 0)
                return false;
            records->dumps[records->dump_count++] = (DumpRecord){i, k, after, (uint64_t)bytes};
        }
    }
    return true;
}

/* ---------------------------------------------------------------- waves */

bool records_wave(Records *records, Wave *wave)
{
    records->begun = true;
    if (records->of_blocks) {
        records->blocks = calloc(wave->items, sizeof *records->blocks);
        if (records->blocks == NULL)
            return false;
        for (uint32_t i = 0; i < wave->count; i++)
            for (int32_t block = 0; block < wave->launches[i].args.block_dim; block++)
                records->blocks[wave->launches[i].first + (uint32_t)block] =
                    (BlockRecord){.launch = i, .core = -1};
    }
    wave->records = records->of_blocks ? records : NULL;
    return dump(records, wave, false);
}

bool records_wave_end(Records *records, Wave *wave, uint64_t heap, bool failed)
{
    const bool whole = failed || dump(records, wave, true);
    const WaveRecord made = {
        .launches = wave->count,
        .blocks = records->blocks == NULL ? 0 : wave->items,
        .dumps = records->dump_count,
        .heap_before = records->heap_before,
        .heap_after = heap,
        .ran = records->begun,
        .counters_error = atomic_load(&records->counters_error),
    };
    const bool written =
        whole && append_all(records, &made, 1, sizeof made) &&
        append_all(records, records->launches, made.launches, sizeof *records->launches) &&
        append_all(records, records->blocks, made.blocks, sizeof *records->blocks) &&
        append_all(records, records->dumps, made.dumps, sizeof *records->dumps);
    const int error = errno;
    free(records->blocks);
    records->blocks = NULL;
    records->dump_count = 0;
    records->begun = false;
    wave->records = NULL;
    errno = error;
    return written;
}

/* ---------------------------------------------------------------- counters */

/* Begin to count user code of the calling thread; returns the descriptor, -1 if that is not possible. */
static int open_one(const SimplerEvent *event)
{
    struct perf_event_attr attributes = {.size = sizeof attributes};
    attributes.type = event->kind;
    attributes.config = event->config;
    attributes.exclude_kernel = attributes.exclude_hv = 1;
    return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static void read_system(uint64_t counts[MAX_COUNTS])
{
    struct timespec used;
    struct rusage usage;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    getrusage(RUSAGE_THREAD, &usage);
    counts[0] = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
    counts[1] = (uint64_t)usage.ru_minflt;
    counts[2] = (uint64_t)usage.ru_majflt;
    counts[3] = (uint64_t)usage.ru_nvcsw;
    counts[4] = (uint64_t)usage.ru_nivcsw;
}

/* Rule FLAG-PMU-2 */
void records_count(Records *records, int32_t core, uint64_t counts[MAX_COUNTS])
{
    int *files = records->files[core];
    memset(counts, 0, MAX_COUNTS * sizeof counts[0]);
    if (records->to.counters == 0)
        read_system(counts);
    for (int i = 0; i < records->to.counters; i++) {
        if (files[i] == 0)
            files[i] = open_one(&records->to.events[i]) + 1;
        if (files[i] == 0 || read(files[i] - 1, &counts[i], sizeof counts[i]) != sizeof counts[i])
            atomic_store(&records->counters_error, errno);
    }
}

void records_end(Records *records)
{
    for (int i = 0; i < MAX_CORES * MAX_COUNTS && records->to.counters > 0; i++)
        if (records->files[i / MAX_COUNTS][i % MAX_COUNTS] > 0) {
            close(records->files[i / MAX_COUNTS][i % MAX_COUNTS] - 1);
            records->files[i / MAX_COUNTS][i % MAX_COUNTS] = 0;
        }
}
