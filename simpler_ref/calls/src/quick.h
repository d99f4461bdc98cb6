/* What methods.c needs of a stream's usual calls. */
#ifndef SIMPLER_REF_QUICK_H
#define SIMPLER_REF_QUICK_H

#include "python_abi.h"

struct quick;

/* Submit a call and return its future; NULL if that is not usual, or with a MemoryError, which is all that it raises. */
PyObject *call_quickly(struct quick *q, PyObject *stream, PyObject *task, PyObject *const *args, intptr_t given);

/* Return the task of a plain function: a borrowed reference; NULL if there is none yet, perhaps with an exception. */
PyObject *quick_task_of(const struct quick *q, PyObject *function);

/* Leave the call of a future that dies to be dropped at the next occasion; from now on nothing finds the future. */
void drop_later(struct quick *q, PyObject *future);

#endif
