/* The host's side of a chip, as far as it is C: loads a runtime.so and other shared objects, and copies the
 * arguments of a run into the structure that it takes. Python calls this, and all else of the runtime, through
 * ctypes. */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "simpler_l2.h"

#define EXPORT __attribute__((visibility("default")))
#define SIMPLER_CALL EXPORT
#include "simpler_domain.h"

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

/* The header of this library, by the linker: what is loaded is for the same machine. */
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));

static bool refuse(char *why, size_t room, const char *text)
{
    snprintf(why, room, "%s", text);
    return false;
}

/* Every segment must lie inside the file. */
static bool segments_fit(const unsigned char *bytes, size_t size, const Elf64_Ehdr *header)
{
    for (size_t i = 0; i < header->e_phnum; i++) {
        Elf64_Phdr segment;
        memcpy(&segment, bytes + header->e_phoff + i * sizeof segment, sizeof segment);
        if (segment.p_filesz > size || segment.p_offset > size - segment.p_filesz)
            return false;
    }
    return true;
}

/* The linker does not read the section headers, but they come last: they show that nothing is cut off. */
static bool sections_fit(size_t size, const Elf64_Ehdr *header)
{
    size_t bytes = (size_t)header->e_shnum * header->e_shentsize;
    return bytes <= size && header->e_shoff <= size - bytes;
}

bool image_check(const void *bytes, size_t size, char *why, size_t room)
{
    Elf64_Ehdr header;
    if (size < sizeof header || memcmp(bytes, ELFMAG, SELFMAG) != 0)
        return refuse(why, room, "not a shared object (no ELF header)");
    memcpy(&header, bytes, sizeof header);
    if (memcmp(header.e_ident + EI_CLASS, __ehdr_start.e_ident + EI_CLASS, 2) != 0 ||
        header.e_machine != __ehdr_start.e_machine)
        return refuse(why, room, "a shared object for another machine");
    if (header.e_type != ET_DYN)
        return refuse(why, room, "an object file or a program, not a shared object");
    if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > size ||
        header.e_phnum > (size - header.e_phoff) / sizeof(Elf64_Phdr) ||
        !segments_fit(bytes, size, &header) || !sections_fit(size, &header))
        return refuse(why, room, "a shared object that is cut off or damaged");
    return true;
}

static bool write_all(int fd, const unsigned char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t wrote = write(fd, bytes, size);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        bytes += wrote;
        size -= (size_t)wrote;
    }
    return true;
}

/* A path to the descriptor. The dynamic linker takes two libraries with one path for the same, and
 * descriptors are used again: so the inode is spelled in detours, "/" or "./" for each of its bits. */
static bool unique_path(int fd, char *path, size_t room)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return false;
    size_t at = (size_t)snprintf(path, room, "/proc/self/fd/");
    for (uint64_t inode = status.st_ino; inode != 0; inode >>= 1)
        at += (size_t)snprintf(path + at, room - at, inode & 1 ? "./" : "/");
    snprintf(path + at, room - at, "%d", fd);
    return true;
}

void *image_load(const void *bytes, size_t size, char *why, size_t room)
{
    char path[256];
    void *library = NULL;
    if (!image_check(bytes, size, why, room))
        return NULL;
    int fd = memfd_create("simpler", MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* a kernel that does not know MFD_EXEC yet */
        fd = memfd_create("simpler", MFD_CLOEXEC);
    if (fd < 0 || !write_all(fd, bytes, size) || !unique_path(fd, path, sizeof path)) {
        snprintf(why, room, "no memory for a copy of %zu bytes: %s", size, strerror(errno));
    } else {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            const char *text = dlerror(), *after = strstr(text, path);
            snprintf(why, room, "%s", after == text ? text + strlen(path) + 2 : text);
        }
    }
    if (fd >= 0)
        close(fd);
    return library;
}

/* ---------------------------------------------------------------- a runtime */

/* Two threads that open the same file must not both find that it is not loaded. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;

/* Load a file that is mapped at `bytes`. The first chip of a process gets the file itself, as
 * debuggers and libraries beside it would have it; the next gets a copy, because one library has one
 * set of globals.
 * Rule CHIP-LOAD-1, CHIP-LOAD-3 */
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

/* Load a runtime; returns its handle, or NULL, and `why` says why. */
EXPORT void *shim_open(const char *path, char *why, uint64_t room)
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

EXPORT void shim_close(void *library)
{
    dlclose(library);
}

typedef int32_t RunRuntime(int32_t, const SimplerChipStorageTaskArgs *, const SimplerCallConfig *);

/* Run a callable: call `run`, the runtime's pto2_run_runtime, with the arguments that a view has. That is
 * `i32 T, i32 S, ContinuousTensor[T], u64[S]`: see "Args blob" in the documentation.
 * Rule CHIP-ARGS-1, FLOW-EDGE-2 */
EXPORT int32_t shim_run(RunRuntime *run, int64_t local_slot, const void *view, int64_t capacity,
                        const void *config)
{
    SimplerChipStorageTaskArgs args; /* most of it is never touched */
    int32_t counts[2];
    if (view == NULL || capacity < (int64_t)sizeof counts)
        return SHIM_E_VIEW;
    memcpy(counts, view, sizeof counts);
    if ((uint32_t)counts[0] > SIMPLER_CHIP_MAX_TENSOR_ARGS || (uint32_t)counts[1] > SIMPLER_CHIP_MAX_SCALAR_ARGS)
        return SHIM_E_VIEW;
    const char *tensors = (const char *)view + sizeof counts;
    const size_t bytes = (size_t)counts[0] * sizeof args.tensors_[0];
    const size_t more = (size_t)counts[1] * sizeof args.scalars_[0];
    if (sizeof counts + bytes + more > (uint64_t)capacity)
        return SHIM_E_VIEW;
    memcpy(args.tensors_, tensors, bytes);
    memcpy(args.scalars_, tensors + bytes, more);
    args.tensor_count_ = counts[0];
    args.scalar_count_ = counts[1];
    if (local_slot != (int32_t)local_slot)
        local_slot = -1; /* which no runtime accepts */
    return run((int32_t)local_slot, &args, config);
}

typedef int32_t Record(const SimplerRecording *);

/* The same, after `record`, the runtime's pto2_record. In one call: a signal handler of Python that raises
 * between the two would leave the runtime files that the caller has closed. */
EXPORT int32_t shim_run_recorded(Record *record, const SimplerRecording *recording, RunRuntime *run,
                                 int64_t local_slot, const void *view, int64_t capacity, const void *config)
{
    const int32_t status = record(recording);
    return status != PTO2_OK ? status : shim_run(run, local_slot, view, capacity, config);
}

/* Break a domain, unless it is broken: all waits in it end, with an error. `why` is kept.
 * Rule WM-DOMAIN-9 */
EXPORT void shim_domain_break(uint64_t shared, const char *why)
{
    simpler_domain_break_((SimplerDomainShared *)(uintptr_t)shared, why);
}
