#define _GNU_SOURCE
#include "shim.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* What the handler touches must be there already: no allocation in a handler. */
#define PER_THREAD static __thread __attribute__((tls_model("initial-exec")))

typedef struct Guard {
    sigjmp_buf back;
    Fault *fault;
} Guard;

PER_THREAD Guard *volatile guard;
PER_THREAD void *handler_stack;

static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { CAUGHT = sizeof caught / sizeof caught[0], HANDLER_STACK = 64 << 10 };
static struct sigaction before[NSIG];
static bool installed[NSIG];
static int chips; /* that are open */
static pthread_mutex_t installing = PTHREAD_MUTEX_INITIALIZER;

/* Only x86-64 reports readily whether an access was a read or a write. */
static const char *access_of(int signal, void *context)
{
#if defined(__x86_64__)
    if (signal == SIGSEGV)
        return ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "wrote to" : "read";
#else
    (void)signal, (void)context;
#endif
    return "accessed";
}

/* A foreign fault: call the previous handler.
 * Rule CHIP-FAULT-4 */
static void pass_on(int signal, siginfo_t *info, void *context)
{
    const struct sigaction *old = &before[signal];
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(signal, info, context);
    } else if (old->sa_handler == SIG_DFL || (old->sa_handler == SIG_IGN && info->si_code > 0)) {
        struct sigaction fallback = {.sa_handler = SIG_DFL};
        sigaction(signal, &fallback, NULL);
        if (info->si_code <= 0) /* was sent, and does not come again by itself */
            raise(signal);
    } else if (old->sa_handler != SIG_IGN) {
        old->sa_handler(signal);
    }
}

/* Rule CHIP-FAULT-1 */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    Guard *here = guard;
    if (here == NULL || info->si_code <= 0) { /* not in a guarded step, or sent by a process */
        pass_on(signal, info, context);
        return;
    }
    here->fault->signal = signal;
    here->fault->address = info->si_addr;
    here->fault->known = info->si_code != SI_KERNEL;
    here->fault->access = access_of(signal, context);
    siglongjmp(here->back, 1); /* SA_NODEFER: the signal mask is as it was */
}

/* `before` is known before the first fault can come through the handler. */
static bool put_in_front(int signal)
{
    struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    ours.sa_sigaction = on_fault;
    sigemptyset(&ours.sa_mask);
    if (!installed[signal] && sigaction(signal, NULL, &before[signal]) == 0)
        installed[signal] = sigaction(signal, &ours, NULL) == 0;
    return installed[signal];
}

/* Rule CHIP-FAULT-4 */
static void take_away(int signal)
{
    struct sigaction now;
    if (!installed[signal] || sigaction(signal, NULL, &now) != 0)
        return;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault) {
        sigaction(signal, &before[signal], NULL);
        installed[signal] = false;
    } /* else the handler in front may pass faults on to this one */
}

bool faults_install(void)
{
    bool all = true;
    pthread_mutex_lock(&installing);
    for (int i = 0; i < CAUGHT; i++)
        all = put_in_front(caught[i]) && all;
    chips++;
    pthread_mutex_unlock(&installing);
    if (!all)
        faults_uninstall();
    return all;
}

void faults_uninstall(void)
{
    pthread_mutex_lock(&installing);
    if (--chips == 0)
        for (int i = 0; i < CAUGHT; i++)
            take_away(caught[i]);
    pthread_mutex_unlock(&installing);
}

/* A process may be forked while another thread is here. */
static void hold(void)
{
    pthread_mutex_lock(&installing);
}

static void let_go(void)
{
    pthread_mutex_unlock(&installing);
}

static void __attribute__((constructor)) watch_forks(void)
{
    pthread_atfork(hold, let_go, let_go);
}

void faults_unblock(sigset_t *set)
{
    for (int i = 0; i < CAUGHT; i++)
        sigdelset(set, caught[i]);
}

bool faults_guard(void (*step)(void *), void *of, Fault *fault)
{
    Guard *const outer = guard;
    Guard here;
    here.fault = fault;
    if (sigsetjmp(here.back, 0) != 0) {
        guard = outer;
        return false;
    }
    guard = &here;
    step(of);
    guard = outer;
    return true;
}

typedef struct Copy {
    void *to;
    const void *from;
    size_t size;
} Copy;

/* Any address is valid here, NULL as well: the fault is the answer. */
static void __attribute__((no_sanitize("undefined"))) copy_step(void *of)
{
    const Copy *copy = of;
    memcpy(copy->to, copy->from, copy->size);
}

/* Rule CHIP-MEM-5 */
bool faults_copy(void *to, const void *from, size_t size, Fault *fault)
{
    Copy copy = {to, from, size};
    return faults_guard(copy_step, &copy, fault);
}

void faults_describe(const Fault *fault, char *text, size_t room)
{
    const char *name = fault->signal == SIGSEGV ? "SIGSEGV"
                       : fault->signal == SIGBUS ? "SIGBUS"
                       : fault->signal == SIGFPE ? "SIGFPE"
                                                 : "SIGILL";
    uintptr_t address = (uintptr_t)fault->address;
    if (fault->signal == SIGFPE)
        snprintf(text, room, "divided an integer by zero, or overflowed (%s)", name);
    else if (fault->signal == SIGILL)
        snprintf(text, room, "met an illegal instruction at %#lx (%s)", address, name);
    else if (!fault->known)
        snprintf(text, room, "accessed a bad address that is none of the machine's (%s)", name);
    else
        snprintf(text, room, "%s a bad address 0x%lx (%s)", fault->access, address,
                 name);
}

void faults_enter_thread(void)
{
    stack_t now;
    if (handler_stack != NULL || sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE))
        return;
    void *memory = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t own = {.ss_sp = memory, .ss_size = HANDLER_STACK};
    if (memory == MAP_FAILED)
        return; /* then the handler runs on the thread's stack, as long as that has room */
    if (sigaltstack(&own, NULL) == 0)
        handler_stack = memory;
    else
        munmap(memory, HANDLER_STACK);
}

void faults_leave_thread(void)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    if (handler_stack == NULL)
        return;
    sigaltstack(&none, NULL);
    munmap(handler_stack, HANDLER_STACK);
    handler_stack = NULL;
}
