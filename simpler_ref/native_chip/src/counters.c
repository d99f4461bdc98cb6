#define _GNU_SOURCE
#include "counters.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "events.h"

_Static_assert(sizeof software_names / sizeof software_names[0] == MAX_COUNTS - 1, "see read_system");
_Static_assert(sizeof event_sets[0].events / sizeof event_sets[0].events[0] <= MAX_COUNTS, "they overflow");

static const EventSet *set_of(int32_t event_type)
{
    for (size_t i = 0; i < sizeof event_sets / sizeof event_sets[0]; i++)
        if (event_sets[i].event_type == event_type)
            return &event_sets[i];
    return NULL;
}

bool counters_knows(int32_t event_type)
{
    return set_of(event_type) != NULL;
}

/* Begin to count user code of the calling thread; returns the descriptor, -1 if that is not possible. */
static int open_one(const Event *event)
{
    struct perf_event_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.size = sizeof attributes;
    attributes.type = event->kind;
    attributes.config = event->config;
    attributes.exclude_kernel = attributes.exclude_hv = 1;
    return (int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static void close_all(int files[MAX_COUNTS])
{
    for (int i = 0; i < MAX_COUNTS; i++) {
        if (files[i] > 0)
            close(files[i] - 1);
        files[i] = 0;
    }
}

static bool open_all(const Counters *counters, int files[MAX_COUNTS])
{
    const EventSet *set = set_of(counters->event_type);
    for (int i = 0; i < set->count; i++) {
        files[i] = open_one(&set->events[i]) + 1;
        if (files[i] <= 0) {
            const int error = errno;
            files[i] = 0;
            close_all(files);
            errno = error;
            return false;
        }
    }
    return true;
}

/* Rule FLAG-CHIP-9; FLAG-PMU-2 */
bool counters_open(Counters *counters, int32_t event_type, int32_t cores)
{
    counters->files = calloc((size_t)cores, sizeof *counters->files);
    if (counters->files == NULL)
        return false;
    counters->event_type = event_type;
    counters->hardware = open_all(counters, counters->files[0]);
    counters->count = counters->hardware ? set_of(event_type)->count : MAX_COUNTS;
    return true;
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

void counters_read(Counters *counters, int32_t core, uint64_t counts[MAX_COUNTS])
{
    if (!counters->hardware) {
        read_system(counts);
        return;
    }
    int *files = counters->files[core];
    memset(counts, 0, MAX_COUNTS * sizeof counts[0]);
    if (files[0] == 0 && !open_all(counters, files)) {
        atomic_store(&counters->error, errno);
        return;
    }
    for (int i = 0; i < counters->count; i++)
        if (read(files[i] - 1, &counts[i], sizeof counts[i]) != sizeof counts[i])
            atomic_store(&counters->error, errno);
}

const char *counters_name(const Counters *counters, int i)
{
    return counters->hardware ? set_of(counters->event_type)->events[i].name : software_names[i - 1];
}

void counters_close(Counters *counters, int32_t cores)
{
    for (int32_t core = 0; counters->files != NULL && core < cores; core++)
        close_all(counters->files[core]);
    free(counters->files);
    counters->files = NULL;
}
