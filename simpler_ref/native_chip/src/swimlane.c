/* `l2_swimlane_records.json`: which core ran which block, when. */
#include "records.h"

#include <inttypes.h>

/* Rule FLAG-CHIP-2 */
static void write_cores(FILE *file, const Ran *ran, bool scheduled)
{
    size_t number = 0;
    fprintf(file, ",\n\"%s\": [", scheduled ? "aicpu_tasks" : "aicore_tasks");
    for (size_t i = 0; i < ran->count; i++) {
        const BlockRecord *one = &ran->blocks[i];
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
    const BlockRecord *blocks = records->blocks.items;
    const size_t *waves = records->waves.items, waved = records->waves.count;
    fprintf(file, ",\n\"aicpu_scheduler_phases\": [[");
    for (size_t i = 0; i < waved; i++) {
        size_t end = i + 1 < waved ? waves[i + 1] : records->blocks.count;
        write_phases(file, blocks + waves[i], end - waves[i], i);
    }
    fprintf(file, "]]");
}

static void write_orchestrator(FILE *file, const Records *records)
{
    fprintf(file, ",\n\"aicpu_orchestrator_phases\": [[");
    for (size_t i = 0; i < records->launches.count; i++)
        fprintf(file,
                "%s{\"submit_idx\": %zu, \"task_id\": %zu, \"start_cycles\": %" PRId64
                ", \"end_cycles\": %" PRId64 "}",
                i > 0 ? ", " : "", i, i, launch_record(records, i)->begin, launch_record(records, i)->end);
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
void write_swimlane(FILE *file, const Records *records, const Ran *ran)
{
    const int32_t level = records->config->enable_l2_swimlane;
    const int32_t cores = ran->count > 0 ? ran->blocks[ran->count - 1].core + 1 : 0;
    fprintf(file, "{\"l2_swimlane_level\": %d,\n", level);
    fprintf(file, "\"metadata\": {\"clock_freq_hz\": 1000000000, \"num_cores\": %d", cores);
    write_list(file, "core_types", "\"aiv\"", cores);
    if (level >= 3)
        write_list(file, "core_to_thread", "0", cores);
    fprintf(file, "}");
    write_cores(file, ran, false);
    if (level >= 2)
        write_cores(file, ran, true);
    if (level >= 3)
        write_scheduler(file, records);
    if (level >= 4)
        write_orchestrator(file, records);
    fprintf(file, "}\n");
}
