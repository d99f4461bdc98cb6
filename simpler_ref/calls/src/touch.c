/* Whether the program touches arrays that calls write, with check=True: see checked.py.
 *
 * Nothing in Python sees who reads an array. The processor does, so the pages of such an array are closed to
 * this process, whose workers have mappings of their own. The first touch is a signal: its handler opens the
 * pages again, so that the program goes on, and has Python's main thread report it. */
#define _GNU_SOURCE
#include "python_abi.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CLOSED = 128, OPEN = PROT_READ | PROT_WRITE };

static struct span { char *start, *end; } closed[CLOSED];
static struct sigaction usual;
static PyObject *on_touch, *frame; /* the frame of Python that has touched; none: not known */
static char *touched;              /* where, until Python has been told */
static int by_main_thread, line;

static int protect(struct span span, int how) { return mprotect(span.start, span.end - span.start, how); }

/* Run by the main thread, with the GIL. */
static int report(void *unused) {
    (void)unused;
    PyObject *args = PyTuple_New(4);
    if (args == NULL)
        return -1;
    PyTuple_SetItem(args, 1, PyLong_FromLongLong(by_main_thread));
    PyTuple_SetItem(args, 2, frame != NULL ? frame : PyLong_FromLongLong(0));
    PyTuple_SetItem(args, 3, PyLong_FromLongLong(line));
    char *address = __atomic_exchange_n(&touched, NULL, __ATOMIC_ACQ_REL);
    PyTuple_SetItem(args, 0, PyLong_FromLongLong((intptr_t)address));
    PyObject *made = PyObject_CallObject(on_touch, args);
    Py_DecRef(args);
    Py_DecRef(made);
    return made == NULL ? -1 : 0;
}

static void open_touched(int number, siginfo_t *about, void *context) {
    static char *before;
    char *address = about->si_addr, *none = NULL;
    for (int i = 0; i < CLOSED; i++)
        if (closed[i].start <= address && address < closed[i].end) {
            protect(closed[i], OPEN);
            if (__atomic_compare_exchange_n(&touched, &none, address, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
                by_main_thread = gettid() == getpid();
                frame = PyGILState_Check() ? new_reference(PyEval_GetFrame()) : NULL; /* numpy runs, not Python */
                line = frame != NULL ? PyFrame_GetLineNumber(frame) : 0;
                if (Py_AddPendingCall(report, NULL) != 0) /* too many wait: the next touch is told */
                    touched = NULL;
            }
            return;
        }
    if (about->si_code > 0 && address != before) {
        before = address; /* another thread may have opened these pages just now: try again */
        return;
    }
    if (usual.sa_handler != SIG_DFL && usual.sa_handler != SIG_IGN) {
        usual.sa_sigaction(number, about, context);
        return;
    }
    sigaction(number, &usual, NULL); /* a fault like any other, which comes again, or a signal that was sent */
    if (about->si_code <= 0)
        raise(number);
}

/* ---------------------------------------------------------------- for checked.py */
/* Have a function of Python told of each touch: its address, and whether the main thread did it. */
EXPORT int simpler_ref_tell_touches(PyObject *function) {
    on_touch = new_reference(function);
    struct sigaction mine = {.sa_sigaction = open_touched, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    return sigaction(SIGSEGV, &mine, &usual);
}

EXPORT int simpler_ref_close_pages(int i, char *start, char *end) {
    return protect(closed[i] = (struct span){start, end}, PROT_NONE);
}

EXPORT void simpler_ref_open_pages(int i) {
    protect(closed[i], OPEN);
    closed[i] = (struct span){NULL, NULL};
}
