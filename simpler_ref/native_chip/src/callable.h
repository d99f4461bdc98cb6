/* Callables: read from a blob, loaded, found by their slot. */
#ifndef SIMPLER_CALLABLE_H
#define SIMPLER_CALLABLE_H

#include <stdbool.h>

#include "simpler_kernel.h"

#define MAX_SIGNATURE (SIMPLER_CHIP_MAX_TENSOR_ARGS + SIMPLER_CHIP_MAX_SCALAR_ARGS)
#define MAX_NAME 255
#define MAX_CHILDREN 1024

typedef int32_t CoreKernel(const SimplerCoreArgs *args);

/* What a callable expects: the directions of its tensors in order, and how many scalars; 0 stands for
 * as many as are given. A kernel without a signature takes any tensors, each as INOUT. */
typedef struct Signature {
    int32_t tensors;
    int32_t scalars;
    uint8_t directions[MAX_SIGNATURE];
} Signature;

typedef struct Core {
    int32_t func_id;
    Signature signature;
    void *library;
    CoreKernel *kernel;
} Core;

typedef struct Callable {
    char name[MAX_NAME + 1];
    Signature signature;
    void *library;
    SimplerOrchestration *entry;
    int32_t core_count;
    Core *cores;
} Callable;

/* Whether so many arguments fit a signature that may take `most` scalars. */
static inline bool signature_takes(const Signature *signature, int32_t most, int32_t tensors,
                                   int32_t scalars)
{
    const int32_t least = signature->scalars;
    return tensors == signature->tensors && scalars >= least && scalars <= (least > 0 ? least : most);
}

/* Read and load a blob. Returns an error code, and `why` (of `room` bytes) says why; or 0 and a
 * callable for `callable_close`. */
int32_t callable_open(const void *blob, uint64_t size, Callable **made, char *why, size_t room);
void callable_close(Callable *callable);

/* The child of that number, or NULL. */
const Core *callable_core(const Callable *callable, int32_t func_id);

#endif
