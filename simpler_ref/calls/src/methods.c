/* Methods of classes without Python: each does what is usual, and leaves the rest to the method of Python whose
 * place it takes. */
#include "quick.h"

#include <stdbool.h>

enum { SUBMIT, CALL, DROP, SET, METHODS };

/* Objects of Python, in the order in which quick.py gives them; the first are the methods of Python. */
enum {
    OPEN = METHODS, /* a list: the streams of the open Workers */
    HERE,           /* of a thread: IN_TASK says whether it runs a task */
    IN_TASK,
    LIFE, /* of a Worker: its STREAM */
    STREAM,
    STREAM_TYPE,
    TASK_TYPE,
    FALSE,
    NONE,
    OBJECTS
};

static PyObject *o[OBJECTS]; /* of a tuple that lives as long as the process */
static int64_t at_stream, at_slot; /* bytes of a future before its parts */
static int64_t at_native;          /* of a stream: its `struct quick` in a capsule, if it has one */

static PyObject *part(PyObject *object, int64_t at) { return *(PyObject **)((char *)object + at); }

/* ---------------------------------------------------------------- what is not usual */
static PyObject *named(PyObject *const *values, PyObject *names) {
    PyObject *made = PyDict_New();
    for (intptr_t i = 0; made != NULL && i < PyTuple_Size(names); i++) {
        if (PyDict_SetItem(made, PyTuple_GetItem(names, i), values[i]) < 0) {
            Py_DecRef(made);
            return NULL;
        }
    }
    return made;
}

/* Call a method of Python. */
static PyObject *leave_to(PyObject *method, PyObject *self, PyObject *const *given, intptr_t count, PyObject *names) {
    PyObject *kwargs = names == NULL ? NULL : named(given + count, names);
    PyObject *args = names != NULL && kwargs == NULL ? NULL : PyTuple_New(count + 1);
    PyObject *result = NULL;
    if (args != NULL) {
        PyTuple_SetItem(args, 0, new_reference(self));
        for (intptr_t i = 0; i < count; i++)
            PyTuple_SetItem(args, i + 1, new_reference(given[i]));
        result = PyObject_Call(method, args, kwargs);
    }
    Py_DecRef(args);
    Py_DecRef(kwargs);
    return result;
}

/* ---------------------------------------------------------------- calls */
static bool is_in_task(void) {
    PyObject *answer = PyObject_GetAttr(o[HERE], o[IN_TASK]);
    Py_DecRef(answer);
    return answer != o[FALSE];
}

static struct quick *quick_of(PyObject *stream) {
    bool may_have = stream != NULL && (PyObject *)stream->type == o[STREAM_TYPE];
    PyObject *native = may_have ? part(stream, at_native) : NULL;
    return native == NULL || native == o[NONE] ? NULL : PyCapsule_GetPointer(native, NULL);
}

/* Submit a call of a task, or of a plain function that has one; NULL as `call_quickly` does. */
static PyObject *submit_to(PyObject *stream, PyObject *function, PyObject *const *args, intptr_t count) {
    struct quick *q = is_in_task() ? NULL : quick_of(stream);
    PyObject *task = function;
    if (q != NULL && (PyObject *)function->type != o[TASK_TYPE])
        task = quick_task_of(q, function);
    PyErr_Clear();
    if (q == NULL || task == NULL)
        return NULL;
    Py_IncRef(task);
    PyObject *future = call_quickly(q, stream, task, args, count);
    Py_DecRef(task);
    return future;
}

/* Worker.submit(function, *args, **kwargs) */
static PyObject *submit(PyObject *self, PyObject *const *given, intptr_t count, PyObject *names) {
    PyObject *future = NULL;
    if (names == NULL && count > 0) {
        PyObject *life = PyObject_GetAttr(self, o[LIFE]);
        PyObject *stream = life == NULL ? NULL : PyObject_GetAttr(life, o[STREAM]);
        PyErr_Clear();
        future = submit_to(stream, given[0], given + 1, count - 1);
        Py_DecRef(stream);
        Py_DecRef(life);
    }
    return future != NULL || PyErr_Occurred() != NULL ? future : leave_to(o[SUBMIT], self, given, count, names);
}

/* Task.__call__(*args, **kwargs) */
static PyObject *call(PyObject *self, PyObject *const *given, intptr_t count, PyObject *names) {
    PyObject *future = NULL;
    intptr_t open = names == NULL ? PyList_Size(o[OPEN]) : 0;
    if (open == 1) { /* of several, Python knows which is this thread's */
        PyObject *stream = new_reference(PyList_GetItem(o[OPEN], 0));
        future = submit_to(stream, self, given, count);
        Py_DecRef(stream);
    }
    return future != NULL || PyErr_Occurred() != NULL ? future : leave_to(o[CALL], self, given, count, names);
}

/* ---------------------------------------------------------------- futures */
/* Future.__del__() */
static PyObject *drop(PyObject *self, PyObject *const *given, intptr_t count, PyObject *names) {
    PyObject *slot = part(self, at_slot);
    if (slot == NULL || PyLong_AsLongLong(slot) == 0)
        return new_reference(o[NONE]);
    struct quick *q = quick_of(part(self, at_stream));
    if (q == NULL)
        return leave_to(o[DROP], self, given, count, names);
    drop_later(q, self);
    return new_reference(o[NONE]);
}

/* Future.__setattr__(name, value): from now on the garbage collector looks at the future, since the value may lead
 * back to it. */
static PyObject *set(PyObject *self, PyObject *const *given, intptr_t count, PyObject *names) {
    if (!PyObject_GC_IsTracked(self))
        PyObject_GC_Track(self);
    (void)names;
    if (count != 2 || PyObject_GenericSetAttr(self, given[0], given[1]) < 0)
        return NULL;
    return new_reference(o[NONE]);
}

/* ---------------------------------------------------------------- made by quick.py */
static PyMethodDef methods[METHODS] = {
    [SUBMIT] = {"submit", (PyCFunctionFast)(void *)submit, METH_FASTCALL | METH_KEYWORDS, NULL},
    [CALL] = {"__call__", (PyCFunctionFast)(void *)call, METH_FASTCALL | METH_KEYWORDS, NULL},
    [DROP] = {"__del__", (PyCFunctionFast)(void *)drop, METH_FASTCALL | METH_KEYWORDS, NULL},
    [SET] = {"__setattr__", (PyCFunctionFast)(void *)set, METH_FASTCALL | METH_KEYWORDS, NULL},
};

/* Put the methods above into a class each: `classes`, with the texts that describe them, in their order. */
EXPORT PyObject *simpler_ref_methods(PyObject *numbers, PyObject *objects, PyObject *classes) {
    const int64_t *packed = (const void *)PyBytes_AsString(numbers);
    at_stream = packed[0];
    at_slot = packed[1];
    at_native = packed[2];
    Py_IncRef(objects); /* forever */
    for (int i = 0; i < OBJECTS; i++)
        o[i] = PyTuple_GetItem(objects, i);
    for (int i = 0; i < METHODS; i++) {
        PyObject *pair = new_reference(PyTuple_GetItem(classes, i)), *class = PyTuple_GetItem(pair, 0);
        methods[i].doc = PyBytes_AsString(PyTuple_GetItem(pair, 1)); /* which stays, as the pair does */
        PyObject *method = PyDescr_NewMethod(class, &methods[i]);
        if (method == NULL || PyObject_SetAttrString(class, methods[i].name, method) < 0)
            return NULL;
        Py_DecRef(method);
    }
    return new_reference(o[NONE]);
}

EXPORT const int64_t simpler_ref_methods_sizes[] = {3 * sizeof(int64_t), OBJECTS, 0, 0, 0};
