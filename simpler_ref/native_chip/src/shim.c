/* The host's side of a chip: loads a runtime.so and calls it. Python calls this through ctypes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image.h"
#include "simpler_l2.h"

#define EXPORT __attribute__((visibility("default")))
#define SIMPLER_CALL EXPORT
#include "simpler_domain_calls.h"

#define TEXT_SIZE 1024

/* The entry points of a runtime: name, result, parameters. */
#define ENTRY_POINTS(X)                                                                            \
    X(init, int32_t, (int32_t))                                                                    \
    X(finalize, int32_t, (void))                                                                   \
    X(prepare_callable, int32_t, (int32_t, const void *, uint64_t))                                \
    X(unregister_callable, int32_t, (int32_t))                                                     \
    X(run_runtime, int32_t,                                                                        \
      (int32_t, const SimplerChipStorageTaskArgs *, const SimplerCallConfig *))                    \
    X(malloc, uint64_t, (uint64_t))                                                                \
    X(free, int32_t, (uint64_t))                                                                   \
    X(copy_to, int32_t, (uint64_t, const void *, uint64_t))                                        \
    X(copy_from, int32_t, (void *, uint64_t, uint64_t))                                            \
    X(last_error, const char *, (void))                                                            \
    X(device_wall_ns, int64_t, (void))

/* Those that a runtime may lack. */
#define OPTIONAL_ENTRY_POINTS(X)                                                                   \
    X(open_window, int32_t, (uint64_t, uint64_t))                                                  \
    X(close_window, int32_t, (uint64_t))                                                           \
    X(record, int32_t, (const SimplerRecording *))                                                 \
    X(set_runtime_env, int32_t, (const SimplerRuntimeEnv *))

typedef struct Shim {
    void *library;
    bool own_text; /* the last error was found here, not by the runtime */
    char text[TEXT_SIZE];
#define AS_MEMBER(name, result, parameters) result(*name) parameters;
    ENTRY_POINTS(AS_MEMBER)
    OPTIONAL_ENTRY_POINTS(AS_MEMBER)
} Shim;

/* Two threads that open the same file must not both find that it is not loaded. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* Load a file that is mapped at `bytes`. The first chip of a process gets the file itself, as
 * debuggers and libraries beside it would have it; the next gets a copy, because one library has one
 * set of globals.
 * Rule CHIP-LOAD-1, -3 */
static void *load(const char *path, const void *bytes, size_t size, char *why, size_t room)
{
    if (!image_check(bytes, size, why, room))
        return NULL;
    pthread_mutex_lock(&opening);
    void *library, *there = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (there != NULL) {
        library = image_load(bytes, size, why, room);
        dlclose(there);
    } else {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            snprintf(why, room, "%s", dlerror());
    }
    pthread_mutex_unlock(&opening);
    return library;
}

static void *load_file(const char *path, char *why, size_t room)
{
    struct stat status;
    void *library = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        snprintf(why, room, "%s", strerror(errno));
    } else if (!S_ISREG(status.st_mode) || status.st_size == 0) {
        snprintf(why, room, "not a shared object (not a file, or empty)");
    } else {
        size_t size = (size_t)status.st_size;
        void *bytes = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            snprintf(why, room, "%s", strerror(errno));
        } else {
            library = load(path, bytes, size, why, room);
            munmap(bytes, size);
        }
    }
    if (fd >= 0)
        close(fd);
    return library;
}

/* Find every entry point; list the names of all that are missing.
 * Rule CHIP-LOAD-1 */
static bool resolve(Shim *shim, char *why, size_t room)
{
    size_t used = 0;
#define FIND(name, result, parameters)                                                             \
    *(void **)&shim->name = dlsym(shim->library, "pto2_" #name);                                   \
    if (shim->name == NULL && used < room)                                                         \
        used += (size_t)snprintf(why + used, room - used, "%s%s", used ? ", " : "missing: ",       \
                                 "pto2_" #name);
    ENTRY_POINTS(FIND)
#define LOOK(name, result, parameters) *(void **)&shim->name = dlsym(shim->library, "pto2_" #name);
    OPTIONAL_ENTRY_POINTS(LOOK)
    return used == 0;
}

/* Load a runtime. Returns NULL if that fails, and `why` says why. */
EXPORT Shim *shim_open(const char *path, char *why, uint64_t room)
{
    Shim *shim = calloc(1, sizeof *shim);
    if (shim == NULL) {
        snprintf(why, room, "no memory");
        return NULL;
    }
    shim->library = load_file(path, why, room);
    if (shim->library != NULL && resolve(shim, why, room))
        return shim;
    if (shim->library != NULL)
        dlclose(shim->library);
    free(shim);
    return NULL;
}

EXPORT void shim_close(Shim *shim)
{
    if (shim == NULL)
        return;
    dlclose(shim->library);
    free(shim);
}

/* ---------------------------------------------------------------- the run
 *
 * A view is `i32 T, i32 S, ContinuousTensor[T], u64[S]`: see "Args blob" in the documentation. */

static int32_t refuse_view(Shim *shim, int32_t tensors, int32_t scalars, int64_t capacity)
{
    snprintf(shim->text, TEXT_SIZE,
             "arguments of %d tensors and %d scalars in %lld bytes: at most %d and %d are allowed, "
             "and 8 + 40 * tensors + 8 * scalars bytes must be there",
             tensors, scalars, (long long)capacity, SIMPLER_CHIP_MAX_TENSOR_ARGS,
             SIMPLER_CHIP_MAX_SCALAR_ARGS);
    shim->own_text = true;
    return SHIM_E_VIEW;
}

/* Rule CHIP-ARGS-1; FLOW-EDGE-3 */
static bool counts_fit(int32_t tensors, int32_t scalars, int64_t capacity)
{
    return tensors >= 0 && scalars >= 0 && tensors <= SIMPLER_CHIP_MAX_TENSOR_ARGS &&
           scalars <= SIMPLER_CHIP_MAX_SCALAR_ARGS &&
           8 + (int64_t)sizeof(SimplerContinuousTensor) * tensors + 8 * (int64_t)scalars <= capacity;
}

EXPORT int32_t shim_run(Shim *shim, int64_t local_slot, const void *view, int64_t capacity,
                        const void *config)
{
    SimplerChipStorageTaskArgs args; /* most of it is never touched */
    int32_t counts[2] = {0, 0};
    if (shim == NULL)
        return SHIM_E_CLOSED;
    shim->own_text = false;
    if (view == NULL || capacity < (int64_t)sizeof counts)
        return refuse_view(shim, 0, 0, capacity);
    memcpy(counts, view, sizeof counts);
    if (!counts_fit(counts[0], counts[1], capacity))
        return refuse_view(shim, counts[0], counts[1], capacity);
    const char *tensors = (const char *)view + sizeof counts;
    size_t bytes = (size_t)counts[0] * sizeof args.tensors_[0];
    memcpy(args.tensors_, tensors, bytes);
    memcpy(args.scalars_, tensors + bytes, (size_t)counts[1] * sizeof args.scalars_[0]);
    args.tensor_count_ = counts[0];
    args.scalar_count_ = counts[1];
    if (local_slot != (int32_t)local_slot)
        local_slot = -1; /* which no runtime accepts */
    return shim->run_runtime((int32_t)local_slot, &args, config);
}

/* ---------------------------------------------------------------- everything else passes through */

EXPORT const char *shim_last_error(Shim *shim)
{
    const char *text = shim == NULL ? "" : shim->own_text ? shim->text : shim->last_error();
    return text == NULL ? "" : text;
}

#define PASS(shim, call) ((shim) == NULL ? SHIM_E_CLOSED : ((shim)->own_text = false, (shim)->call))

EXPORT int32_t shim_init(Shim *shim, int32_t device_id)
{
    return PASS(shim, init(device_id));
}

EXPORT int32_t shim_finalize(Shim *shim)
{
    return PASS(shim, finalize());
}

EXPORT int32_t shim_prepare(Shim *shim, int32_t local_slot, const void *blob, uint64_t size)
{
    return PASS(shim, prepare_callable(local_slot, blob, size));
}

EXPORT int32_t shim_unregister(Shim *shim, int32_t local_slot)
{
    return PASS(shim, unregister_callable(local_slot));
}

EXPORT uint64_t shim_malloc(Shim *shim, uint64_t size)
{
    return shim == NULL ? 0 : (shim->own_text = false, shim->malloc(size));
}

EXPORT int32_t shim_free(Shim *shim, uint64_t address)
{
    return PASS(shim, free(address));
}

EXPORT int32_t shim_copy_to(Shim *shim, uint64_t device, const void *host, uint64_t size)
{
    return PASS(shim, copy_to(device, host, size));
}

EXPORT int32_t shim_copy_from(Shim *shim, void *host, uint64_t device, uint64_t size)
{
    return PASS(shim, copy_from(host, device, size));
}

static int32_t no_windows(Shim *shim)
{
    snprintf(shim->text, TEXT_SIZE,
             "the devices of this runtime share no memory: it lacks pto2_open_window or pto2_close_window");
    shim->own_text = true;
    return PTO2_E_STATE;
}

/* Rule WM-DOMAIN-8 */
EXPORT int32_t shim_open_window(Shim *shim, uint64_t address, uint64_t size)
{
    if (shim != NULL && (shim->open_window == NULL || shim->close_window == NULL))
        return no_windows(shim);
    return PASS(shim, open_window(address, size));
}

EXPORT int32_t shim_close_window(Shim *shim, uint64_t address)
{
    if (shim != NULL && shim->close_window == NULL)
        return no_windows(shim);
    return PASS(shim, close_window(address));
}

/* A runtime that lacks the function has no use for the sizes. */
EXPORT int32_t shim_set_runtime_env(Shim *shim, const SimplerRuntimeEnv *env)
{
    if (shim != NULL && shim->set_runtime_env == NULL)
        return PTO2_OK;
    return PASS(shim, set_runtime_env(env));
}

/* Of a runtime that lacks the function, PTO2_E_RECORDING is an error like others. */
EXPORT int32_t shim_record(Shim *shim, const SimplerRecording *recording)
{
    if (shim != NULL && shim->record == NULL)
        return PTO2_E_RECORDING;
    return PASS(shim, record(recording));
}

EXPORT int64_t shim_device_wall_ns(Shim *shim)
{
    return shim == NULL ? 0 : shim->device_wall_ns();
}

/* Break a domain, unless it is broken: all waits in it end, with an error. `why` is kept.
 * Rule WM-DOMAIN-9 */
EXPORT void shim_domain_break(uint64_t shared, const char *why)
{
    simpler_domain_break_((SimplerDomainShared *)(uintptr_t)shared, why);
}
