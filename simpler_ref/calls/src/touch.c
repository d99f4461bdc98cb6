/* Whether the program touches arrays that calls write, with check=True: see checked.py.
 *
 * Nothing in Python sees who reads an array. The processor does, so the pages of such an array are closed to
 * this process, whose workers have mappings of their own. The first touch is a signal: its handler opens the
 * pages again, so that the program goes on, and has Python's main thread report it. */
#include "python_abi.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLOSED = 128 };

static struct span {
    char *start, *end;
} closed[CLOSED];
static struct sigaction usual;
static PyObject *on_touch;
static char *touched; /* where, until Python has been told */
static int by_main_thread;

/* Run by the main thread, with the GIL. */
static int report(void *unused) {
    (void)unused;
    int is_mine = by_main_thread;
    char *address = __atomic_exchange_n(&touched, NULL, __ATOMIC_ACQ_REL);
    PyObject *args = PyTuple_New(2), *made = NULL;
    if (args != NULL) {
        PyTuple_SetItem(args, 0, PyLong_FromLongLong((intptr_t)address));
        PyTuple_SetItem(args, 1, PyLong_FromLongLong(is_mine));
        made = PyObject_CallObject(on_touch, args);
    }
    Py_DecRef(args);
    Py_DecRef(made);
    return made == NULL ? -1 : 0;
}

static void open_pages(int number, siginfo_t *about, void *context) {
    (void)context;
    static char *before;
    char *address = about->si_addr;
    for (int i = 0; i < CLOSED; i++)
        if (closed[i].start <= address && address < closed[i].end) {
            mprotect(closed[i].start, closed[i].end - closed[i].start, PROT_READ | PROT_WRITE);
            char *none = NULL;
            if (__atomic_compare_exchange_n(&touched, &none, address, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
                by_main_thread = gettid() == getpid();
                Py_AddPendingCall(report, NULL);
            }
            return;
        }
    if (address != before) { /* another thread may have opened these pages just now: try again */
        before = address;
        return;
    }
    sigaction(number, &usual, NULL); /* a fault like any other: it comes again */
}

/* ---------------------------------------------------------------- for checked.py */
/* Have a function of Python told of each touch: its address, and whether the main thread did it. */
EXPORT int simpler_ref_tell_touches(PyObject *function) {
    on_touch = new_reference(function);
    struct sigaction mine = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    mine.sa_sigaction = open_pages;
    return sigaction(SIGSEGV, &mine, &usual);
}

/* Close pages to this process, as one of CLOSED spans. */
EXPORT int simpler_ref_close_pages(int i, char *start, char *end) {
    closed[i] = (struct span){start, end};
    return mprotect(start, end - start, PROT_NONE);
}

EXPORT int simpler_ref_open_pages(int i) {
    struct span span = closed[i];
    int code = mprotect(span.start, span.end - span.start, PROT_READ | PROT_WRITE);
    closed[i] = (struct span){NULL, NULL};
    return code;
}
