/* What runs on a chip: core kernels, and the orchestration function that launches them.
 *
 * A core kernel is a shared object that exports `simpler_kernel`. An orchestration function is
 * exported under the name that its ChipCallable carries. All addresses are the device's.
 *
 * Rule CHIP-LAYOUT-1, CHIP-LAYOUT-4
 */
#ifndef SIMPLER_KERNEL_H
#define SIMPLER_KERNEL_H

#include "simpler_l2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A core kernel. Returns 0, or an error code that fails the run. Blocks of one launch run in any
 * order and must not wait for each other. */
int32_t simpler_kernel(const SimplerCoreArgs *args);

/* Codes with messages of their own: for tensor k, subtract k from the first two. */
#define SIMPLER_KERNEL_WRONG_DTYPE (-1000)
#define SIMPLER_KERNEL_WRONG_NDIMS (-1100)
#define SIMPLER_KERNEL_RAISED (-1200)
/* What the functions of simpler_domain.h return. */
#define SIMPLER_DOMAIN_TIMEOUT (-1300)
#define SIMPLER_DOMAIN_BROKEN (-1301)
#define SIMPLER_DOMAIN_OUTSIDE (-1302)
#define SIMPLER_DOMAIN_TWICE (-1303)

/* The device, as an orchestration function sees it. */
typedef struct SimplerDevice SimplerDevice;
struct SimplerDevice {
    uint32_t size;     /* of this table; later versions append to it */
    int32_t block_dim; /* blocks the run was given */

    /* Run a child kernel over `block_dim` blocks (0: the run's). The launch has happened when
     * `barrier` returns, or the orchestration function; until then, launches run in any order and at
     * the same time. Tensors and scalars are copied. Returns 0 or an error that also fails the run. */
    int32_t (*launch)(SimplerDevice *device, int32_t func_id, int32_t block_dim,
                      const SimplerContinuousTensor *tensors, int32_t tensor_count,
                      const uint64_t *scalars, int32_t scalar_count);

    /* Wait for everything launched so far. Returns 0 or the first error. */
    int32_t (*barrier)(SimplerDevice *device);

    /* Allocate device memory until the end of the run. Returns its address, or 0. */
    uint64_t (*alloc)(SimplerDevice *device, uint64_t size);

    /* Fail the run with a message. Returns an error code, to be returned in turn. */
    int32_t (*fail)(SimplerDevice *device, const char *text);

    /* The sizes that the run asks for; all 0 if it asks for none. */
    const SimplerRuntimeEnv *runtime_env;
};

/* An orchestration function. Returns 0, or an error code that fails the run. */
typedef int32_t SimplerOrchestration(SimplerDevice *device, const SimplerChipStorageTaskArgs *args);

/* Mark a tensor: with `enable_dump_tensor` 1 its elements are written into a file before launches that read
 * it, and after launches that write it. Those that `TaskArgs.dump` has marked come with their mark.
 * Rule FLAG-CHIP-6 */
static inline void simpler_dump(SimplerContinuousTensor *tensor)
{
    tensor->padding[1] = 1;
}

static inline int simpler_is_marked(const SimplerContinuousTensor *tensor)
{
    return tensor->padding[1] == 1;
}

/* The elements of a tensor; 0 if one of its dimensions is. */
static inline uint64_t simpler_elements(const SimplerContinuousTensor *tensor)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < tensor->ndims && i < SIMPLER_MAX_DIMS; i++)
        count *= tensor->shapes[i];
    return count;
}

/* The share [*first, *last) of `count` elements that belongs to this block. */
static inline void simpler_share(const SimplerCoreArgs *args, uint64_t count, uint64_t *first,
                                 uint64_t *last)
{
    uint64_t blocks = (uint64_t)args->block_dim, block = (uint64_t)args->block_idx;
    uint64_t each = count / blocks, more = count % blocks;
    *first = block * each + (block < more ? block : more);
    *last = *first + each + (block < more ? 1 : 0);
}

#ifdef __cplusplus
}
#endif
#endif
