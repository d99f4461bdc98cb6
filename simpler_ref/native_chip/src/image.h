/* Shared objects that are bytes in memory; a part of the shim that runtimes use as well. */
#ifndef SIMPLER_IMAGE_H
#define SIMPLER_IMAGE_H

#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(default)

/* Say whether the bytes are a complete shared object of this machine. The dynamic linker believes
 * the headers: it would die of a file that is cut off. Otherwise `why` (of `room` bytes) says why. */
bool image_check(const void *bytes, size_t size, char *why, size_t room);

/* Load a copy of its own of a shared object: as if from a file not loaded elsewhere. Returns
 * NULL if that fails, and `why` says why. */
void *image_load(const void *bytes, size_t size, char *why, size_t room);

#pragma GCC visibility pop

#endif
