#define _GNU_SOURCE
#include "image.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_EXEC
#define MFD_EXEC 0x0010U
#endif

#if defined(__x86_64__)
#define THIS_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define THIS_MACHINE EM_AARCH64
#elif defined(__riscv)
#define THIS_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define THIS_MACHINE EM_PPC64
#else
#error "this machine is not supported"
#endif

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
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        header.e_machine != THIS_MACHINE)
        return refuse(why, room, "a shared object for another machine");
    if (header.e_type != ET_DYN)
        return refuse(why, room, "an object file or a program, not a shared object");
    if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phoff > size ||
        header.e_phnum > (size - header.e_phoff) / sizeof(Elf64_Phdr) ||
        !segments_fit(bytes, size, &header) || !sections_fit(size, &header))
        return refuse(why, room, "a shared object that is cut off or damaged");
    return true;
}

static int memory_file(void)
{
    int fd = memfd_create("simpler", MFD_CLOEXEC | MFD_EXEC);
    if (fd < 0 && errno == EINVAL) /* a kernel that does not know MFD_EXEC yet */
        fd = memfd_create("simpler", MFD_CLOEXEC);
    return fd;
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
    int fd = memory_file();
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
