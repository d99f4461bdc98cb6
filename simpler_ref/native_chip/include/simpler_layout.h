/* The structures of the L2 ABI, where each member begins, and how large they are.
 *
 * Written by tests/layout_header.py from simpler_ref/jit/structures.py: change that, and run
 * python -m tests.layout_header. Everything is little-endian. The sizes and offsets are part
 * of the contract: the sizes are asserted below, the offsets by a test.
 *
 * Rule CHIP-LAYOUT-1, CHIP-LAYOUT-4
 */
#ifndef SIMPLER_LAYOUT_H
#define SIMPLER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SIMPLER_STATIC_ASSERT(what) static_assert(what, #what)
#else
#define SIMPLER_STATIC_ASSERT(what) _Static_assert(what, #what)
#endif

#define SIMPLER_MAX_DIMS 5
#define SIMPLER_OUTPUT_PREFIX_SIZE 1024
#define SIMPLER_MAX_RINGS 4
#define SIMPLER_CHIP_MAX_TENSOR_ARGS 128
#define SIMPLER_CHIP_MAX_SCALAR_ARGS 128
#define SIMPLER_CORE_MAX_TENSOR_ARGS 16
#define SIMPLER_CORE_MAX_SCALAR_ARGS 32

/* A contiguous row-major tensor, 40 bytes. */
typedef struct SimplerContinuousTensor {
    uint64_t data;              /* address of the first element */
    uint32_t shapes[SIMPLER_MAX_DIMS];
    uint32_t ndims;             /* dimensions in use */
    uint8_t dtype;              /* an enum SimplerDataType */
    uint8_t child_memory;       /* 1: `data` is an address on the device */
    uint8_t padding[6];         /* 0; the tag, on its way into submit; then 1 if marked for dumps */
} SimplerContinuousTensor;

/* Execution knobs of one run, 1052 bytes. */
typedef struct __attribute__((packed)) SimplerCallConfig {
    int32_t block_dim;          /* cores to run on; 0: the runtime chooses */
    int32_t aicpu_thread_num;   /* threads that feed them */
    int32_t enable_l2_swimlane; /* diagnostics: 0 (off) to 4 (full) */
    int32_t enable_dump_tensor; /* 0: off */
    int32_t enable_pmu;         /* 0: off */
    int32_t enable_dep_gen;     /* 0: off */
    int32_t enable_scope_stats; /* 0: off */
    char output_prefix[SIMPLER_OUTPUT_PREFIX_SIZE]; /* where they write: at most 1023 bytes and a NUL */
} SimplerCallConfig;

/* Sizes that a run asks for, of each ring; 0: the runtime chooses, 96 bytes. */
typedef struct SimplerRuntimeEnv {
    uint64_t ring_task_window[SIMPLER_MAX_RINGS]; /* tasks */
    uint64_t ring_heap[4];      /* bytes */
    uint64_t ring_dep_pool[4];  /* dependencies */
} SimplerRuntimeEnv;

/* The arguments of one run, initialised only as far as the counts say, 6152 bytes. */
typedef struct SimplerChipStorageTaskArgs {
    SimplerContinuousTensor tensors_[SIMPLER_CHIP_MAX_TENSOR_ARGS];
    uint64_t scalars_[SIMPLER_CHIP_MAX_SCALAR_ARGS];
    int32_t tensor_count_;
    int32_t scalar_count_;
} SimplerChipStorageTaskArgs;

/* What one block of a launch gets, a copy of its own, 920 bytes. */
typedef struct SimplerCoreArgs {
    int32_t block_idx;          /* 0 to block_dim - 1 */
    int32_t block_dim;          /* blocks of this launch */
    int32_t tensor_count;
    int32_t scalar_count;
    SimplerContinuousTensor tensors[SIMPLER_CORE_MAX_TENSOR_ARGS];
    uint64_t scalars[SIMPLER_CORE_MAX_SCALAR_ARGS];
    uint64_t runtime_env;       /* address of the run's SimplerRuntimeEnv */
} SimplerCoreArgs;

SIMPLER_STATIC_ASSERT(sizeof(SimplerContinuousTensor) == 40);
SIMPLER_STATIC_ASSERT(sizeof(SimplerCallConfig) == 1052);
SIMPLER_STATIC_ASSERT(sizeof(SimplerRuntimeEnv) == 96);
SIMPLER_STATIC_ASSERT(sizeof(SimplerChipStorageTaskArgs) == 6152);
SIMPLER_STATIC_ASSERT(sizeof(SimplerCoreArgs) == 920);

#endif
