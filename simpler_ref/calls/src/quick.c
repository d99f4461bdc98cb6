/* Calls of tasks without Python: the usual ones, whose arguments are arrays that were seen before, or new views
 * of shared memory with a known layout, numbers, constants, futures, and a short pickle of plain values; and values
 * that fit a word, or are such a pickle. All else, and all that has to wait, is refused by returning None or False,
 * with nothing changed: stream.py does it then.
 *
 * A function here holds the GIL from its begin to its end and runs no code of Python while it has the lock, so
 * no other thread, signal handler or garbage collection sees it half done. What it does with the lock
 * allocates no object that the garbage collector knows.
 */
#include "python_abi.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 15, MOST_DIMS = 6, TABLE = 1024, PROBES = 4 };
enum { TENSOR_WORDS = 5, SCALAR_WORDS = 2, MOST_PICKLED = 65 /* words, one of them with the length in bytes */ };
enum { MOST_WORDS = MOST_ARGUMENTS * TENSOR_WORDS + (2 + MOST_PICKLED) * SCALAR_WORDS };

/* A layout, as quick.py packs it: what an array must have, and what its tensor has then. */
struct layout {
    int64_t epoch;         /* in which its number means it */
    const PyObject *dtype; /* none in an empty place */
    int64_t dims;
    intptr_t shape[MOST_DIMS];
    intptr_t strides[MOST_DIMS];
    int64_t below;
    int64_t extent;
    int64_t rest[TENSOR_WORDS - 1]; /* the tensor after its address, without a tag */
};

/* What is known of a task, as quick.py packs it. */
struct plan {
    int64_t key;
    int64_t least, named, most; /* arguments: those that a usual call gives, those with a name, and with *args */
    struct {
        int64_t code;         /* of an array */
        int64_t tag;          /* for the last word of its tensor */
        int64_t flags;        /* that an array must have: numpy's */
        int64_t takes_values; /* as they are: no array is made of a list */
        const PyObject *type; /* the only one that is not converted; none: any */
        PyObject *given;      /* the default of an array; none: the function has its own */
    } parameters[MOST_ARGUMENTS];
};

/* Numbers of the runtime, and addresses, as quick.py packs them. */
struct numbers {
    int64_t memory, size;
    const int64_t *epoch; /* how often layouts were forgotten */
    int64_t (*call)(const int64_t *); /* kernels: see entry.c */
    int64_t (*read_outcome)(const int64_t *);
    int64_t (*drop)(const int64_t *);
    int64_t first_slot, slot_words, slots;
    uintptr_t seen[2][2]; /* memory that all workers see */
    int64_t half;         /* bits of a half word: of the count of tensors */
    int64_t key_bits, code_bits, block_head; /* words of a block before its bytes */
    int64_t code_none, code_true, code_false, code_value, code_item;
    int64_t is_signed, is_double, is_future; /* kinds of scalars */
    int64_t none, boolean, integer, floating, numpy_bool, numpy_integer, numpy_double, block; /* kinds of values */
    int64_t at_stream, at_slot, at_value; /* bytes of a future before its parts */
};

/* Objects of Python, in the order in which quick.py gives them. */
enum {
    ACQUIRE, /* of the lock */
    RELEASE,
    DO_NOT_WAIT, /* its arguments */
    PLANS,
    FETCHING, /* slots whose values Python is just fetching, maybe around a signal handler */
    TASKS,    /* of plain functions */
    FUTURE_TYPE,
    ARRAY_TYPE,
    FLOAT_TYPE,
    INT_TYPE,
    PLAIN, /* a dict: types of values that are pickled */
    LOADS, /* pickle's */
    NUMPY_BOOL,
    NUMPY_INTEGER,
    NUMPY_DOUBLE,
    NONE,
    TRUE,
    FALSE,
    ZERO,
    NOTHING, /* an empty tuple */
    OBJECTS
};

/* What is known of a slot. */
struct entry {
    PyObject *number;   /* itself, once it was used */
    PyObject *future;   /* of its call, until that dies: no reference */
    struct entry *next; /* of those whose calls are to be dropped */
};

struct quick {
    struct numbers n;
    PyObject *o[OBJECTS]; /* of a tuple, which the functions keep */
    PyObject *(*new)(PyObject *type, PyObject *args, PyObject *names);
    PyObject *dead; /* a dict: workers that have died; none while no calls are possible */
    int64_t word;
    struct entry *entries, *dropped;
    int64_t used; /* entries */
    struct layout layouts[TABLE];
};

static struct quick *of(PyObject *self) { return PyCapsule_GetPointer(self, NULL); }

/* ---------------------------------------------------------------- futures */
/* A part of a future, such as its slot: the place of one of its `__slots__`; NULL until it has one. */
static PyObject **part(PyObject *future, int64_t at) { return (PyObject **)((char *)future + at); }

static void set_part(PyObject *future, int64_t at, PyObject *value) {
    PyObject *before = *part(future, at);
    *part(future, at) = new_reference(value);
    if (before != NULL)
        Py_DecRef(before);
}

static int64_t slot_of(const struct quick *q, PyObject *future) {
    PyObject *number = *part(future, q->n.at_slot);
    return number == NULL ? 0 : PyLong_AsLongLong(number);
}

static bool is_future(const struct quick *q, const PyObject *value) {
    return (PyObject *)value->type == q->o[FUTURE_TYPE];
}

static PyObject *new_future(struct quick *q, PyObject *stream) {
    PyObject *future = q->new(q->o[FUTURE_TYPE], q->o[NOTHING], NULL);
    if (future != NULL) {
        set_part(future, q->n.at_stream, stream);
        set_part(future, q->n.at_slot, q->o[ZERO]);
    }
    return future;
}

/* ---------------------------------------------------------------- the lock */
static bool take_lock(struct quick *q) {
    PyObject *taken = PyObject_CallObject(q->o[ACQUIRE], q->o[DO_NOT_WAIT]);
    if (taken == NULL) {
        PyErr_Clear();
        return false;
    }
    Py_DecRef(taken);
    return taken == q->o[TRUE];
}

static void release_lock(struct quick *q) {
    PyObject *nothing = PyObject_CallObject(q->o[RELEASE], NULL);
    if (nothing == NULL)
        PyErr_Clear();
    else
        Py_DecRef(nothing);
}

/* ---------------------------------------------------------------- calls and their futures */
static struct entry *entry_of(const struct quick *q, int64_t slot) {
    return &q->entries[(slot - q->n.first_slot) / q->n.slot_words];
}

/* Let a call have a future; return whether there was memory for that. */
static bool enter(struct quick *q, int64_t slot, PyObject *future) {
    struct entry *entry = entry_of(q, slot);
    if (entry->number == NULL)
        entry->number = PyLong_FromLongLong(slot);
    if (entry->number == NULL)
        return false;
    if (q->used <= entry - q->entries)
        q->used = entry - q->entries + 1;
    entry->future = future;
    set_part(future, q->n.at_slot, entry->number);
    return true;
}

/* Say whether a future is gone that a signal, raised as its finalizer began, has kept from saying so: every
 * future that is there refers to the number of its slot. */
static bool is_gone(const struct entry *entry) {
    return entry->future != NULL && (uint32_t)entry->number->references == 1;
}

/* Return a call's future: a reference; or NULL if it has none. One whose end the interpreter has put off, as it
 * does if many objects die within each other, has no references, and gets none. */
static PyObject *future_of(const struct entry *entry) {
    bool lives = entry->future != NULL && !is_gone(entry) && (uint32_t)entry->future->references != 0;
    return lives ? new_reference(entry->future) : NULL;
}

static void leave_to_be_dropped(struct quick *q, struct entry *entry) {
    entry->future = NULL;
    entry->next = q->dropped;
    q->dropped = entry;
}

/* Leave the call of a future that dies to be dropped at the next occasion; from now on nothing finds the future. */
static void drop_later(struct quick *q, PyObject *future) {
    int64_t slot = slot_of(q, future);
    if (slot == 0)
        return;
    leave_to_be_dropped(q, entry_of(q, slot));
    set_part(future, q->n.at_slot, q->o[ZERO]); /* a finalizer may take the future back */
}

static void drop_call(const struct quick *q, int64_t slot) {
    q->n.drop((int64_t[]){q->n.memory, q->n.size, slot});
}

/* Drop some calls whose futures have died, so that these do not become more and more. */
static void drop(struct quick *q, intptr_t most) {
    for (; most > 0 && q->dropped != NULL; most--) {
        int64_t slot = q->n.first_slot + (q->dropped - q->entries) * q->n.slot_words;
        q->dropped = q->dropped->next;
        drop_call(q, slot);
    }
}

/* ---------------------------------------------------------------- arguments */
static size_t place_of(const void *dtype, int64_t dims, const intptr_t *shape, const intptr_t *strides) {
    uint64_t hash = (uintptr_t)dtype >> 4;
    for (int64_t i = 0; i < dims; i++)
        hash = ((hash ^ (uint64_t)shape[i]) * 0x9E3779B97F4A7C15u ^ (uint64_t)strides[i]) * 0xD6E8FEB86659FD93u;
    return (hash ^ hash >> 32) % TABLE;
}

static bool has_layout(const struct layout *layout, const void *dtype, int64_t dims, const intptr_t *shape,
                       const intptr_t *strides) {
    size_t nbytes = (size_t)dims * sizeof *shape;
    return layout->dtype == dtype && layout->dims == dims && memcmp(layout->shape, shape, nbytes) == 0 &&
           memcmp(layout->strides, strides, nbytes) == 0;
}

/* Return a layout's place: where it is, or else where it may go. */
static struct layout *find(struct quick *q, const void *dtype, int64_t dims, const intptr_t *shape,
                           const intptr_t *strides) {
    size_t first = place_of(dtype, dims, shape, strides);
    for (size_t i = 0; i < PROBES; i++) {
        struct layout *layout = &q->layouts[(first + i) % TABLE];
        if (layout->dtype == NULL || has_layout(layout, dtype, dims, shape, strides))
            return layout;
    }
    return &q->layouts[first];
}

static bool is_seen(const struct quick *q, uintptr_t start, uintptr_t nbytes) {
    for (int i = 0; i < 2; i++)
        if (q->n.seen[i][0] <= start && start <= q->n.seen[i][1] && nbytes <= q->n.seen[i][1] - start)
            return true; /* a sum could wrap round */
    return nbytes == 0;
}

static bool add_array(struct quick *q, const struct array *array, int64_t tag, int64_t flags, int64_t *words) {
    if (array->dims > MOST_DIMS || (flags & ~(int64_t)array->flags) != 0)
        return false;
    const struct layout *layout = find(q, array->dtype, array->dims, array->shape, array->strides);
    if (!has_layout(layout, array->dtype, array->dims, array->shape, array->strides) ||
        !is_seen(q, (uintptr_t)array->data - (uintptr_t)layout->below, (uintptr_t)layout->extent))
        return false;
    words[0] = (int64_t)array->data;
    memcpy(words + 1, layout->rest, sizeof layout->rest);
    words[TENSOR_WORDS - 1] |= tag;
    return true;
}

/* Return the slot from which a worker gets the value of a future; 0 if it is of another stream, or fetched. */
static int64_t awaited_slot(struct quick *q, PyObject *future, const PyObject *stream) {
    bool is_ours = *part(future, q->n.at_stream) == stream;
    return is_ours && PyObject_Size(q->o[FETCHING]) == 0 ? slot_of(q, future) : 0;
}

/* Return what a future's call has returned, once that was fetched; NULL if it is an array, or has failed. */
static PyObject *fetched(struct quick *q, PyObject *future) {
    PyObject *value = *part(future, q->n.at_value);
    return value == NULL || (PyObject *)value->type == q->o[ARRAY_TYPE] ? NULL : value;
}

/* Pack the arguments of a call; return the counts of tensors and scalars, or -1. `pickled` has those that are
 * plain values, as words; or it is NULL. */
static int64_t pack(struct quick *q, const PyObject *stream, const struct plan *plan, PyObject *const *args,
                    intptr_t given, PyObject *pickled, int64_t *words) {
    int64_t scalars[MOST_ARGUMENTS * SCALAR_WORDS], codes = 0, tensors = 0, numbers = 0, count = given;
    while (count < plan->named && plan->parameters[count].given != NULL)
        count++;
    for (int64_t i = 0; i < count; i++) {
        PyObject *value = i < given ? args[i] : plan->parameters[i].given;
        int64_t code = q->n.code_value, *scalar = &scalars[numbers * SCALAR_WORDS];
        int64_t slot = is_future(q, value) ? awaited_slot(q, value, stream) : 0;
        if (slot == 0 && is_future(q, value))
            value = fetched(q, value);
        if (value == NULL)
            return -1;
        const PyObject *wanted = plan->parameters[i].type;
        if (wanted != NULL && (PyObject *)value->type != wanted)
            return -1;
        if ((PyObject *)value->type == q->o[ARRAY_TYPE]) {
            int64_t *tensor = words + tensors++ * TENSOR_WORDS;
            if (!add_array(q, (const struct array *)value, plan->parameters[i].tag, plan->parameters[i].flags, tensor))
                return -1;
            code = plan->parameters[i].code;
        } else if (plan->parameters[i].flags != 0 && value != q->o[NONE]) {
            return -1; /* the task writes an array there */
        } else if ((PyObject *)value->type == q->o[FLOAT_TYPE]) {
            double number = PyFloat_AsDouble(value);
            memcpy(scalar, &number, sizeof number);
            scalar[1] = q->n.is_double;
            numbers++;
        } else if ((PyObject *)value->type == q->o[INT_TYPE]) {
            int is_too_large = 0;
            scalar[0] = PyLong_AsLongLongAndOverflow(value, &is_too_large);
            scalar[1] = q->n.is_signed;
            if (is_too_large)
                return -1;
            numbers++;
        } else if (slot > 0) {
            scalar[0] = slot;
            scalar[1] = q->n.is_future;
            numbers++;
        } else if (value == q->o[NONE]) {
            code = q->n.code_none;
        } else if (value == q->o[TRUE]) {
            code = q->n.code_true;
        } else if (value == q->o[FALSE]) {
            code = q->n.code_false;
        } else if (pickled != NULL && plan->parameters[i].takes_values && i < given && value == args[i] &&
                   PyDict_GetItemWithError(q->o[PLAIN], (PyObject *)value->type) != NULL) {
            code = q->n.code_item;
        } else {
            return -1;
        }
        codes |= code << i * q->n.code_bits;
    }
    int64_t *head = words + tensors * TENSOR_WORDS, heads = 0;
    head[heads++] = plan->key | count << q->n.key_bits;
    head[heads++] = q->n.is_signed;
    if (count > 0) {
        head[heads++] = codes;
        head[heads++] = q->n.is_signed;
    }
    memcpy(head + heads, scalars, (size_t)(numbers * SCALAR_WORDS) * sizeof *scalars);
    heads += numbers * SCALAR_WORDS;
    const int64_t *word = pickled == NULL ? NULL : (const void *)PyBytes_AsString(pickled);
    for (intptr_t i = 0; word != NULL && i < PyBytes_Size(pickled) / (intptr_t)sizeof *word; i++) {
        head[heads++] = word[i];
        head[heads++] = q->n.is_signed;
    }
    return tensors | heads / SCALAR_WORDS << q->n.half;
}

/* ---------------------------------------------------------------- a call */
/* Submit a call with the lock, for a future.
 *
 * Returns  1; 0 if that was not possible; or -1 if it runs, and there is no memory for its slot
 */
static int submit(struct quick *q, const PyObject *stream, const struct plan *plan, PyObject *const *args,
                  intptr_t given, PyObject *pickled, PyObject *future) {
    int64_t words[MOST_WORDS];
    int64_t counts = pack(q, stream, plan, args, given, pickled, words);
    if (counts < 0 || q->dead == NULL || PyDict_Size(q->dead) != 0)
        return 0;
    int64_t tensors = counts & ((INT64_C(1) << q->n.half) - 1), numbers = counts >> q->n.half;
    int64_t length = tensors * TENSOR_WORDS + numbers * SCALAR_WORDS;
    drop(q, 2);
    int64_t slot = q->n.call((int64_t[]){q->n.memory, q->n.size, q->word, counts, (int64_t)words, length});
    if (slot < 0)
        return 0;
    if (enter(q, slot, future))
        return 1;
    PyErr_Clear();
    drop_call(q, slot);
    return -1;
}

static const struct plan *plan_of(struct quick *q, PyObject *task) {
    PyObject *known = PyDict_GetItemWithError(q->o[PLANS], task);
    if (known == NULL) { /* a plain function has a task that Python has made for it */
        task = PyDict_GetItemWithError(q->o[TASKS], task);
        known = task == NULL ? NULL : PyDict_GetItemWithError(q->o[PLANS], task);
    }
    PyErr_Clear(); /* it may have no hash */
    return known == NULL ? NULL : (const void *)PyBytes_AsString(known);
}

/* call(stream, task, args, pickled=): submit a call of a task, or of a plain function that has one, and return its
 * future; None if that is not usual; raises MemoryError alone. */
static PyObject *call(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    intptr_t length = count >= 3 && q->dead != NULL ? PyTuple_Size(given[2]) : -1;
    const struct plan *plan = length < 0 ? NULL : plan_of(q, given[1]);
    if (plan == NULL || length < plan->least || length > plan->most)
        return new_reference(q->o[NONE]);
    PyObject *args[MOST_ARGUMENTS];
    for (intptr_t i = 0; i < length; i++)
        args[i] = PyTuple_GetItem(given[2], i);
    PyObject *future = new_future(q, given[0]);
    int submitted = 0;
    if (future != NULL && take_lock(q)) {
        submitted = submit(q, given[0], plan, args, length, count > 3 ? given[3] : NULL, future);
        release_lock(q);
    }
    PyErr_Clear();
    if (submitted > 0)
        return future;
    Py_DecRef(future);
    return submitted < 0 ? PyErr_NoMemory() : new_reference(q->o[NONE]);
}

/* ---------------------------------------------------------------- a value */
/* Return the value in a block if it is a short pickle, of what pickle makes without Python: no class is in it. */
static PyObject *unpickled(struct quick *q, int64_t block) {
    const int64_t *data = (const int64_t *)q->n.memory + block + q->n.block_head;
    const char *text = (const char *)(data + 8); /* see outcomes.py */
    if (data[0] != 1 || data[1] > MOST_PICKLED * 8 || memchr(text, '\x93', (size_t)data[1]) != NULL)
        return NULL;
    return call_with(q->o[LOADS], PyBytes_FromStringAndSize(text, data[1]));
}

static PyObject *value_of(struct quick *q, int64_t kind, int64_t word) {
    double number;
    memcpy(&number, &word, sizeof number);
    if (kind == q->n.none)
        return new_reference(q->o[NONE]);
    if (kind == q->n.boolean)
        return new_reference(q->o[word ? TRUE : FALSE]);
    if (kind == q->n.integer)
        return PyLong_FromLongLong(word);
    if (kind == q->n.floating)
        return PyFloat_FromDouble(number);
    if (kind == q->n.numpy_bool)
        return call_with(q->o[NUMPY_BOOL], new_reference(q->o[word ? TRUE : FALSE]));
    if (kind == q->n.numpy_integer)
        return call_with(q->o[NUMPY_INTEGER], PyLong_FromLongLong(word));
    if (kind == q->n.numpy_double)
        return call_with(q->o[NUMPY_DOUBLE], PyFloat_FromDouble(number));
    return kind == q->n.block ? unpickled(q, word) : NULL;
}

/* Give a future its value, with the lock, unless it has one by now. */
static bool give(struct quick *q, PyObject *future, int64_t slot, PyObject *value) {
    bool is_given = q->dead != NULL && slot_of(q, future) == slot && PyObject_Size(q->o[FETCHING]) == 0;
    if (is_given) {
        entry_of(q, slot)->future = NULL;
        set_part(future, q->n.at_value, value);
        set_part(future, q->n.at_slot, q->o[ZERO]);
        set_part(future, q->n.at_stream, q->o[NONE]);
        drop_call(q, slot);
    }
    return is_given;
}

/* Give a future its value if its call has ended.
 *
 * Returns  1 if it has one now; 0 if the call has not ended; or 2 if it has, and that is not usual
 */
static int64_t take_value(struct quick *q, PyObject *future) {
    int64_t slot = q->dead == NULL ? 0 : slot_of(q, future), outcome[2];
    int64_t found = slot > 0 ? q->n.read_outcome((int64_t[]){q->n.memory, q->n.size, slot, (int64_t)outcome}) : 2;
    if (found != 1)
        return found;
    PyObject *value = value_of(q, outcome[0], outcome[1]);
    bool is_given = false;
    if (value != NULL && take_lock(q)) {
        is_given = give(q, future, slot, value);
        release_lock(q);
    }
    Py_DecRef(value);
    PyErr_Clear();
    return is_given ? 1 : 2;
}

/* take(future): give a future its value if its call has ended; return whether it has one. */
static PyObject *take(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    return new_reference(q->o[count == 1 && take_value(q, given[0]) == 1 ? TRUE : FALSE]);
}

/* Return futures in a list, all of them, or those that are given no value, although it may be there. */
static PyObject *listed(struct quick *q, bool all) {
    PyObject *made = PyList_New(0);
    for (int64_t i = 0; made != NULL && i < q->used; i++) {
        if (is_gone(&q->entries[i]))
            leave_to_be_dropped(q, &q->entries[i]);
        PyObject *future = future_of(&q->entries[i]);
        bool is_wanted = future != NULL && (all || take_value(q, future) == 2);
        bool is_kept = !is_wanted || PyList_Append(made, future) == 0;
        Py_DecRef(future);
        if (!is_kept) {
            Py_DecRef(made);
            return NULL;
        }
    }
    return made;
}

/* keep(): give all futures their values; return those whose values, which may be there, are not usual. */
static PyObject *keep(PyObject *self, PyObject *const *given, intptr_t count) {
    (void)given, (void)count;
    return listed(of(self), false);
}

/* ---------------------------------------------------------------- the same for stream.py */
/* enter(slot, future): let a call have a future, which gets the slot. */
static PyObject *enter_slot(PyObject *self, PyObject *const *given, intptr_t count) {
    bool is_entered = count == 2 && enter(of(self), PyLong_AsLongLong(given[0]), given[1]);
    return is_entered ? new_reference(of(self)->o[NONE]) : NULL;
}

/* leave(slot): let a call have no future. */
static PyObject *leave(PyObject *self, PyObject *const *given, intptr_t count) {
    if (count == 1)
        entry_of(of(self), PyLong_AsLongLong(given[0]))->future = NULL;
    return new_reference(of(self)->o[NONE]);
}

/* find(slot): return a call's future, or None. */
static PyObject *find_future(PyObject *self, PyObject *const *given, intptr_t count) {
    PyObject *future = count == 1 ? future_of(entry_of(of(self), PyLong_AsLongLong(given[0]))) : NULL;
    return future != NULL ? future : new_reference(of(self)->o[NONE]);
}

/* futures(): return all. */
static PyObject *futures(PyObject *self, PyObject *const *given, intptr_t count) {
    (void)given, (void)count;
    return listed(of(self), true);
}

/* drop_later(future): its call will be dropped at the next occasion. */
static PyObject *drop_future_later(PyObject *self, PyObject *const *given, intptr_t count) {
    if (count == 1)
        drop_later(of(self), given[0]);
    return new_reference(of(self)->o[NONE]);
}

/* drop_all(): drop all calls whose futures have died; with the lock. */
static PyObject *drop_all(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    (void)given, (void)count;
    drop(q, INTPTR_MAX);
    return new_reference(q->o[NONE]);
}

/* ---------------------------------------------------------------- what it knows */
/* learn(layout): know a layout until `forget`, unless another thread has made its number void by now. */
static PyObject *learn(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    const struct layout *new = count == 1 ? (const void *)PyBytes_AsString(given[0]) : NULL;
    if (new != NULL && PyBytes_Size(given[0]) == sizeof *new && new->epoch == *q->n.epoch)
        *find(q, new->dtype, new->dims, new->shape, new->strides) = *new;
    PyErr_Clear();
    return new_reference(q->o[NONE]);
}

/* forget(): forget all layouts. */
static PyObject *forget(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    (void)given, (void)count;
    memset(q->layouts, 0, sizeof q->layouts);
    return new_reference(q->o[NONE]);
}

/* start(word, dead): make calls, with a word of the stream's callable; start(0, None): make no more. */
static PyObject *start(PyObject *self, PyObject *const *given, intptr_t count) {
    struct quick *q = of(self);
    PyObject *before = q->dead;
    q->dead = NULL;
    if (count == 2 && given[1] != q->o[NONE]) {
        q->word = PyLong_AsLongLong(given[0]);
        q->dead = new_reference(given[1]);
    }
    if (before != NULL)
        Py_DecRef(before);
    PyErr_Clear();
    return new_reference(q->o[NONE]);
}

/* ---------------------------------------------------------------- made by quick.py */
static void release(PyObject *capsule) {
    struct quick *q = of(capsule);
    if (q->dead != NULL)
        Py_DecRef(q->dead);
    for (int64_t i = 0; i < q->used; i++)
        Py_DecRef(q->entries[i].number);
    free(q->entries);
    free(q);
}

static PyMethodDef methods[] = {
    {"call", call, METH_FASTCALL, NULL},
    {"take", take, METH_FASTCALL, NULL},
    {"keep", keep, METH_FASTCALL, NULL},
    {"enter", enter_slot, METH_FASTCALL, NULL},
    {"leave", leave, METH_FASTCALL, NULL},
    {"find", find_future, METH_FASTCALL, NULL},
    {"futures", futures, METH_FASTCALL, NULL},
    {"drop_later", drop_future_later, METH_FASTCALL, NULL},
    {"drop_all", drop_all, METH_FASTCALL, NULL},
    {"learn", learn, METH_FASTCALL, NULL},
    {"forget", forget, METH_FASTCALL, NULL},
    {"start", start, METH_FASTCALL, NULL},
};
enum { METHODS = sizeof methods / sizeof *methods };

/* Return the functions above, for one stream: a tuple; or NULL with an exception.
 *
 * The objects take the place of their module, since the garbage collector looks there and not into a capsule:
 * a task may refer to futures of its own stream. */
EXPORT PyObject *simpler_ref_quick(PyObject *numbers, PyObject *objects) {
    const char *packed = PyBytes_AsString(numbers);
    struct quick *q = packed == NULL ? NULL : calloc(1, sizeof *q);
    if (q == NULL)
        return NULL;
    memcpy(&q->n, packed, sizeof q->n);
    q->entries = calloc((size_t)q->n.slots, sizeof *q->entries); /* of which the system gives what is used */
    if (q->entries == NULL) {
        free(q);
        return PyErr_NoMemory();
    }
    for (int i = 0; i < OBJECTS; i++)
        q->o[i] = PyTuple_GetItem(objects, i);
    q->new = PyType_GetSlot(q->o[FUTURE_TYPE], PY_TP_NEW);
    PyObject *self = PyCapsule_New(q, NULL, release);
    PyObject *made = self == NULL ? NULL : PyTuple_New(METHODS);
    for (int i = 0; made != NULL && i < METHODS; i++)
        PyTuple_SetItem(made, i, PyCFunction_NewEx(&methods[i], self, objects));
    Py_DecRef(self); /* the functions keep it */
    return PyErr_Occurred() == NULL ? made : NULL;
}

/* The sizes of what quick.py packs. */
EXPORT const int64_t simpler_ref_quick_sizes[] = {
    sizeof(struct numbers), OBJECTS, sizeof(struct plan), MOST_DIMS, MOST_ARGUMENTS,
};
