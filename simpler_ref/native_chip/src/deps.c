/* `deps.json`: the launches of a run with their tensors, and the order that barriers put them into. */
#include "records.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *const types[] = {
    [SIMPLER_IN] = "INPUT", [SIMPLER_OUT] = "OUTPUT_EXISTING", [SIMPLER_INOUT] = "INOUT"};

/* Tensors that begin at one address share a buffer. */
typedef struct Buffer {
    uint64_t address;
    uint64_t elements;
    const SimplerContinuousTensor *first;
} Buffer;

typedef struct Buffers {
    Buffer *all;
    size_t count;
} Buffers;

static int by_address(const void *a, const void *b)
{
    const Buffer *one = a, *other = b;
    if (one->address != other->address)
        return one->address < other->address ? -1 : 1;
    return one->first < other->first ? -1 : 1; /* of an address, the one launched first comes first */
}

static int same_address(const void *a, const void *b)
{
    const Buffer *one = a, *other = b;
    return (one->address > other->address) - (one->address < other->address);
}

/* Buffers by address; none if there is no memory. */
static Buffers collect(const Records *records)
{
    const SimplerContinuousTensor *tensors = records->tensors.items;
    Buffers found = {calloc(records->tensors.count + 1, sizeof *found.all), 0};
    if (found.all == NULL)
        return found;
    for (size_t i = 0; i < records->tensors.count; i++)
        found.all[i] = (Buffer){tensors[i].data, simpler_elements(&tensors[i]), &tensors[i]};
    qsort(found.all, records->tensors.count, sizeof *found.all, by_address);
    for (size_t i = 0; i < records->tensors.count; i++) {
        Buffer *last = found.all + found.count - 1, *one = found.all + i;
        if (found.count == 0 || last->address != one->address)
            found.all[found.count++] = *one;
        else if (one->elements > last->elements)
            last->elements = one->elements;
    }
    return found;
}

static size_t number_of(const Buffers *buffers, uint64_t address)
{
    const Buffer wanted = {.address = address};
    const Buffer *found =
        bsearch(&wanted, buffers->all, buffers->count, sizeof wanted, same_address);
    return found == NULL ? 0 : (size_t)(found - buffers->all);
}

static void write_task(FILE *file, const Records *records, const Buffers *buffers, size_t i)
{
    const LaunchRecord *launch = launch_record(records, i);
    fprintf(file, "%s{\"task_id\": \"%zu\", \"scope\": \"manual\", \"kernel_ids\": [-1, %d, -1], \"args\": [",
            i > 0 ? ",\n" : "", i, launch->core->func_id);
    for (int32_t k = 0; k < launch->tensor_count; k++) {
        const SimplerContinuousTensor *tensor = tensor_record(records, launch, k);
        fprintf(file, "%s{\"idx\": %d, \"type\": \"%s\", \"tensor_id\": \"%zu\", ", k > 0 ? ", " : "", k,
                types[launch->core->signature.directions[k]], number_of(buffers, tensor->data));
        write_elements(file, tensor);
        fprintf(file, ", \"start_offset\": \"0\"}");
    }
    fprintf(file, "]}");
}

static void write_buffer(FILE *file, const Buffers *buffers, size_t i)
{
    const Buffer *one = &buffers->all[i];
    fprintf(file, "%s{\"tensor_id\": \"%zu\", \"buffer_addr\": \"%" PRIu64 "\", \"version\": 0, ",
            i > 0 ? ",\n" : "", i, one->address);
    fprintf(file, "\"dtype\": \"%s\", \"buffer_numel\": \"%" PRIu64 "\"}", dtype_name(one->first), one->elements);
}

/* Each launch runs after those of the wave before. */
static void write_edges(FILE *file, const Records *records)
{
    size_t before = 0, wave = 0; /* where the wave before begins, and that of this launch */
    const char *comma = "";
    for (size_t i = 0; i < records->launches.count; i++) {
        if (launch_record(records, i)->wave != launch_record(records, wave)->wave) {
            before = wave;
            wave = i;
        }
        for (size_t k = before; k < wave; k++) {
            fprintf(file, "%s{\"pred\": \"%zu\", \"succ\": \"%zu\", \"arg\": -1, \"source\": \"explicit\"}", comma,
                    k, i);
            comma = ",\n";
        }
    }
}

/* Rule FLAG-CHIP-5 */
bool write_deps(FILE *file, const Records *records)
{
    Buffers buffers = collect(records);
    if (buffers.all == NULL)
        return false;
    fprintf(file, "{\"tasks\": [");
    for (size_t i = 0; i < records->launches.count; i++)
        write_task(file, records, &buffers, i);
    fprintf(file, "],\n\"tensors\": [");
    for (size_t i = 0; i < buffers.count; i++)
        write_buffer(file, &buffers, i);
    fprintf(file, "],\n\"edges\": [");
    write_edges(file, records);
    fprintf(file, "]}\n");
    free(buffers.all);
    return true;
}
