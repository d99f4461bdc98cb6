/* `scope_stats/scope_stats.jsonl`: what the run held whenever it or a wave began or ended. */
#include "records.h"

#include <inttypes.h>

#define VERSION 6

/* A name of letters that JSON may have to be told of. */
static void write_text(FILE *file, const char *text)
{
    for (; *text != '\0'; text++)
        fprintf(file, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
}

static void write_line(FILE *file, const Records *records, const ScopeRecord *one)
{
    fprintf(file, "{\"site\": \"");
    write_text(file, records->name);
    fprintf(file,
            "\", \"phase\": \"%s\", \"depth\": %d, \"ring\": 0, \"task_window_start\": %zu, "
            "\"task_window_end\": %zu, \"heap_start\": 0, \"heap_end\": %" PRIu64
            ", \"dep_pool_start\": 0, \"dep_pool_end\": 0, \"tensormap\": 0}\n",
            one->begins ? "begin" : "end", one->depth, one->given_back, one->launched, one->heap);
}

/* Rule FLAG-CHIP-8 */
void write_scopes(FILE *file, const Records *records, bool failed)
{
    const ScopeRecord *all = records->scopes.items;
    size_t most = 0;
    uint64_t heap = 0;
    for (size_t i = 0; i < records->scopes.count; i++) {
        const size_t held = all[i].launched - all[i].given_back;
        most = held > most ? held : most;
        heap = all[i].heap > heap ? all[i].heap : heap;
    }
    fprintf(file,
            "{\"version\": %d, \"fatal\": %s, \"dropped\": 0, \"total\": %zu, \"task_window_max\": [%zu], "
            "\"heap_max\": [%" PRIu64 "], \"dep_pool_max\": [0], \"tensormap_max\": 0}\n",
            VERSION, failed ? "true" : "false", records->scopes.count, most, heap);
    for (size_t i = 0; i < records->scopes.count; i++)
        write_line(file, records, &all[i]);
}
