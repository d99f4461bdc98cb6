/* What runtimes use of the shim, of which there is one in a process: they are linked with it.
 *
 * Faults of the processor (bad address, division by zero, …) in code that a chip runs are here since a process has
 * one handler for each signal, however many chips it has and however many copies of the runtime. */
#ifndef SIMPLER_SHIM_H
#define SIMPLER_SHIM_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#pragma GCC visibility push(default)

typedef struct Fault {
    int signal;
    bool known; /* `address` is the one that was accessed */
    void *address;
    const char *access; /* "read", "wrote to" or "accessed" */
} Fault;

/* A chip opens or closes. The handlers are put in front of those the process has while a chip is open;
 * if others have been put in front of these since, they stay, and pass on what reaches them. */
bool faults_install(void);
void faults_uninstall(void);

/* Call `step(of)` on this thread. Returns false, with the fault, if it faulted: it was abandoned where
 * it stood. What it calls must not hold a lock of this library while it may fault. */
bool faults_guard(void (*step)(void *), void *of, Fault *fault);

/* Copy memory of which one side may not be there. */
bool faults_copy(void *to, const void *from, size_t size, Fault *fault);

/* Describe a fault: "wrote to a bad address 0x10 (SIGSEGV)". */
void faults_describe(const Fault *fault, char *text, size_t room);

/* Take the signals of faults out of a set. */
void faults_unblock(sigset_t *set);

/* Give this thread a stack for its fault handler, unless it has one; take it away again. */
void faults_enter_thread(void);
void faults_leave_thread(void);

/* ---------------------------------------------------------------- shared objects that are bytes in memory */

/* Say whether the bytes are a complete shared object of this machine. The dynamic linker believes
 * the headers: it would die of a file that is cut off. Otherwise `why` (of `room` bytes) says why. */
bool image_check(const void *bytes, size_t size, char *why, size_t room);

/* Load a copy of its own of a shared object: as if from a file not loaded elsewhere. Returns
 * NULL if that fails, and `why` says why. */
void *image_load(const void *bytes, size_t size, char *why, size_t room);

#pragma GCC visibility pop

#endif
