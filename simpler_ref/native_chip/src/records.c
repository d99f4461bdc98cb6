#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---------------------------------------------------------------- what is recorded */

void *list_add(List *list, size_t count, size_t size)
{
    const size_t wanted = list->count + count;
    if (wanted > list->room || list->items == NULL) {
        void *made = realloc(list->items, 2 * (wanted + 8) * size);
        if (made == NULL)
            return NULL;
        list->items = made;
        list->room = 2 * (wanted + 8);
    }
    void *added = (char *)list->items + list->count * size;
    memset(added, 0, count * size);
    list->count = wanted;
    return added;
}

const LaunchRecord *launch_record(const Records *records, size_t i)
{
    return (const LaunchRecord *)records->launches.items + i;
}

const SimplerContinuousTensor *tensor_record(const Records *records, const LaunchRecord *launch, int32_t i)
{
    return (const SimplerContinuousTensor *)records->tensors.items + launch->first_tensor + i;
}

bool records_asked(const SimplerCallConfig *config)
{
    return config->enable_l2_swimlane || config->enable_dump_tensor || config->enable_pmu ||
           config->enable_dep_gen || config->enable_scope_stats;
}

static bool add_scope(Records *records, bool begins, int32_t depth, uint64_t heap)
{
    ScopeRecord *made = list_add(&records->scopes, 1, sizeof *made);
    if (made != NULL)
        *made = (ScopeRecord){begins, depth, records->waiting, records->launches.count, heap};
    return made != NULL;
}

/* Whether launches were made since the last wave ended. */
static bool in_wave(const Records *records)
{
    return records->waiting < records->launches.count;
}

bool records_launch(Records *records, const Core *core, const SimplerCoreArgs *args, uint64_t heap,
                    int64_t begin, int64_t end)
{
    const size_t first = records->tensors.count, count = (size_t)args->tensor_count;
    if (!in_wave(records) && !add_scope(records, true, 1, heap))
        return false;
    SimplerContinuousTensor *tensors = list_add(&records->tensors, count, sizeof *tensors);
    if (tensors == NULL)
        return false;
    memcpy(tensors, args->tensors, count * sizeof *tensors);
    LaunchRecord *made = list_add(&records->launches, 1, sizeof *made);
    if (made != NULL)
        *made = (LaunchRecord){core, begin, end, records->waves.count, first, args->tensor_count};
    return made != NULL;
}

bool records_wave(Records *records, size_t count, BlockRecord **blocks)
{
    size_t *wave = list_add(&records->waves, 1, sizeof *wave);
    *blocks = NULL;
    if (wave == NULL)
        return false;
    *wave = records->blocks.count;
    if (!records->config->enable_l2_swimlane && !records->config->enable_pmu)
        return true;
    BlockRecord *made = list_add(&records->blocks, count, sizeof *made);
    for (size_t i = 0; made != NULL && i < count; i++)
        made[i].core = -1;
    *blocks = made;
    return made != NULL;
}

bool records_wave_end(Records *records, uint64_t heap, bool failed)
{
    const size_t first = records->waiting;
    if (!add_scope(records, false, 1, heap))
        return false;
    records->waiting = records->launches.count;
    for (size_t i = first; i < records->launches.count && !failed; i++)
        if (!dump_launch(records, i, NULL, 0, true))
            return false;
    return true;
}

/* ---------------------------------------------------------------- the files */

static int by_core(const void *a, const void *b)
{
    const BlockRecord *one = a, *other = b;
    if (one->core != other->core)
        return one->core < other->core ? -1 : 1;
    return (one->begin > other->begin) - (one->begin < other->begin);
}

/* Collect what ran, in the order in which each core has its numbers; false if there is no memory. */
static bool sort_blocks(const Records *records, Ran *ran)
{
    const BlockRecord *all = records->blocks.items;
    ran->count = 0;
    ran->blocks = malloc(records->blocks.count * sizeof *all + 1);
    for (size_t i = 0; ran->blocks != NULL && i < records->blocks.count; i++)
        if (all[i].core >= 0)
            ran->blocks[ran->count++] = all[i];
    if (ran->count > 0)
        qsort(ran->blocks, ran->count, sizeof *all, by_core);
    return ran->blocks != NULL;
}

const char *dtype_name(const SimplerContinuousTensor *tensor)
{
    static const char *const names[SIMPLER_DATA_TYPES] = SIMPLER_DTYPE_NAMES;
    return names[tensor->dtype];
}

void write_elements(FILE *file, const SimplerContinuousTensor *tensor)
{
    uint64_t strides[SIMPLER_MAX_DIMS], stride = 1;
    for (uint32_t d = tensor->ndims; d-- > 0; stride *= tensor->shapes[d])
        strides[d] = stride;
    fprintf(file, "\"dtype\": \"%s\", \"shape\": [", dtype_name(tensor));
    for (uint32_t d = 0; d < tensor->ndims; d++)
        fprintf(file, "%s%u", d > 0 ? ", " : "", tensor->shapes[d]);
    fprintf(file, "], \"strides\": [");
    for (uint32_t d = 0; d < tensor->ndims; d++)
        fprintf(file, "%s%" PRIu64, d > 0 ? ", " : "", strides[d]);
    fprintf(file, "]");
}

/* Make a folder and those above it. */
static bool make_folders(const char *folder)
{
    char path[SIMPLER_OUTPUT_PREFIX_SIZE];
    size_t size = strnlen(folder, sizeof path - 1);
    memcpy(path, folder, size);
    path[size] = '\0';
    for (size_t i = 1; i <= size; i++) {
        if (i < size && path[i] != '/')
            continue;
        char kept = path[i];
        path[i] = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return false;
        path[i] = kept;
    }
    return true;
}

enum { SWIMLANE, DEPS, DUMPS, SCOPES, COUNTS, FILES };
static const struct {
    const char *folder; /* below the prefix */
    const char *name;
} files[FILES] = {
    [SWIMLANE] = {"", "l2_swimlane_records.json"},
    [DEPS] = {"", "deps.json"},
    [DUMPS] = {"args_dump", "args_dump/args_dump.json"},
    [SCOPES] = {"scope_stats", "scope_stats/scope_stats.jsonl"},
    [COUNTS] = {"", "pmu.csv"},
};

static bool is_asked(const Records *records, int which)
{
    const SimplerCallConfig *config = records->config;
    const int32_t flags[FILES] = {
        [SWIMLANE] = config->enable_l2_swimlane, [DEPS] = config->enable_dep_gen,
        [DUMPS] = config->enable_dump_tensor,    [SCOPES] = config->enable_scope_stats,
        [COUNTS] = config->enable_pmu,
    };
    return flags[which] != 0;
}

static bool write_one(int folder, int which, const Records *records, const Ran *ran, bool failed)
{
    if (files[which].folder[0] != '\0' && mkdirat(folder, files[which].folder, 0777) != 0 && errno != EEXIST)
        return false;
    const int fd = openat(folder, files[which].name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (file == NULL) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    bool done = true;
    switch (which) {
    case SWIMLANE: write_swimlane(file, records, ran); break;
    case DEPS: done = write_deps(file, records); break;
    case DUMPS: write_dumps(file, records); break;
    case SCOPES: write_scopes(file, records, failed); break;
    case COUNTS: write_counts(file, records, ran); break;
    }
    done = done && !ferror(file);
    return fclose(file) == 0 && done && (which != DUMPS || dump_store(records, folder));
}

/* The folder of the files, which ends with a NUL. */
static void folder_of(const Records *records, char folder[SIMPLER_OUTPUT_PREFIX_SIZE])
{
    snprintf(folder, SIMPLER_OUTPUT_PREFIX_SIZE, "%.*s", SIMPLER_OUTPUT_PREFIX_SIZE - 1,
             records->config->output_prefix);
}

static bool complain(char *why, size_t room, const Records *records, const char *name, int error)
{
    char folder[SIMPLER_OUTPUT_PREFIX_SIZE];
    folder_of(records, folder);
    snprintf(why, room, "%s/%s cannot be written: %s", folder, name, strerror(error));
    return false;
}

static bool write_all(Records *records, const char *folder, bool failed, char *why, size_t room)
{
    Ran ran = {NULL, 0};
    bool done = true;
    const int fd = make_folders(folder) ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    const bool ready = fd >= 0 && flock(fd, LOCK_EX) == 0 && sort_blocks(records, &ran);
    for (int which = 0; which < FILES && done; which++)
        if (is_asked(records, which) && !(ready && write_one(fd, which, records, &ran, failed)))
            done = complain(why, room, records, files[which].name, errno);
    free(ran.blocks);
    if (fd >= 0)
        close(fd);
    return done;
}

bool records_begin(Records *records, const SimplerCallConfig *config, const char *name, char *why, size_t room)
{
    *records = (Records){.config = config, .name = name};
    const int32_t dumps = config->enable_dump_tensor;
    char folder[SIMPLER_OUTPUT_PREFIX_SIZE];
    folder_of(records, folder);
    if (dumps != 0 && !(make_folders(folder) && dump_open(records, folder)))
        return complain(why, room, records, "args_dump/args.bin", errno);
    if (add_scope(records, true, 0, 0) &&
        (config->enable_pmu == 0 || counters_open(&records->counters, config->enable_pmu, MAX_CORES)))
        return true;
    complain(why, room, records, "the files", ENOMEM);
    records_free(records);
    return false;
}

/* Rule FLAG-CHIP-1 */
bool records_write(Records *records, uint64_t heap, bool failed, char *why, size_t room)
{
    const int error = atomic_load(&records->counters.error);
    char folder[SIMPLER_OUTPUT_PREFIX_SIZE];
    folder_of(records, folder);
    if ((in_wave(records) && !add_scope(records, false, 1, heap)) || !add_scope(records, false, 0, heap))
        return complain(why, room, records, "the files", ENOMEM);
    if (!write_all(records, folder, failed, why, room))
        return false;
    return error == 0 || complain(why, room, records, files[COUNTS].name, error);
}

void records_free(Records *records)
{
    List *const lists[] = {&records->blocks, &records->launches, &records->waves,
                           &records->tensors, &records->dumps, &records->scopes};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        free(lists[i]->items);
    if (records->bin > 0)
        close(records->bin);
    counters_close(&records->counters, MAX_CORES);
    *records = (Records){0};
}
