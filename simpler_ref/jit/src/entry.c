/* Calls of kernels from Python. A kernel takes the address of words, and returns one; `kernel.py` says which
 * arguments a kernel has, of which an array and bytes take two words: where they are, and their length in words.
 */
#include "python_abi.h"

enum { MOST_WORDS = 24 };

/* A kernel, as kernel.py packs it. */
struct entry {
    int64_t (*kernel)(const int64_t *words);
    int64_t waits;     /* whether other threads may run Python meanwhile */
    int64_t head_size; /* of objects, whose type comes last in it: interpreters without the GIL have another */
    const PyObject *array_type, *dtype;
    char kinds[]; /* of the arguments: w, an array of words; b, bytes; i, an integer; then 0 */
};

EXPORT const int64_t simpler_ref_most_words = MOST_WORDS;

static const struct array *array_of(const struct entry *entry, const PyObject *object) {
    const struct array *array = (const void *)((const char *)object + entry->head_size - sizeof(PyObject));
    if (array->head.type != entry->array_type)
        return NULL;
    if (array->dims != 1 || array->dtype != entry->dtype)
        return NULL;
    return array->strides[0] == sizeof(int64_t) || array->shape[0] <= 1 ? array : NULL;
}

static PyObject *refuse(const char *text) {
    PyErr_SetString(PyExc_TypeError, text);
    return NULL;
}

static PyObject *call(PyObject *self, PyObject *const *args, intptr_t count) {
    const struct entry *entry = (const struct entry *)PyBytes_AsString(self);
    int64_t words[MOST_WORDS], *word = words;
    const char *kind = entry->kinds;
    for (intptr_t i = 0; i < count; i++, kind++) {
        if (*kind == 'w') {
            const struct array *array = array_of(entry, args[i]);
            if (array == NULL)
                return refuse("a kernel takes an array of 64-bit words here");
            *word++ = (int64_t)array->data;
            *word++ = array->shape[0];
        } else if (*kind == 'b') {
            *word = (int64_t)PyBytes_AsString(args[i]);
            if (*word++ == 0)
                return NULL;
            *word++ = PyBytes_Size(args[i]) / (intptr_t)sizeof(int64_t);
        } else if (*kind == 'i') {
            *word = PyLong_AsLongLong(args[i]);
            if (*word++ == -1 && PyErr_Occurred() != NULL)
                return NULL;
        } else {
            break;
        }
    }
    if (*kind != 0 || entry->kinds + count != kind)
        return refuse("a kernel takes another number of arguments");
    if (!entry->waits)
        return PyLong_FromLongLong(entry->kernel(words));
    void *thread = PyEval_SaveThread();
    int64_t answer = entry->kernel(words);
    PyEval_RestoreThread(thread);
    if (PyErr_Occurred() != NULL) /* a compiled leaf has run Python */
        return NULL;
    return PyLong_FromLongLong(answer);
}

/* Return what calls a kernel: a function that keeps the bytes of an entry. */
EXPORT PyObject *simpler_ref_entry(PyObject *entry) {
    static PyMethodDef method = {"kernel", call, METH_FASTCALL, NULL};
    return PyCFunction_NewEx(&method, entry, NULL);
}
