/* A call in its worker without Python around it: the usual ones, whose arguments are numbers, constants, values
 * of other calls, arrays that were seen before, and what is pickled beside them. All else is left to inside.py. */
#include "python_abi.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TABLE = 512, PROBES = 4, TENSOR_WORDS = 5, MOST_ARGUMENTS = 15 };

/* Numbers of the runtime, and addresses, as quick.py packs them. */
struct numbers {
    int64_t *memory;
    int64_t worker;                        /* first word of the worker */
    int64_t epoch;                         /* word: how often layouts were forgotten */
    int64_t at;                            /* of that: the current frame */
    int64_t mailbox, value, kind;          /* of the frame: the mailbox, and what the call has returned */
    int64_t args, kinds;                   /* bytes from the mailbox on */
    int64_t half, key_bits, code_bits;
    int64_t code_none, code_true, code_false, code_value, code_item, code_array, code_read_array;
    int64_t is_signed, is_double;          /* kinds of scalars */
    int64_t fetched;                       /* with it, a scalar has the kind of a value: what a call has returned */
    int64_t none, boolean, integer, floating, block; /* kinds of values */
    const volatile char *here;             /* 0 in a process that a task has forked */
};

/* Objects of Python, in the order in which quick.py gives them. */
enum {
    FUNCTIONS, /* by their keys */
    RUN,       /* runs a call that is not usual */
    FINISH,    /* answers with a value that is not a number */
    FINISH_PLACED, /* answers with an array, and the block that it is in */
    READ,          /* returns the value in a block */
    LOADS,         /* pickle's */
    SETTLE,        /* lets a call end that had such a value as its argument */
    ARRAY_TYPE,
    FIND,      /* returns the method that makes a view of the array of a tensor */
    FLOAT_TYPE,
    INT_TYPE,
    NONE,
    TRUE,
    FALSE,
    OBJECTS
};

/* An array that was an argument. */
struct view {
    int64_t tensor[TENSOR_WORDS];
    int64_t code;
    PyObject *make; /* none in an empty place */
};

int64_t block_of(PyObject *value); /* in places.c */

struct inside {
    struct numbers n;
    PyObject *o[OBJECTS]; /* of a tuple, which `run` keeps */
    int64_t epoch;
    int has_read; /* the call has the value of a block among its arguments */
    struct view views[TABLE];
};

static struct inside *of(PyObject *self) { return PyCapsule_GetPointer(self, NULL); }

static void forget(struct inside *s) {
    for (int i = 0; i < TABLE; i++) {
        PyObject *make = s->views[i].make;
        s->views[i].make = NULL;
        if (make != NULL)
            Py_DecRef(make);
    }
}

/* ---------------------------------------------------------------- arguments */
static struct view *find(struct inside *s, const int64_t *tensor, int64_t code) {
    uint64_t hash = (uint64_t)code;
    for (int i = 0; i < TENSOR_WORDS; i++)
        hash = (hash ^ (uint64_t)tensor[i]) * 0x9E3779B97F4A7C15u;
    size_t first = (hash ^ hash >> 29) % TABLE;
    for (size_t i = 0; i < PROBES; i++) {
        struct view *view = &s->views[(first + i) % TABLE];
        if (view->make == NULL ||
            (view->code == code && memcmp(view->tensor, tensor, sizeof view->tensor) == 0))
            return view;
    }
    return &s->views[first];
}

/* Return the method that makes a view of a tensor's array: a borrowed reference, or NULL with an exception. */
static PyObject *maker(struct inside *s, const int64_t *tensor, int64_t code) {
    struct view *view = find(s, tensor, code);
    if (view->make != NULL && view->code == code && memcmp(view->tensor, tensor, sizeof view->tensor) == 0)
        return view->make;
    PyObject *wire = PyBytes_FromStringAndSize((const char *)tensor, sizeof view->tensor);
    PyObject *args = wire == NULL ? NULL : PyTuple_New(2);
    if (args == NULL) {
        Py_DecRef(wire);
        return NULL;
    }
    PyTuple_SetItem(args, 0, wire);
    PyTuple_SetItem(args, 1, new_reference(s->o[code == s->n.code_array ? TRUE : FALSE]));
    PyObject *make = PyObject_CallObject(s->o[FIND], args);
    Py_DecRef(args);
    if (make == NULL)
        return NULL;
    PyObject *before = view->make;
    memcpy(view->tensor, tensor, sizeof view->tensor);
    view->code = code;
    view->make = make;
    if (before != NULL)
        Py_DecRef(before);
    return make;
}

/* Return an argument; NULL with an exception, or without one if it is not usual. */
static PyObject *argument(struct inside *s, int64_t code, const int64_t **tensor, const int64_t **word,
                          const uint8_t **kind) {
    if (code == s->n.code_value) {
        int64_t bits = *(*word)++;
        uint8_t is = *(*kind)++;
        double number;
        memcpy(&number, &bits, sizeof number);
        if (is == s->n.is_signed || is == (s->n.fetched | s->n.integer))
            return PyLong_FromLongLong(bits);
        if (is == s->n.is_double || is == (s->n.fetched | s->n.floating))
            return PyFloat_FromDouble(number);
        if (is == (s->n.fetched | s->n.none))
            return new_reference(s->o[NONE]);
        if (is == (s->n.fetched | s->n.boolean))
            return new_reference(s->o[bits ? TRUE : FALSE]);
        if (is != (s->n.fetched | s->n.block))
            return NULL;
        s->has_read = 1;
        return call_with(s->o[READ], PyLong_FromLongLong(bits));
    }
    if (code == s->n.code_array || code == s->n.code_read_array) {
        PyObject *make = maker(s, *tensor, code);
        *tensor += TENSOR_WORDS;
        return make == NULL ? NULL : PyObject_CallObject(make, NULL);
    }
    if (code == s->n.code_none)
        return new_reference(s->o[NONE]);
    if (code == s->n.code_true)
        return new_reference(s->o[TRUE]);
    return code == s->n.code_false ? new_reference(s->o[FALSE]) : NULL;
}

/* Return the names and the values that are pickled, behind all other scalars; NULL as `argument` does. */
static PyObject *pickled(struct inside *s, const int64_t *scalars, const uint8_t *kinds, int64_t count) {
    int64_t size = scalars[count - 1], first = count - 1 - (size + 7) / 8;
    if (kinds[count - 1] != s->n.is_signed) /* a block has them */
        return NULL;
    return call_with(s->o[LOADS], PyBytes_FromStringAndSize((const char *)(scalars + first), size));
}

/* Return the arguments of the call in a mailbox; NULL as `argument` does. */
static PyObject *arguments(struct inside *s, const int64_t *tensor, const int64_t *scalars, const uint8_t *kinds,
                           int64_t number) {
    int64_t count = *scalars >> s->n.key_bits, item = 0; /* the bits above have the number of names */
    if (count > MOST_ARGUMENTS || (count == 0 ? number != 1 : number < 2))
        return NULL;
    const int64_t *word = scalars + 2, codes = count > 0 ? scalars[1] : 0;
    const uint8_t *kind = kinds + 2;
    PyObject *made = PyTuple_New(count), *items = NULL;
    for (int64_t i = 0; made != NULL && i < count; i++) {
        int64_t code = codes >> i * s->n.code_bits & ((1 << s->n.code_bits) - 1);
        PyObject *value = NULL;
        if (code != s->n.code_item)
            value = argument(s, code, &tensor, &word, &kind);
        else if (items != NULL || (items = pickled(s, scalars, kinds, number)) != NULL)
            value = new_reference(PyTuple_GetItem(PyTuple_GetItem(items, 1), item++));
        if (value != NULL) {
            PyTuple_SetItem(made, i, value);
        } else {
            Py_DecRef(made);
            made = NULL;
        }
    }
    Py_DecRef(items);
    return made;
}

/* ---------------------------------------------------------------- the call */
static void answer(struct inside *s, int64_t kind, int64_t word) {
    int64_t *frame = s->n.memory + s->n.worker + s->n.memory[s->n.worker + s->n.at];
    frame[s->n.value] = word;
    frame[s->n.kind] = kind;
}

/* Leave a value where the future finds it; steals it. */
static PyObject *finish(struct inside *s, PyObject *value) {
    int is_too_large = 0;
    int64_t word = 0, kind = -1;
    if (value == s->o[NONE])
        return value;
    if ((PyObject *)value->type == s->o[FLOAT_TYPE]) {
        double number = PyFloat_AsDouble(value);
        memcpy(&word, &number, sizeof word);
        kind = s->n.floating;
    } else if ((PyObject *)value->type == s->o[INT_TYPE]) {
        word = PyLong_AsLongLongAndOverflow(value, &is_too_large);
        kind = is_too_large ? -1 : s->n.integer;
    } else if (value == s->o[TRUE] || value == s->o[FALSE]) {
        word = value == s->o[TRUE];
        kind = s->n.boolean;
    }
    if (kind >= 0) {
        answer(s, kind, word);
        Py_DecRef(value);
        return new_reference(s->o[NONE]);
    }
    int64_t block = (PyObject *)value->type == s->o[ARRAY_TYPE] ? block_of(value) : 0;
    PyObject *args = PyTuple_New(block ? 2 : 1);
    if (args == NULL) {
        Py_DecRef(value);
        return NULL;
    }
    PyTuple_SetItem(args, 0, value);
    if (block)
        PyTuple_SetItem(args, 1, PyLong_FromLongLong(block));
    PyObject *nothing = PyObject_CallObject(s->o[block ? FINISH_PLACED : FINISH], args);
    Py_DecRef(args);
    return nothing;
}

/* call(function, args, names): make a call that `run` has left to Python, and answer. */
static PyObject *call(PyObject *self, PyObject *const *given, intptr_t count) {
    struct inside *s = of(self);
    PyObject *value = count == 3 ? PyObject_Call(given[0], given[1], given[2]) : NULL;
    if (value == NULL || *s->n.here)
        return value == NULL ? NULL : finish(s, value);
    Py_DecRef(value);
    return new_reference(s->o[NONE]);
}

/* run(args): run the call in the worker's current frame. */
static PyObject *run(PyObject *self, PyObject *const *given, intptr_t count) {
    struct inside *s = of(self);
    int64_t epoch = s->n.memory[s->n.epoch];
    if (epoch != s->epoch)
        forget(s);
    s->epoch = epoch;
    s->has_read = 0;
    const int64_t *frame = s->n.memory + s->n.worker + s->n.memory[s->n.worker + s->n.at];
    const char *mailbox = (const char *)(frame + s->n.mailbox);
    const int64_t *words = (const int64_t *)(mailbox + s->n.args);
    const int64_t *scalars = words + 1 + (*words & ((INT64_C(1) << s->n.half) - 1)) * TENSOR_WORDS;
    PyObject *key = PyLong_FromLongLong(*scalars & ((INT64_C(1) << s->n.key_bits) - 1)), *args = NULL;
    PyObject *function = key == NULL ? NULL : PyDict_GetItemWithError(s->o[FUNCTIONS], key);
    Py_DecRef(key);
    Py_IncRef(function);
    if (function != NULL)
        args = arguments(s, words + 1, scalars, (const uint8_t *)mailbox + s->n.kinds, *words >> s->n.half);
    PyObject *value = args == NULL ? NULL : PyObject_CallObject(function, args);
    Py_DecRef(function);
    if (args == NULL)
        return PyErr_Occurred() != NULL || count != 1 ? NULL : call_with(s->o[RUN], new_reference(given[0]));
    Py_DecRef(args);
    if (value != NULL && !*s->n.here) { /* the loop ends this process */
        Py_DecRef(value);
        return new_reference(s->o[NONE]);
    }
    PyObject *nothing = value == NULL ? NULL : finish(s, value);
    if (nothing != NULL && s->has_read) {
        Py_DecRef(nothing);
        nothing = PyObject_CallObject(s->o[SETTLE], NULL);
    }
    return nothing;
}

static void release(PyObject *capsule) {
    struct inside *s = of(capsule);
    forget(s);
    free(s);
}

static PyMethodDef methods[] = {{"run", run, METH_FASTCALL, NULL}, {"call", call, METH_FASTCALL, NULL}};

/* Return `run` and `call` for one worker; or NULL with an exception. As in quick.c, the objects are their
 * module. */
EXPORT PyObject *simpler_ref_inside(PyObject *numbers, PyObject *objects) {
    const char *packed = PyBytes_AsString(numbers);
    struct inside *s = packed == NULL ? NULL : calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    memcpy(&s->n, packed, sizeof s->n);
    for (int i = 0; i < OBJECTS; i++)
        s->o[i] = PyTuple_GetItem(objects, i);
    PyObject *self = PyCapsule_New(s, NULL, release);
    PyObject *made = self == NULL ? NULL : PyTuple_New(2);
    for (int i = 0; made != NULL && i < 2; i++)
        PyTuple_SetItem(made, i, PyCFunction_NewEx(&methods[i], self, objects));
    Py_DecRef(self);
    return made;
}

/* The sizes of what quick.py packs. */
EXPORT const int64_t simpler_ref_inside_sizes[] = {sizeof(struct numbers), OBJECTS, 0, 0, 0};
