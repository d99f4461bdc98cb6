/* The reference runtime.so: a simulated chip. Here are its entry points. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "run.h"

#define EXPORT __attribute__((visibility("default")))
#define DEFAULT_MEMORY (1ULL << 30)
#define DEFAULT_CORES 48

static Chip chip;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

int32_t chip_fail(Chip *of, int32_t status, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    vsnprintf(of->text, sizeof of->text, format, values);
    va_end(values);
    return status;
}

/* Threads do not survive a fork, and the memory is not passed on.
 * Rule CHIP-LIFE-2 */
static void after_fork(void)
{
    atomic_store(&chip.forked, chip.open);
}

static int32_t refuse(void)
{
    return chip_fail(&chip, PTO2_E_STATE,
                     atomic_load(&chip.forked)
                         ? "this process was forked from the one that opened the chip; a chip "
                           "belongs to the process that called pto2_init"
                         : "the chip is not open; call pto2_init first");
}

/* Begin a call. Returns false, with a message, if there is no chip in this process. */
static bool enter(void)
{
    if (!atomic_load_explicit(&chip.forked, memory_order_relaxed)) {
        pthread_mutex_lock(&one_at_a_time);
        if (chip.open)
            return true;
        pthread_mutex_unlock(&one_at_a_time);
    }
    refuse();
    return false;
}

static int32_t leave(int32_t status)
{
    pthread_mutex_unlock(&one_at_a_time);
    return status;
}

EXPORT const char *pto2_last_error(void)
{
    return chip.text;
}

EXPORT int64_t pto2_device_wall_ns(void)
{
    return chip.device_wall_ns;
}

/* ---------------------------------------------------------------- open and close */

/* A number from the environment, `fallback` if it is not set; false, with a message, if it is invalid. */
static bool setting(const char *name, uint64_t fallback, uint64_t most, uint64_t *value)
{
    const char *text = getenv(name);
    char *end;
    *value = fallback;
    if (text == NULL || *text == '\0')
        return true;
    errno = 0;
    *value = strtoull(text, &end, 10);
    if (errno == 0 && *end == '\0' && *text >= '0' && *text <= '9' && *value >= 1 && *value <= most)
        return true;
    chip_fail(&chip, PTO2_E_CONFIG, "%s is \"%.100s\"; give a number from 1 to %llu", name, text,
              (unsigned long long)most);
    return false;
}

static int32_t open_chip(int32_t device_id)
{
    static bool fork_watched;
    uint64_t memory, cores;
    if (device_id < 0)
        return chip_fail(&chip, PTO2_E_CONFIG, "device_id is %d; give 0 or more", device_id);
    if (!setting("SIMPLER_SIM_DEVICE_MEMORY", DEFAULT_MEMORY, 1ULL << 44, &memory) ||
        !setting("SIMPLER_SIM_CORES", DEFAULT_CORES, MAX_CORES, &cores))
        return PTO2_E_CONFIG;
    if ((uint64_t)device_id >= arena_devices(memory))
        return chip_fail(&chip, PTO2_E_CONFIG,
                         "there are no addresses for device %d: with %llu bytes of memory each, there are "
                         "some for devices 0 to %llu; give a lower device_id, or set "
                         "SIMPLER_SIM_DEVICE_MEMORY to less",
                         device_id, (unsigned long long)memory,
                         (unsigned long long)arena_devices(memory) - 1);
    if (!fork_watched && pthread_atfork(NULL, NULL, after_fork) != 0)
        return chip_fail(&chip, PTO2_E_SYSTEM, "no memory");
    fork_watched = true;
    if (!arena_open(&chip.arena, memory, device_id))
        return chip_fail(&chip, PTO2_E_MEMORY,
                         "the system has no %llu bytes of address space for the device's memory: %s; "
                         "set SIMPLER_SIM_DEVICE_MEMORY to less",
                         (unsigned long long)memory, strerror(errno));
    if (!faults_install()) {
        arena_close(&chip.arena);
        return chip_fail(&chip, PTO2_E_SYSTEM, "no signal handlers: %s", strerror(errno));
    }
    chip.cores = (int32_t)cores;
    chip.device_wall_ns = 0;
    chip.env = (SimplerRuntimeEnv){0};
    chip.open = true;
    return PTO2_OK;
}

EXPORT int32_t pto2_init(int32_t device_id)
{
    if (atomic_load(&chip.forked))
        return refuse();
    pthread_mutex_lock(&one_at_a_time);
    if (chip.open)
        return leave(chip_fail(&chip, PTO2_E_STATE, "the chip is already open"));
    return leave(open_chip(device_id));
}

EXPORT int32_t pto2_finalize(void)
{
    if (!enter())
        return PTO2_E_STATE;
    pool_close(&chip.pool);
    for (int32_t slot = 0; slot < MAX_SLOTS; slot++) {
        if (chip.slots[slot] != NULL)
            callable_close(chip.slots[slot]);
        chip.slots[slot] = NULL;
    }
    arena_close(&chip.arena);
    faults_uninstall();
    faults_leave_thread();
    chip.open = false;
    return leave(PTO2_OK);
}

/* ---------------------------------------------------------------- callables */

/* Rule CHIP-SLOT-1 */
static bool is_slot(int32_t local_slot)
{
    if (local_slot >= 0 && local_slot < MAX_SLOTS)
        return true;
    chip_fail(&chip, PTO2_E_SLOT, "there is no local slot %d; they are 0 to %d", local_slot,
              MAX_SLOTS - 1);
    return false;
}

static Callable *callable_in(int32_t local_slot)
{
    if (is_slot(local_slot) && chip.slots[local_slot] == NULL)
        chip_fail(&chip, PTO2_E_SLOT, "local slot %d is empty: no callable was prepared there",
                  local_slot);
    else if (is_slot(local_slot))
        return chip.slots[local_slot];
    return NULL;
}

/* Read from a copy: the blob may be in shared memory, and may not be there at all. */
static int32_t prepare(int32_t local_slot, const void *blob, uint64_t size)
{
    char why[768];
    void *copy = size == 0 || size > PTRDIFF_MAX ? NULL : malloc(size);
    if (copy == NULL)
        return chip_fail(&chip, PTO2_E_BLOB, "a callable of %llu bytes cannot be prepared",
                         (unsigned long long)size);
    int32_t status = chip_copy(&chip, copy, blob, size, "the callable");
    if (status == PTO2_OK) {
        status = callable_open(copy, size, &chip.slots[local_slot], why, sizeof why);
        if (status == PTO2_E_BLOB)
            chip_fail(&chip, status, "this is no ChipCallable: %s", why);
        else if (status != PTO2_OK)
            chip_fail(&chip, status, "%s", why);
    }
    free(copy);
    return status;
}

EXPORT int32_t pto2_prepare_callable(int32_t local_slot, const void *blob, uint64_t size)
{
    if (!enter())
        return PTO2_E_STATE;
    if (!is_slot(local_slot))
        return leave(PTO2_E_SLOT);
    if (chip.slots[local_slot] != NULL)
        return leave(chip_fail(&chip, PTO2_E_SLOT, "local slot %d holds %s; unregister that first",
                               local_slot, chip.slots[local_slot]->name));
    return leave(prepare(local_slot, blob, size));
}

EXPORT int32_t pto2_unregister_callable(int32_t local_slot)
{
    if (!enter())
        return PTO2_E_STATE;
    Callable *callable = callable_in(local_slot);
    if (callable == NULL)
        return leave(PTO2_E_SLOT);
    chip.slots[local_slot] = NULL;
    callable_close(callable);
    return leave(PTO2_OK);
}

EXPORT int32_t pto2_run_runtime(int32_t local_slot, const SimplerChipStorageTaskArgs *args,
                                const SimplerCallConfig *config)
{
    if (!enter())
        return PTO2_E_STATE;
    Callable *callable = callable_in(local_slot);
    int32_t status = callable == NULL ? PTO2_E_SLOT : chip_run(&chip, callable, args, config);
    chip.recording = false;
    return leave(status);
}

/* Rule FLOW-ENV-1 */
EXPORT int32_t pto2_set_runtime_env(const SimplerRuntimeEnv *env)
{
    if (!enter())
        return PTO2_E_STATE;
    chip.env = *env;
    return leave(PTO2_OK);
}

EXPORT int32_t pto2_record(const SimplerRecording *recording)
{
    if (!enter())
        return PTO2_E_STATE;
    chip.records.to = *recording;
    chip.recording = true;
    return leave(PTO2_OK);
}

/* ---------------------------------------------------------------- memory */

EXPORT uint64_t pto2_malloc(uint64_t size)
{
    if (!enter())
        return 0;
    uint64_t address = arena_malloc(&chip.arena, size);
    if (size == 0)
        chip_fail(&chip, PTO2_E_MEMORY, "an allocation of 0 bytes; give a positive size");
    else if (address == 0)
        chip_no_room(&chip, size);
    leave(PTO2_OK);
    return address;
}

EXPORT int32_t pto2_free(uint64_t address)
{
    if (!enter())
        return PTO2_E_STATE;
    if (arena_free(&chip.arena, address))
        return leave(PTO2_OK);
    return leave(chip_fail(&chip, PTO2_E_ADDRESS,
                           "no live allocation begins at 0x%llx; it was freed already, or is not this "
                           "chip's%s",
                           (unsigned long long)address, arena_owner(&chip.arena, address)));
}

static int32_t copy(uint64_t device, void *to, const void *from, uint64_t size, const char *what)
{
    if (!enter())
        return PTO2_E_STATE;
    if (arena_holds(&chip.arena, device, size))
        return leave(chip_copy(&chip, to, from, size, what));
    return leave(chip_fail(&chip, PTO2_E_ADDRESS,
                           "the %llu bytes at device address 0x%llx are not inside one live allocation%s",
                           (unsigned long long)size, (unsigned long long)device,
                           arena_owner(&chip.arena, device)));
}

EXPORT int32_t pto2_copy_to(uint64_t device, const void *host, uint64_t size)
{
    return copy(device, (void *)(uintptr_t)device, host, size, "copy_to");
}

EXPORT int32_t pto2_copy_from(void *host, uint64_t device, uint64_t size)
{
    return copy(device, host, (const void *)(uintptr_t)device, size, "copy_from");
}

/* ---------------------------------------------------------------- windows that devices share */

EXPORT int32_t pto2_open_window(uint64_t address, uint64_t size)
{
    if (!enter())
        return PTO2_E_STATE;
    if (arena_open_window(&chip.arena, address, size))
        return leave(PTO2_OK);
    return leave(chip_fail(&chip, PTO2_E_SYSTEM, "no memory"));
}

EXPORT int32_t pto2_close_window(uint64_t address)
{
    if (!enter())
        return PTO2_E_STATE;
    if (arena_close_window(&chip.arena, address))
        return leave(PTO2_OK);
    return leave(chip_fail(&chip, PTO2_E_ADDRESS, "no window is open at 0x%llx",
                           (unsigned long long)address));
}
