/* tracer HOW THREAD SEED: gets in the way of one thread of another program, until told to stop.
 *
 *     slow    single-steps it for ever, which makes it about a thousand times slower than all others
 *     stop    stops it at one random instruction after the other, each time for a while
 *     kill    kills its process, once, at a random instruction
 *
 * SIGTERM makes it let go of the thread, which then runs on as if nothing had been. At its end it says on
 * stdout what it has done, at its start that it is at work. Exit status: 0 done, 2 bad arguments, 3 no such thread, 4 not permitted.
 *
 * Two out of three stops are made in compiled Python: a thread of such a program spends most of its
 * instructions in the interpreter, where nothing is shared.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define PROGRAM_COUNTER(regs) ((regs).rip)
#elif defined(__aarch64__)
#define PROGRAM_COUNTER(regs) ((regs).pc)
#else
#error "no such architecture: what its program counter is called has to be known"
#endif

enum { MOST_RANGES = 4096, FRESH_RANGES = 50, MOST_STEPS = 2000, MOST_TRIES = 10, MOST_SIGNALS = 16 };

static pid_t thread;
static volatile sig_atomic_t let_go, time_is_up;
static uint64_t dice;
static long steps, stops, in_compiled, kills;
static struct range { uint64_t start, end; } ranges[MOST_RANGES];
static int range_count;

/* ------------------------------------------------------------ chance */
static double chance(void) /* in [0, 1) */
{
    dice ^= dice >> 12;
    dice ^= dice << 25;
    dice ^= dice >> 27;
    return (double)((dice * 0x2545F4914F6CDD1DULL) >> 11) / 9007199254740992.0;
}

static double between(double low, double high) /* each order of magnitude is as likely as the others */
{
    return low * exp(chance() * log(high / low));
}

/* ------------------------------------------------------------ the thread */
static void finish(int status)
{
    printf("%ld steps, %ld stops, %ld in compiled code, %ld kills\n", steps, stops, in_compiled, kills);
    exit(status);
}

static void on_signal(int number) /* SIGTERM, or SIGALRM */
{
    int before = errno;
    if (number == SIGTERM)
        let_go = 1;
    time_is_up = 1;
    ptrace(PTRACE_INTERRUPT, thread, 0, 0); /* it may sleep: whoever waits for it shall not */
    errno = before;
}

/* Say whether a single step is over that has not been reported: who stops in a system call has another
 * reason to, and the trap of the step comes after it. */
static int has_trap_left(void)
{
    struct __ptrace_peeksiginfo_args args = {.nr = MOST_SIGNALS};
    siginfo_t signals[MOST_SIGNALS];
    long i, count = ptrace(PTRACE_PEEKSIGINFO, thread, &args, signals);
    for (i = 0; i < count; i++)
        if (signals[i].si_signo == SIGTRAP)
            return 1;
    return 0;
}

/* Wait until the thread has stopped. Returns the signal that it is to have when it goes on. */
static int wait_for_stop(void)
{
    int status, number;
    while (waitpid(thread, &status, __WALL) < 0)
        if (errno != EINTR)
            finish(0);
    if (!WIFSTOPPED(status))
        finish(0); /* it has ended */
    number = WSTOPSIG(status);
    if (status >> 16 == PTRACE_EVENT_STOP || number == SIGTRAP)
        number = 0; /* our own doing */
    if (number == SIGSEGV || number == SIGBUS || number == SIGABRT || number == SIGILL || number == SIGFPE)
        let_go = 1; /* it has crashed: what it says of that need not be slow */
    if (let_go) {
        if (has_trap_left()) { /* it would die of that, were it let go now */
            ptrace(PTRACE_CONT, thread, 0, number);
            return wait_for_stop();
        }
        ptrace(PTRACE_DETACH, thread, 0, number);
        finish(0);
    }
    return number;
}

static int go(int how, int number)
{
    if (ptrace(how, thread, 0, number) < 0 && errno == ESRCH) {
        wait_for_stop(); /* it was killed, and has ended */
    }
    return wait_for_stop();
}

static int step(int number)
{
    steps++;
    return go(PTRACE_SINGLESTEP, number);
}

static int interrupt_after(double us, int number)
{
    struct timespec time = {(time_t)(us / 1e6), (long)(us * 1e3) % 1000000000};
    ptrace(PTRACE_CONT, thread, 0, number);
    nanosleep(&time, NULL);
    ptrace(PTRACE_INTERRUPT, thread, 0, 0);
    return wait_for_stop();
}

/* ------------------------------------------------------------ where it is */
static void find_compiled_code(void) /* executable memory that belongs to no file */
{
    char path[64], line[1024], access[8], name[8];
    unsigned long start, end, inode;
    FILE *maps;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)thread);
    range_count = 0;
    maps = fopen(path, "r");
    if (maps == NULL)
        return;
    while (fgets(line, sizeof line, maps) != NULL && range_count < MOST_RANGES) {
        name[0] = 0;
        if (sscanf(line, "%lx-%lx %7s %*s %*s %lu %7s", &start, &end, access, &inode, name) < 4)
            continue;
        if (access[2] == 'x' && inode == 0 && name[0] == 0)
            ranges[range_count++] = (struct range){start, end};
    }
    fclose(maps);
}

static int is_in_compiled_code(void)
{
    struct user_regs_struct regs;
    struct iovec where = {&regs, sizeof regs};
    int i;
    if (ptrace(PTRACE_GETREGSET, thread, (void *)NT_PRSTATUS, &where) < 0)
        return 0;
    for (i = 0; i < range_count; i++)
        if (ranges[i].start <= PROGRAM_COUNTER(regs) && PROGRAM_COUNTER(regs) < ranges[i].end)
            return 1;
    return 0;
}

/* Bring the thread to a random instruction. One that sleeps is brought there when somebody wakes it in time. */
static int bring_somewhere(int number)
{
    int tries = chance() < 0.67 ? MOST_TRIES : 1;
    long left = (long)between(1, MOST_STEPS);
    if (stops++ % FRESH_RANGES == 0)
        find_compiled_code();
    do
        number = interrupt_after(between(5, 500), number);
    while (--tries > 0 && !is_in_compiled_code());
    time_is_up = 0;
    alarm(1);
    while (left-- > 0 && !time_is_up)
        number = step(number);
    alarm(0);
    in_compiled += is_in_compiled_code();
    return number;
}

/* ------------------------------------------------------------ what is done to it */
static void slow(int number)
{
    for (;;)
        number = step(number);
}

static void stop(int number)
{
    for (;;) {
        if (chance() < 0.6)
            number = interrupt_after(between(10, 30000), number);
        number = bring_somewhere(number);
        struct timespec hold = {0, (long)(between(20, 100000) * 1e3)};
        if (!let_go)
            nanosleep(&hold, NULL);
    }
}

static void kill_it(int number)
{
    number = interrupt_after(between(100, 100000), number);
    if (chance() < 0.7) /* else where it is, which may be asleep */
        bring_somewhere(number);
    kills = kill(thread, SIGKILL) == 0;
    for (;;)
        wait_for_stop();
}

int main(int count, char **words)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    void (*how)(int) = NULL;
    if (count == 4)
        how = !strcmp(words[1], "slow") ? slow
            : !strcmp(words[1], "stop") ? stop
            : !strcmp(words[1], "kill") ? kill_it
                                        : NULL;
    if (how == NULL)
        return 2;
    thread = atoi(words[2]);
    dice = strtoull(words[3], NULL, 10) * 0x9E3779B97F4A7C15ULL + 1;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) < 0) {
        int status = errno == ESRCH ? 3 : 4;
        perror("tracer");
        return status;
    }
    puts("at work");
    fflush(stdout);
    ptrace(PTRACE_INTERRUPT, thread, 0, 0);
    how(wait_for_stop());
}
