/* `args_dump/`: what launches read and what they wrote, a manifest and the bytes.
 *
 * The bytes are written into a file without a name, since what is dumped has to be read before and after
 * each wave, while the files of a folder belong to the run that ends last. */
#define _GNU_SOURCE
#include "records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIN "args_dump/args.bin"
#define CHUNK (1 << 24) /* bytes that are copied at once */

enum { MARKED = 1, ALL = 2, WITHOUT_BYTES = 3 }; /* levels */

/* Where a file cannot be made without a name, it gets one for a moment. */
static int open_nameless(const char *folder)
{
    char path[SIMPLER_OUTPUT_PREFIX_SIZE + 16];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        snprintf(path, sizeof path, "%s/.argsXXXXXX", folder);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    return fd;
}

bool dump_open(Records *records, const char *folder)
{
    if (records->config->enable_dump_tensor == WITHOUT_BYTES)
        return true;
    int fd = open_nameless(folder);
    if (fd == 0) { /* which stands for no file */
        fd = fcntl(0, F_DUPFD_CLOEXEC, 1);
        close(0);
    }
    records->bin = fd;
    return fd > 0;
}

/* Append memory; returns how many bytes, fewer if not all of it is there. */
static int64_t append(const Records *records, const void *from, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        const uint64_t part = bytes - done < CHUNK ? bytes - done : CHUNK;
        const ssize_t written = write(records->bin, (const char *)from + done, part);
        if (written < 0 && errno != EINTR && errno != EFAULT)
            return -1;
        if (written == 0 || (written < 0 && errno == EFAULT))
            break;
        done += written > 0 ? (uint64_t)written : 0;
    }
    return (int64_t)done;
}

static bool dump_one(Records *records, size_t launch, int32_t index, bool after, const void *from,
                     uint64_t bytes)
{
    const off_t at = records->bin > 0 ? lseek(records->bin, 0, SEEK_CUR) : 0;
    const int64_t written = records->bin > 0 ? append(records, from, bytes) : 0;
    DumpRecord *made = written < 0 ? NULL : list_add(&records->dumps, 1, sizeof *made);
    if (made != NULL)
        *made = (DumpRecord){launch, index, after, (uint64_t)at, (uint64_t)written};
    return made != NULL;
}

static uint64_t bytes_of(const SimplerContinuousTensor *tensor)
{
    static const uint8_t sizes[SIMPLER_DATA_TYPES] = SIMPLER_DTYPE_SIZES;
    return simpler_elements(tensor) * sizes[tensor->dtype];
}

/* Rule FLAG-CHIP-6, -7 */
bool dump_launch(Records *records, size_t launch, const uint64_t *scalars, int32_t scalar_count, bool after)
{
    const int32_t level = records->config->enable_dump_tensor;
    const LaunchRecord *one = launch_record(records, launch);
    for (int32_t i = 0; i < one->tensor_count && level != 0; i++) {
        const SimplerContinuousTensor *tensor = tensor_record(records, one, i);
        const bool due = one->core->signature.directions[i] & (after ? SIMPLER_OUT : SIMPLER_IN);
        if (due && (level != MARKED || simpler_is_marked(tensor)) &&
            !dump_one(records, launch, i, after, (const void *)(uintptr_t)tensor->data, bytes_of(tensor)))
            return false;
    }
    for (int32_t i = 0; i < scalar_count && level >= ALL && !after; i++)
        if (!dump_one(records, launch, one->tensor_count + i, false, &scalars[i], sizeof scalars[i]))
            return false;
    return true;
}

/* ---------------------------------------------------------------- the files */

/* Rule FLAG-CHIP-6; FLAG-DUMP-4 */
bool dump_store(const Records *records, int folder)
{
    if (records->bin == 0)
        return unlinkat(folder, BIN, 0) == 0 || errno == ENOENT;
    const int to = openat(folder, BIN, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    off_t at = 0;
    const off_t end = lseek(records->bin, 0, SEEK_END);
    while (to >= 0 && at < end && sendfile(to, records->bin, &at, CHUNK) > 0)
        continue;
    return to >= 0 && close(to) == 0 && at == end;
}

static bool is_truncated(const Records *records, const DumpRecord *one)
{
    const LaunchRecord *launch = launch_record(records, one->launch);
    return records->bin > 0 && one->index < launch->tensor_count &&
           one->bytes < bytes_of(tensor_record(records, launch, one->index));
}

static void write_entry(FILE *file, const Records *records, const DumpRecord *one)
{
    const LaunchRecord *launch = launch_record(records, one->launch);
    const bool is_tensor = one->index < launch->tensor_count;
    const bool is_inout = is_tensor && launch->core->signature.directions[one->index] == SIMPLER_INOUT;
    fprintf(file, "{\"task_id\": \"0x%zx\", \"func_id\": %d, \"role\": \"%s\", \"stage\": \"%s\", ", one->launch,
            launch->core->func_id, is_inout ? "inout" : one->after ? "output" : "input",
            one->after ? "after_completion" : "before_dispatch");
    fprintf(file, "\"arg_index\": %d, \"kind\": \"%s\", ", one->index, is_tensor ? "tensor" : "scalar");
    if (is_tensor)
        write_elements(file, tensor_record(records, launch, one->index));
    else
        fprintf(file, "\"dtype\": \"UINT64\", \"shape\": [], \"strides\": []");
    fprintf(file,
            ", \"start_offset\": 0, \"is_contiguous\": true, \"truncated\": %s, \"overwritten\": false, "
            "\"bin_offset\": %" PRIu64 ", \"bin_size\": %" PRIu64 "}",
            is_truncated(records, one) ? "true" : "false", one->at, one->bytes);
}

void write_dumps(FILE *file, const Records *records)
{
    const DumpRecord *all = records->dumps.items;
    const size_t count = records->dumps.count;
    size_t tensors = 0, truncated = 0;
    for (size_t i = 0; i < count; i++) {
        tensors += all[i].index < launch_record(records, all[i].launch)->tensor_count;
        truncated += is_truncated(records, &all[i]);
    }
    fprintf(file,
            "{\"dump_tensor_level\": %d, \"bin_file\": %s, \"bin_format\": \"little-endian elements, row by row\",\n"
            "\"total_args\": %zu, \"total_tensors\": %zu, \"total_scalars\": %zu, \"truncated_args\": %zu, "
            "\"dropped\": 0,\n\"args\": [",
            records->config->enable_dump_tensor, records->bin > 0 ? "\"args.bin\"" : "null", count, tensors,
            count - tensors, truncated);
    for (size_t i = 0; i < count; i++) {
        fprintf(file, "%s", i > 0 ? ",\n" : "");
        write_entry(file, records, &all[i]);
    }
    fprintf(file, "]}\n");
}
