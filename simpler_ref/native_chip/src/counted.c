/* `pmu.csv`: what counters counted during each block. */
#include "records.h"

#include <inttypes.h>

/* Rule FLAG-CHIP-9 */
void write_counts(FILE *file, const Records *records, const Ran *ran)
{
    const Counters *counters = &records->counters;
    fprintf(file, "thread_id,core_id,task_id,func_id,core_type,pmu_total_cycles");
    for (int i = 1; i < counters->count; i++)
        fprintf(file, ",%s", counters_name(counters, i));
    fprintf(file, ",event_type\n");
    for (size_t i = 0; i < ran->count; i++) {
        const BlockRecord *one = &ran->blocks[i];
        fprintf(file, "0,%d,0x%x,%d,aiv", one->core, one->launch,
                launch_record(records, one->launch)->core->func_id);
        for (int k = 0; k < counters->count; k++)
            fprintf(file, ",%" PRIu64, one->counts[k]);
        fprintf(file, ",%d\n", counters->event_type);
    }
}
