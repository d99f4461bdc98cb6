/* The orchestration function of ChipCallable.from_kernel: one child, all blocks, all arguments. */
#include "simpler_kernel.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int32_t simpler_launch_all(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->launch(device, 0, 0, args->tensors_, args->tensor_count_, args->scalars_,
                          args->scalar_count_);
}
