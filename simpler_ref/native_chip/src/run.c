#define _GNU_SOURCE
#include "run.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shim.h"

#define MAX_THREADS 64 /* that feed cores, on hardware */

static const uint8_t element_sizes[SIMPLER_DATA_TYPES] = SIMPLER_DTYPE_SIZES;

/* ---------------------------------------------------------------- arguments */

/* Bytes of a tensor. Returns false, with a message, if its description makes no sense.
 * Rule CHIP-ARGS-3 */
static bool tensor_bytes(Chip *chip, const SimplerContinuousTensor *tensor, int32_t i, uint64_t *bytes)
{
    if (tensor->ndims > SIMPLER_MAX_DIMS || tensor->dtype >= SIMPLER_DATA_TYPES) {
        chip_fail(chip, PTO2_E_ARGS,
                  "tensor %d has %u dimensions and element type %u; at most %d and %d are known", i,
                  tensor->ndims, tensor->dtype, SIMPLER_MAX_DIMS, SIMPLER_DATA_TYPES - 1);
        return false;
    }
    uint64_t size = element_sizes[tensor->dtype];
    bool fits = true, empty = false;
    for (uint32_t d = 0; d < tensor->ndims; d++) {
        empty |= tensor->shapes[d] == 0;
        fits = fits && !__builtin_mul_overflow(size, tensor->shapes[d], &size);
    }
    *bytes = empty ? 0 : size;
    if (!empty && (!fits || tensor->data + size < tensor->data)) {
        chip_fail(chip, PTO2_E_ARGS, "tensor %d does not fit an address space", i);
        return false;
    }
    return true;
}

enum { WHAT_SIZE = 64 };

/* Say what a signature takes. */
static const char *describe(const Signature *expected, int32_t most, char text[WHAT_SIZE])
{
    const bool is_open = expected->scalars == 0;
    snprintf(text, WHAT_SIZE, "%d tensors and %s%d scalars", expected->tensors, is_open ? "up to " : "",
             is_open ? most : expected->scalars);
    return text;
}

/* Rule CHIP-ARGS-2, CHIP-ARGS-6 */
static int32_t check_args(Chip *chip, const Callable *callable, const SimplerChipStorageTaskArgs *args)
{
    const Signature *expected = &callable->signature;
    if (signature_takes(expected, SIMPLER_CHIP_MAX_SCALAR_ARGS, args->tensor_count_,
                        args->scalar_count_))
        return PTO2_OK;
    char takes[WHAT_SIZE];
    return chip_fail(chip, PTO2_E_ARGS, "%s takes %s by its signature, and got %d and %d", callable->name,
                     describe(expected, SIMPLER_CHIP_MAX_SCALAR_ARGS, takes), args->tensor_count_,
                     args->scalar_count_);
}

/* Rule CHIP-ARGS-4, CHIP-RUN-2 */
static int32_t check_config(Chip *chip, const SimplerCallConfig *config)
{
    if (config == NULL)
        return chip_fail(chip, PTO2_E_CONFIG, "the configuration is missing");
    if (config->block_dim < 0 || config->block_dim > chip->cores)
        return chip_fail(chip, PTO2_E_CONFIG,
                         "block_dim is %d; this chip has %d cores (0 stands for all of them)",
                         config->block_dim, chip->cores);
    if (config->aicpu_thread_num < 1 || config->aicpu_thread_num > MAX_THREADS)
        return chip_fail(chip, PTO2_E_CONFIG, "aicpu_thread_num is %d; give 1 to %d",
                         config->aicpu_thread_num, MAX_THREADS);
    return PTO2_OK;
}

/* ---------------------------------------------------------------- host tensors on the device
 *
 * Host tensors that overlap share one copy, so that on the device they overlap in the same way. Each
 * byte is copied in if a tensor that is read has it, and copied out if one that is written has it. */

typedef struct HostTensor {
    uint64_t host;
    uint64_t bytes;
    uint64_t device;
    int32_t index;
    uint8_t direction;
} HostTensor;

typedef struct Staging {
    int32_t count;
    HostTensor tensors[SIMPLER_CHIP_MAX_TENSOR_ARGS]; /* by host address */
} Staging;

static void insert_sorted(Staging *staging, HostTensor tensor)
{
    int32_t at = staging->count++;
    for (; at > 0 && staging->tensors[at - 1].host > tensor.host; at--)
        staging->tensors[at] = staging->tensors[at - 1];
    staging->tensors[at] = tensor;
}

/* Rule CHIP-MEM-4 */
static int32_t sort_tensors(Chip *chip, const Callable *callable,
                            const SimplerChipStorageTaskArgs *args, Staging *staging)
{
    staging->count = 0;
    for (int32_t i = 0; i < args->tensor_count_; i++) {
        const SimplerContinuousTensor *tensor = &args->tensors_[i];
        uint64_t bytes;
        if (!tensor_bytes(chip, tensor, i, &bytes))
            return PTO2_E_ARGS;
        if (bytes > 0 && !tensor->child_memory)
            insert_sorted(staging, (HostTensor){tensor->data, bytes, 0, i,
                                                callable->signature.directions[i]});
        else if (bytes > 0 && !arena_holds(&chip->arena, tensor->data, bytes))
            return chip_fail(chip, PTO2_E_ADDRESS,
                             "tensor %d has %llu bytes of device memory at 0x%llx, which are not inside "
                             "one live allocation of this chip%s",
                             i, (unsigned long long)bytes, (unsigned long long)tensor->data,
                             arena_owner(&chip->arena, tensor->data));
    }
    return PTO2_OK;
}

/* Give one piece of device memory to the tensors from `first` on that overlap; returns the next one.
 * Rule CHIP-RUN-3 */
static int32_t stage_overlapping(Chip *chip, Staging *staging, int32_t first)
{
    HostTensor *tensors = staging->tensors;
    uint64_t begin = tensors[first].host, end = begin + tensors[first].bytes;
    int32_t next = first + 1;
    for (; next < staging->count && tensors[next].host < end; next++)
        if (tensors[next].host + tensors[next].bytes > end)
            end = tensors[next].host + tensors[next].bytes;
    uint64_t device = arena_borrow(&chip->arena, end - begin);
    for (int32_t i = first; i < next; i++)
        tensors[i].device = device == 0 ? 0 : device + (tensors[i].host - begin);
    return next;
}

int32_t chip_no_room(Chip *chip, uint64_t bytes)
{
    const Arena *arena = &chip->arena;
    return chip_fail(chip, PTO2_E_MEMORY,
                     "the device has no room for %llu bytes in one piece: %llu of %llu are allocated "
                     "in %zu allocations; free some, or set SIMPLER_SIM_DEVICE_MEMORY",
                     (unsigned long long)bytes, (unsigned long long)arena->used,
                     (unsigned long long)(arena->end - arena->first), arena->count);
}

static int32_t stage_tensors(Chip *chip, Staging *staging)
{
    for (int32_t i = 0; i < staging->count;) {
        int32_t next = stage_overlapping(chip, staging, i);
        if (staging->tensors[i].device == 0)
            return chip_no_room(chip, staging->tensors[i].bytes);
        i = next;
    }
    return PTO2_OK;
}

/* Copy all tensors that have `direction` (IN or OUT) among theirs, no byte twice.
 * Rule CHIP-RUN-3, CHIP-FAULT-4 */
static int32_t copy_tensors(Chip *chip, const Staging *staging, int direction)
{
    uint64_t copied = 0; /* host bytes below are done */
    for (int32_t i = 0; i < staging->count; i++) {
        const HostTensor *tensor = &staging->tensors[i];
        uint64_t skip = copied > tensor->host ? copied - tensor->host : 0;
        if (!(tensor->direction & direction) || skip >= tensor->bytes)
            continue;
        char what[64];
        snprintf(what, sizeof what, "tensor %d", tensor->index);
        void *host = (void *)(uintptr_t)(tensor->host + skip);
        void *device = (void *)(uintptr_t)(tensor->device + skip);
        bool in = direction == SIMPLER_IN;
        int32_t status =
            chip_copy(chip, in ? device : host, in ? host : device, tensor->bytes - skip, what);
        if (status != PTO2_OK)
            return status;
        copied = tensor->host + tensor->bytes;
    }
    return PTO2_OK;
}

int32_t chip_copy(Chip *chip, void *to, const void *from, uint64_t size, const char *what)
{
    Fault fault;
    char text[128];
    if (faults_copy(to, from, size, &fault))
        return PTO2_OK;
    faults_describe(&fault, text, sizeof text);
    return chip_fail(chip, PTO2_E_ADDRESS,
                     "%s: the host memory of this copy of %llu bytes is not there: it %s", what,
                     (unsigned long long)size, text);
}

/* What the orchestration function sees: the same arguments, at device addresses. */
static void device_args(const SimplerChipStorageTaskArgs *args, const Staging *staging,
                        SimplerChipStorageTaskArgs *made)
{
    size_t tensors = (size_t)args->tensor_count_, scalars = (size_t)args->scalar_count_;
    memcpy(made->tensors_, args->tensors_, tensors * sizeof made->tensors_[0]);
    memcpy(made->scalars_, args->scalars_, scalars * sizeof made->scalars_[0]);
    made->tensor_count_ = args->tensor_count_;
    made->scalar_count_ = args->scalar_count_;
    for (int32_t i = 0; i < staging->count; i++)
        made->tensors_[staging->tensors[i].index].data = staging->tensors[i].device;
    for (size_t i = 0; i < tensors; i++)
        made->tensors_[i].child_memory = 1;
}

/* ---------------------------------------------------------------- the orchestration function */

typedef struct Run {
    SimplerDevice device; /* first: what the function holds is this */
    Chip *chip;
    const Callable *callable;
    SimplerChipStorageTaskArgs args;
    int32_t status; /* of the first error: nothing is launched after it */
    int32_t returned;
    Records *records; /* NULL if no flag is on */
} Run;

static int32_t note(Run *run, int32_t status)
{
    if (run->status == PTO2_OK)
        run->status = status;
    return status;
}

/* What the run has allocated. */
static uint64_t heap_of(const Run *run)
{
    return run->chip->arena.end - run->chip->arena.lowest;
}

static int32_t cannot_record(Run *run)
{
    return note(run, chip_fail(run->chip, PTO2_E_SYSTEM, "what the run's flags ask for cannot be recorded: %s",
                               strerror(errno)));
}

/* Rule CHIP-RUN-5 */
static int32_t barrier(SimplerDevice *device)
{
    Run *run = (Run *)device;
    Wave *wave = &run->chip->wave;
    if (run->status != PTO2_OK || wave->count == 0)
        return run->status;
    if (run->records != NULL && !records_wave(run->records, wave))
        return cannot_record(run);
    pool_run(&run->chip->pool, wave);
    int32_t status = atomic_load(&wave->status);
    if (status != PTO2_OK)
        chip_fail(run->chip, status, "%s: %s", run->callable->name, wave->text);
    note(run, status);
    if (run->records != NULL &&
        !records_wave_end(run->records, wave, heap_of(run), status != PTO2_OK) && status == PTO2_OK)
        status = cannot_record(run);
    wave->count = wave->items = 0;
    return status;
}

/* Rule CHIP-ARGS-6 */
static int32_t check_launch(Run *run, const Core *core, int32_t block_dim, int32_t tensor_count,
                            int32_t scalar_count)
{
    const Signature *expected = &core->signature;
    const bool is_unsigned = expected->tensors == 0 && expected->scalars == 0;
    if (block_dim < 1 || block_dim > run->chip->cores)
        return chip_fail(run->chip, PTO2_E_CONFIG,
                         "%s launches func_id %d over %d blocks; this chip has %d cores",
                         run->callable->name, core->func_id, block_dim, run->chip->cores);
    if (is_unsigned ? (uint32_t)tensor_count <= SIMPLER_CORE_MAX_TENSOR_ARGS &&
                          (uint32_t)scalar_count <= SIMPLER_CORE_MAX_SCALAR_ARGS
                    : signature_takes(expected, SIMPLER_CORE_MAX_SCALAR_ARGS, tensor_count, scalar_count))
        return PTO2_OK;
    char takes[WHAT_SIZE];
    if (is_unsigned)
        snprintf(takes, sizeof takes, "at most %d and %d", SIMPLER_CORE_MAX_TENSOR_ARGS,
                 SIMPLER_CORE_MAX_SCALAR_ARGS);
    else
        describe(expected, SIMPLER_CORE_MAX_SCALAR_ARGS, takes);
    return chip_fail(run->chip, PTO2_E_ARGS,
                     "%s launches func_id %d with %d tensors and %d scalars; %s takes %s",
                     run->callable->name, core->func_id, tensor_count, scalar_count,
                     is_unsigned ? "a kernel" : "by its signature it", takes);
}

/* A kernel gets device memory only: what is allocated, and what the run has. */
static int32_t check_launch_tensors(Run *run, const Launch *launch)
{
    Arena *arena = &run->chip->arena;
    for (int32_t i = 0; i < launch->args.tensor_count; i++) {
        const SimplerContinuousTensor *tensor = &launch->args.tensors[i];
        uint64_t bytes;
        if (!tensor_bytes(run->chip, tensor, i, &bytes))
            return PTO2_E_ARGS;
        if (bytes > 0 && !arena_holds(arena, tensor->data, bytes))
            return chip_fail(run->chip, PTO2_E_ADDRESS,
                             "%s launches func_id %d with %llu bytes at 0x%llx as tensor %d, which "
                             "are not device memory of this run%s",
                             run->callable->name, launch->core->func_id, (unsigned long long)bytes,
                             (unsigned long long)tensor->data, i, arena_owner(arena, tensor->data));
    }
    return PTO2_OK;
}

/* Rule CHIP-FAULT-1 */
static int32_t launch(SimplerDevice *device, int32_t func_id, int32_t block_dim,
                      const SimplerContinuousTensor *tensors, int32_t tensor_count,
                      const uint64_t *scalars, int32_t scalar_count)
{
    Run *run = (Run *)device;
    Wave *wave = &run->chip->wave;
    const Core *core = callable_core(run->callable, func_id);
    if (run->status == PTO2_OK && wave->count == MAX_LAUNCHES)
        barrier(device);
    if (run->status != PTO2_OK)
        return run->status;
    if (core == NULL)
        return note(run, chip_fail(run->chip, PTO2_E_ARGS, "%s launches func_id %d and has no such child",
                                   run->callable->name, func_id));
    int32_t blocks = block_dim == 0 ? device->block_dim : block_dim;
    if (note(run, check_launch(run, core, blocks, tensor_count, scalar_count)) != PTO2_OK)
        return run->status;
    const int64_t began = run->records != NULL ? now_ns() : 0;
    Launch *made = &wave->launches[wave->count];
    made->core = core;
    made->first = wave->items;
    made->args.block_dim = blocks;
    made->args.tensor_count = tensor_count;
    made->args.scalar_count = scalar_count;
    made->args.runtime_env = (uint64_t)(uintptr_t)&run->chip->env;
    if (tensor_count > 0) /* where there are none, their address may be NULL */
        memcpy(made->args.tensors, tensors, (size_t)tensor_count * sizeof *tensors);
    if (scalar_count > 0)
        memcpy(made->args.scalars, scalars, (size_t)scalar_count * sizeof *scalars);
    if (note(run, check_launch_tensors(run, made)) != PTO2_OK)
        return run->status;
    wave->count++;
    wave->items += (uint32_t)blocks;
    if (run->records != NULL)
        records_launch(run->records, wave, heap_of(run), began);
    return run->status;
}

/* Rule CHIP-RUN-5 */
static uint64_t borrow(SimplerDevice *device, uint64_t size)
{
    Run *run = (Run *)device;
    uint64_t at = arena_borrow(&run->chip->arena, size);
    if (at == 0)
        note(run, chip_no_room(run->chip, size));
    return at;
}

static int32_t fail(SimplerDevice *device, const char *text)
{
    Run *run = (Run *)device;
    if (run->status != PTO2_OK)
        return run->status;
    return note(run, chip_fail(run->chip, PTO2_E_ORCHESTRATION, "%s: %.500s", run->callable->name,
                               text == NULL ? "failed" : text));
}

static void orchestration_step(void *of)
{
    Run *run = of;
    run->returned = run->callable->entry(&run->device, &run->args);
}

/* Rule CHIP-FAULT-1 */
static int32_t orchestrate(Run *run)
{
    Chip *chip = run->chip;
    Fault fault;
    char text[128];
    if (!faults_guard(orchestration_step, run, &fault)) {
        faults_describe(&fault, text, sizeof text);
        return chip_fail(chip, PTO2_E_FAULT, "orchestration function %s %s", run->callable->name, text);
    }
    if (run->returned != 0 && run->status == PTO2_OK)
        return chip_fail(chip, PTO2_E_ORCHESTRATION, "orchestration function %s returned error %d",
                         run->callable->name, run->returned);
    return barrier(&run->device);
}

/* ---------------------------------------------------------------- the run */

static void begin(Run *run, Chip *chip, const Callable *callable, const SimplerCallConfig *config)
{
    run->device = (SimplerDevice){
        .size = sizeof run->device,
        .block_dim = config->block_dim == 0 ? chip->cores : config->block_dim,
        .launch = launch,
        .barrier = barrier,
        .alloc = borrow,
        .fail = fail,
        .runtime_env = &chip->env,
    };
    run->chip = chip;
    run->callable = callable;
    run->status = PTO2_OK;
    run->returned = 0;
    run->records = records_asked(config) ? &chip->records : NULL;
    chip->wave.records = NULL;
    chip->wave.count = chip->wave.items = 0;
    atomic_store_explicit(&chip->wave.status, PTO2_OK, memory_order_relaxed);
}

static int32_t run_staged(Run *run, const SimplerChipStorageTaskArgs *args, Staging *staging)
{
    Chip *chip = run->chip;
    int32_t status = stage_tensors(chip, staging);
    if (status == PTO2_OK)
        status = copy_tensors(chip, staging, SIMPLER_IN);
    if (status != PTO2_OK)
        return status;
    device_args(args, staging, &run->args);
    int64_t began = now_ns();
    status = orchestrate(run);
    if (status != PTO2_OK)
        return status;
    chip->device_wall_ns = now_ns() - began;
    return copy_tensors(chip, staging, SIMPLER_OUT);
}

/* Run, and record it, also if it fails: then that is the error that counts. */
static int32_t run_recorded(Run *run, const SimplerChipStorageTaskArgs *args, Staging *staging,
                            const SimplerCallConfig *config)
{
    Records *records = run->records;
    if (!records_begin(records, config, run->callable->name))
        return cannot_record(run);
    int32_t status = run_staged(run, args, staging);
    if (!records_wave_end(records, &run->chip->wave, heap_of(run), true) && status == PTO2_OK)
        status = cannot_record(run);
    records_end(records);
    return status;
}

/* Rule CHIP-RUN-1 */
int32_t chip_run(Chip *chip, const Callable *callable, const SimplerChipStorageTaskArgs *args,
                 const SimplerCallConfig *config)
{
    Run run;
    Staging staging;
    int32_t status = check_config(chip, config);
    if (status == PTO2_OK)
        status = check_args(chip, callable, args);
    if (status == PTO2_OK)
        status = sort_tensors(chip, callable, args, &staging);
    if (status == PTO2_OK && records_asked(config) && !chip->recording)
        status = chip_fail(chip, PTO2_E_RECORDING,
                           "diagnostics are on, and nobody takes what they record: call pto2_record first");
    if (status != PTO2_OK)
        return status;
    faults_enter_thread();
    begin(&run, chip, callable, config);
    status = run.records != NULL ? run_recorded(&run, args, &staging, config)
                                 : run_staged(&run, args, &staging);
    arena_return_all(&chip->arena);
    return status;
}
