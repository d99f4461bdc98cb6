#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "simpler_layout.h"

#define FILE_NAME "l2_swimlane_records.json"

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---------------------------------------------------------------- growing arrays */

/* Return an array with room for `wanted` items, the old one if it has; NULL if there is no memory. */
static void *with_room(void *items, size_t *room, size_t wanted, size_t size)
{
    if (wanted <= *room)
        return items;
    void *made = realloc(items, 2 * wanted * size);
    if (made != NULL)
        *room = 2 * wanted;
    return made;
}

bool records_launch(Records *records, int64_t begin, int64_t end)
{
    LaunchRecord *launches = with_room(records->launches, &records->launch_room,
                                       records->launched + 1, sizeof *launches);
    if (launches == NULL)
        return false;
    records->launches = launches;
    launches[records->launched++] = (LaunchRecord){begin, end};
    return true;
}

BlockRecord *records_wave(Records *records, size_t blocks)
{
    BlockRecord *all =
        with_room(records->blocks, &records->room, records->count + blocks, sizeof *all);
    if (all == NULL)
        return NULL;
    records->blocks = all;
    size_t *waves =
        with_room(records->waves, &records->wave_room, records->waved + 1, sizeof *waves);
    if (waves == NULL)
        return NULL;
    records->waves = waves;
    BlockRecord *made = all + records->count;
    for (size_t i = 0; i < blocks; i++)
        made[i] = (BlockRecord){.core = -1};
    waves[records->waved++] = records->count;
    records->count += blocks;
    return made;
}

void records_free(Records *records)
{
    free(records->blocks);
    free(records->launches);
    free(records->waves);
    *records = (Records){0};
}

/* ---------------------------------------------------------------- the file */

/* What ran, by core, then by time: the order in which each core has its numbers. */
static int by_core(const void *a, const void *b)
{
    const BlockRecord *one = a, *other = b;
    if (one->core != other->core)
        return one->core < other->core ? -1 : 1;
    return (one->begin > other->begin) - (one->begin < other->begin);
}

/* Rule FLAG-CHIP-2 */
static void write_cores(FILE *file, const BlockRecord *ran, size_t count, bool scheduled)
{
    size_t number = 0;
    fprintf(file, ",\n\"%s\": [", scheduled ? "aicpu_tasks" : "aicore_tasks");
    for (size_t i = 0; i < count; i++) {
        const BlockRecord *one = &ran[i];
        number = i > 0 && one[-1].core == one->core ? number + 1 : 0;
        const char *comma = i > 0 ? ", " : "";
        if (scheduled)
            fprintf(file, "%s[%d, %zu, %" PRId64 ", %" PRId64 "]", comma, one->core, number,
                    one->queued, one->seen);
        else
            fprintf(file, "%s[%d, %u, %zu, %" PRId64 ", %" PRId64 "]", comma, one->core,
                    one->launch, number, one->begin, one->end);
    }
    fprintf(file, "]");
}

/* One phase of each kind for a wave: handing out its blocks, and taking note of their ends.
 * Rule FLAG-CHIP-3 */
static void write_phases(FILE *file, const BlockRecord *wave, size_t count, size_t turn)
{
    int64_t first = INT64_MAX, last = 0, ended = INT64_MAX, seen = 0;
    size_t ran = 0;
    for (size_t i = 0; i < count; i++) {
        const BlockRecord *one = &wave[i];
        if (one->core < 0)
            continue;
        ran++;
        first = one->queued < first ? one->queued : first;
        last = one->queued > last ? one->queued : last;
        ended = one->end < ended ? one->end : ended;
        seen = one->seen > seen ? one->seen : seen;
    }
    if (ran == 0)
        return;
    fprintf(file,
            "%s{\"kind\": \"dispatch\", \"start_cycles\": %" PRId64 ", \"end_cycles\": %" PRId64
            ", \"loop_iter\": %zu, \"tasks_processed\": %zu, \"pop_hit\": %zu, \"pop_miss\": 0}",
            turn > 0 ? ", " : "", first, last, turn, ran, ran);
    fprintf(file,
            ", {\"kind\": \"complete\", \"start_cycles\": %" PRId64 ", \"end_cycles\": %" PRId64
            ", \"loop_iter\": %zu, \"tasks_processed\": %zu}",
            ended, seen, turn, ran);
}

static void write_scheduler(FILE *file, const Records *records)
{
    fprintf(file, ",\n\"aicpu_scheduler_phases\": [[");
    for (size_t i = 0; i < records->waved; i++) {
        size_t first = records->waves[i];
        size_t end = i + 1 < records->waved ? records->waves[i + 1] : records->count;
        write_phases(file, records->blocks + first, end - first, i);
    }
    fprintf(file, "]]");
}

static void write_orchestrator(FILE *file, const Records *records)
{
    fprintf(file, ",\n\"aicpu_orchestrator_phases\": [[");
    for (size_t i = 0; i < records->launched; i++)
        fprintf(file,
                "%s{\"submit_idx\": %zu, \"task_id\": %zu, \"start_cycles\": %" PRId64
                ", \"end_cycles\": %" PRId64 "}",
                i > 0 ? ", " : "", i, i, records->launches[i].begin, records->launches[i].end);
    fprintf(file, "]]");
}

static void write_list(FILE *file, const char *name, const char *item, int32_t count)
{
    fprintf(file, ", \"%s\": [", name);
    for (int32_t i = 0; i < count; i++)
        fprintf(file, "%s%s", i > 0 ? ", " : "", item);
    fprintf(file, "]");
}

/* Rule FLAG-CHIP-1 */
static void write_all(FILE *file, const Records *records, int level, const BlockRecord *ran,
                      size_t count)
{
    int32_t cores = count > 0 ? ran[count - 1].core + 1 : 0;
    fprintf(file, "{\"l2_swimlane_level\": %d,\n", level);
    fprintf(file, "\"metadata\": {\"clock_freq_hz\": 1000000000, \"num_cores\": %d", cores);
    write_list(file, "core_types", "\"aiv\"", cores);
    if (level >= 3)
        write_list(file, "core_to_thread", "0", cores);
    fprintf(file, "}");
    write_cores(file, ran, count, false);
    if (level >= 2)
        write_cores(file, ran, count, true);
    if (level >= 3)
        write_scheduler(file, records);
    if (level >= 4)
        write_orchestrator(file, records);
    fprintf(file, "}\n");
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

static bool write_into(int folder, const Records *records, int level)
{
    BlockRecord *ran = malloc(records->count * sizeof *ran + 1);
    int fd = ran == NULL ? -1
                         : openat(folder, FILE_NAME, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    bool done = false;
    if (file != NULL) {
        size_t count = 0;
        for (size_t i = 0; i < records->count; i++)
            if (records->blocks[i].core >= 0)
                ran[count++] = records->blocks[i];
        qsort(ran, count, sizeof *ran, by_core);
        write_all(file, records, level, ran, count);
        done = !ferror(file);
        done = fclose(file) == 0 && done;
    } else if (fd >= 0) {
        close(fd);
    }
    free(ran);
    return done;
}

bool records_write(const Records *records, int level, const char *folder, char *why, size_t room)
{
    int fd = make_folders(folder) ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool done = fd >= 0 && flock(fd, LOCK_EX) == 0 && write_into(fd, records, level);
    if (!done)
        snprintf(why, room, "%s/" FILE_NAME " cannot be written: %s", folder, strerror(errno));
    if (fd >= 0)
        close(fd);
    return done;
}
