/* The L2 ABI: what passes between the host's side of a chip (the shim) and a runtime.so.
 *
 * Everything is little-endian. The structures are in simpler_layout.h.
 *
 * Rule CHIP-LAYOUT-1, CHIP-LAYOUT-4
 */
#ifndef SIMPLER_L2_H
#define SIMPLER_L2_H

#include "simpler_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types, and the bytes of one element of each. */
enum SimplerDataType {
    SIMPLER_FLOAT32 = 0,
    SIMPLER_FLOAT16 = 1,
    SIMPLER_INT32 = 2,
    SIMPLER_INT16 = 3,
    SIMPLER_INT8 = 4,
    SIMPLER_UINT8 = 5,
    SIMPLER_BFLOAT16 = 6,
    SIMPLER_INT64 = 7,
    SIMPLER_UINT64 = 8,
    SIMPLER_UINT16 = 9,
    SIMPLER_UINT32 = 10,
    SIMPLER_BOOL = 11,
    SIMPLER_DATA_TYPES = 12
};
#define SIMPLER_DTYPE_SIZES {4, 2, 4, 2, 1, 1, 2, 8, 8, 2, 4, 1}

/* Direction of one argument of a callable. */
enum SimplerArgDirection {
    SIMPLER_SCALAR = 0,
    SIMPLER_IN = 1,
    SIMPLER_OUT = 2,
    SIMPLER_INOUT = 3
};

/* What the entry points return. Of another code a caller only knows that it is an error. */
enum SimplerStatus {
    PTO2_OK = 0,
    PTO2_E_STATE = 1,         /* not initialised, initialised twice, or forked since */
    PTO2_E_SLOT = 2,          /* no such local slot, or it is taken, or empty */
    PTO2_E_BLOB = 3,          /* the bytes are no callable */
    PTO2_E_LOAD = 4,          /* a binary in it cannot be loaded */
    PTO2_E_ARGS = 5,          /* the arguments do not fit the callable, or are malformed */
    PTO2_E_CONFIG = 6,        /* a knob is out of range, or not supported */
    PTO2_E_MEMORY = 7,        /* the device has no room */
    PTO2_E_ADDRESS = 8,       /* a device or a host address is not what it has to be */
    PTO2_E_KERNEL = 9,        /* a kernel returned an error */
    PTO2_E_FAULT = 10,        /* a kernel or an orchestration function crashed */
    PTO2_E_ORCHESTRATION = 11, /* an orchestration function returned an error */
    PTO2_E_SYSTEM = 12,       /* the operating system refused something */
    PTO2_E_RECORDING = 13,    /* the run has flags: pto2_record comes first */
    /* From here on: of the shim, never of a runtime. */
    SHIM_E_CLOSED = 64,
    SHIM_E_VIEW = 65
};

/* ---------------------------------------------------------------- what a runtime.so exports
 *
 * One instance of the library is one chip; the caller makes one call at a time. A function that
 * returns an int32_t returns 0 or an error code, and after an error `pto2_last_error` has the message.
 * `local_slot` is a number of the caller's, 0 … 4095.
 */

/* Open the device; before any other call, in the process that makes those calls. */
int32_t pto2_init(int32_t device_id);

/* Close it and release everything: memory, threads, callables. `pto2_init` may follow. */
int32_t pto2_finalize(void);

/* Install a callable in a free slot. The blob is not needed any more when this returns. */
int32_t pto2_prepare_callable(int32_t local_slot, const void *blob, uint64_t size);

/* Remove a callable; its slot is free again. */
int32_t pto2_unregister_callable(int32_t local_slot);

/* Run a callable and wait for it. Host tensors are copied as the callable's signature says; tensors
 * with `child_memory` stay where they are. After an error, no host tensor has been written. */
int32_t pto2_run_runtime(int32_t local_slot, const SimplerChipStorageTaskArgs *args,
                         const SimplerCallConfig *config);

/* Allocate device memory; its contents are arbitrary. Returns its address, 0 after an error. */
uint64_t pto2_malloc(uint64_t size);

/* Free what pto2_malloc returned. */
int32_t pto2_free(uint64_t address);

/* Copy from the host to the device, and back. The device's bytes must be in one allocation. */
int32_t pto2_copy_to(uint64_t device, const void *host, uint64_t size);
int32_t pto2_copy_from(void *host, uint64_t device, uint64_t size);

/* The sizes that following runs ask for. A runtime may lack this function. */
int32_t pto2_set_runtime_env(const SimplerRuntimeEnv *env);

/* Message of the last error: valid until the next call, never NULL. */
const char *pto2_last_error(void);

/* Nanoseconds that the last successful run spent on the device, without the copies of tensors. */
int64_t pto2_device_wall_ns(void);

/* Optional: of a runtime whose devices share memory. Let kernels and copies of this device use memory that the
 * caller has mapped, until it is closed; the caller sees to it that no run uses it then. */
int32_t pto2_open_window(uint64_t address, uint64_t size);
int32_t pto2_close_window(uint64_t address);

/* A counter of the processor, by the numbers of perf_event_open. */
typedef struct SimplerEvent {
    uint32_t kind;
    uint64_t config;
} SimplerEvent;

/* Where the next run puts what its flags record, and what its cores count. */
typedef struct SimplerRecording {
    int32_t records;  /* descriptor of a file, for what src/records.h describes */
    int32_t bytes;    /* the same, for the elements of dumped tensors; -1: they are left out */
    int32_t counters; /* events in use; 0: what the system counts instead; -1: nothing is counted */
    SimplerEvent events[4]; /* the cycles come first */
} SimplerRecording;

/* Optional: of a runtime that leaves the files of diagnostics flags to its caller. It refuses a run with flags
 * with PTO2_E_RECORDING before it begins, unless this was called; and forgets `recording` with the next run. */
int32_t pto2_record(const SimplerRecording *recording);

#ifdef __cplusplus
}
#endif
#endif
