/* The part of Python's stable ABI that the C sources use. Declared here, so that building needs no headers of
 * Python, and one build serves every version. Interpreters without the GIL have other objects: quick.py
 * does not load its library there. */
#ifndef SIMPLER_REF_PYTHON_ABI_H
#define SIMPLER_REF_PYTHON_ABI_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct PyObject {
    intptr_t references;
    struct PyObject *type;
} PyObject;

/* An array of numpy: the beginning of PyArrayObject, the same since numpy 1.7. */
struct array {
    PyObject head;
    char *data;
    int dims;
    const intptr_t *shape;
    const intptr_t *strides;
    PyObject *base;
    PyObject *dtype;
    int flags;
};

typedef PyObject *(*PyCFunctionFast)(PyObject *self, PyObject *const *args, intptr_t count);

typedef struct {
    const char *name;
    PyCFunctionFast function;
    int flags;
    const char *doc;
} PyMethodDef;

enum { METH_KEYWORDS = 0x02, METH_FASTCALL = 0x80 };
enum { PY_TP_NEW = 65 };

void Py_IncRef(PyObject *object);
void Py_DecRef(PyObject *object); /* this and the one above: of NULL, too */
PyObject *PyCFunction_NewEx(PyMethodDef *method, PyObject *self, PyObject *module);
PyObject *PyCapsule_New(void *pointer, const char *name, void (*destructor)(PyObject *));
void *PyCapsule_GetPointer(PyObject *capsule, const char *name);
extern PyObject *PyExc_TypeError;
void PyErr_Clear(void);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
int Py_AddPendingCall(int (*function)(void *), void *argument);
int PyGILState_Check(void);
PyObject *PyEval_GetFrame(void);
int PyFrame_GetLineNumber(PyObject *frame);
PyObject *PyObject_Call(PyObject *callable, PyObject *args, PyObject *names);
void PyErr_SetString(PyObject *type, const char *text);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *thread);
PyObject *PyObject_CallObject(PyObject *callable, PyObject *args);
PyObject *PyBytes_FromStringAndSize(const char *bytes, intptr_t size);
char *PyBytes_AsString(PyObject *bytes);
intptr_t PyBytes_Size(PyObject *bytes);
PyObject *PyDict_GetItemWithError(PyObject *dict, PyObject *key);
intptr_t PyDict_Size(PyObject *dict);
intptr_t PyObject_Size(PyObject *object);
PyObject *PyList_New(intptr_t size);
int PyList_Append(PyObject *list, PyObject *item);
PyObject *PyTuple_New(intptr_t size);
intptr_t PyTuple_Size(PyObject *tuple);
PyObject *PyTuple_GetItem(PyObject *tuple, intptr_t index);
int PyTuple_SetItem(PyObject *tuple, intptr_t index, PyObject *item);
PyObject *PyLong_FromLongLong(long long number);
long long PyLong_AsLongLong(PyObject *number);
long long PyLong_AsLongLongAndOverflow(PyObject *number, int *overflow);
PyObject *PyFloat_FromDouble(double number);
double PyFloat_AsDouble(PyObject *number);
void *PyType_GetSlot(PyObject *type, int slot);

/* Say whether there is one reference. The upper bits may have flags. */
static inline int is_alone(const PyObject *object) { return (uint32_t)object->references == 1; }

static inline PyObject *new_reference(PyObject *object) {
    Py_IncRef(object);
    return object;
}

/* Call with one argument, whose reference it takes; NULL with an exception, or if there is no argument. */
static inline PyObject *call_with(PyObject *function, PyObject *argument) {
    PyObject *args = argument == NULL ? NULL : PyTuple_New(1);
    if (args != NULL)
        PyTuple_SetItem(args, 0, argument);
    else
        Py_DecRef(argument);
    PyObject *made = args == NULL ? NULL : PyObject_CallObject(function, args);
    Py_DecRef(args);
    return made;
}

#endif
