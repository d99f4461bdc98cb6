/* One run: tensors onto the device, the orchestration function, tensors back. */
#ifndef SIMPLER_RUN_H
#define SIMPLER_RUN_H

#include "arena.h"
#include "callable.h"
#include "pool.h"

#define MAX_SLOTS 4096

/* The whole chip; a library has one. */
typedef struct Chip {
    bool open;
    atomic_bool forked; /* this process has it from its parent: threads and memory are not here */
    int32_t cores;
    int64_t device_wall_ns;
    SimplerRuntimeEnv env; /* of the next run */
    Arena arena;
    Pool pool;
    Wave wave;
    Records records; /* of the run, if it has flags */
    bool recording; /* `records.to` says where those go; for one run */
    Callable *slots[MAX_SLOTS];
    char text[1024];
} Chip;

/* Keep the message for pto2_last_error; returns `status`. */
int32_t chip_fail(Chip *chip, int32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

int32_t chip_no_room(Chip *chip, uint64_t bytes);
int32_t chip_run(Chip *chip, const Callable *callable, const SimplerChipStorageTaskArgs *args,
                 const SimplerCallConfig *config);

/* Copy between the host and the device; a host address that is not there is an error. */
int32_t chip_copy(Chip *chip, void *to, const void *from, uint64_t size, const char *what);

#endif
