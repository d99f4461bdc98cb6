/* Memory in which large arrays of tasks are made: where the value of a call stays, if it is one of them.
 *
 * numpy asks a handler for the memory of arrays. In a worker it is this one. It hands on what it is asked to
 * numpy's own handler, but for arrays of sizes that were values of calls before: for these a worker has
 * *places*, each the memory of a block for values (see large_values.py). When a call returns an array that is in
 * such a place, and that nothing else refers to, the block is given away with it, and nothing is copied.
 *
 * A place is free, or an array is in it. Other processes see its memory: one that a task has forked makes
 * its arrays elsewhere, and frees none of the places. All is done with the GIL. */
#include "python_abi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PLACES = 16, MOST_OF_A_SIZE = 4, SMALLEST = 1 << 16 };

/* numpy's PyDataMem_Handler, of version 1. */
struct handler {
    char name[127];
    uint8_t version;
    struct {
        void *context;
        void *(*malloc)(void *context, size_t size);
        void *(*calloc)(void *context, size_t count, size_t each);
        void *(*realloc)(void *context, void *memory, size_t size);
        void (*free)(void *context, void *memory, size_t size);
    } does;
};

struct place {
    char *memory; /* none: there is no such place */
    size_t size;
    int64_t block;
    int has_array;
};

static struct handler *usual;
static pid_t owner;
static char *low, *high; /* of the memory of all places that there can be */
static struct place places[PLACES];

static struct place *place_at(const void *memory) {
    for (int i = 0; i < PLACES; i++)
        if (places[i].memory == memory)
            return &places[i];
    return NULL;
}

static int is_here(const void *memory) { return low <= (char *)memory && (char *)memory < high; }

/* Return a free place for some bytes, of which it has not twice as many; it is not free any more. */
static void *take(size_t size) {
    if (size < SMALLEST)
        return NULL;
    for (int i = 0; i < PLACES; i++) {
        struct place *place = &places[i];
        if (place->memory != NULL && !place->has_array && size <= place->size && place->size / 2 < size) {
            if (getpid() != owner)
                return NULL;
            place->has_array = 1;
            return place->memory;
        }
    }
    return NULL;
}

static void *make(void *context, size_t size) {
    (void)context;
    void *memory = take(size);
    return memory != NULL ? memory : usual->does.malloc(usual->does.context, size);
}

static void *make_zeros(void *context, size_t count, size_t each) {
    (void)context;
    size_t size;
    void *memory = __builtin_mul_overflow(count, each, &size) ? NULL : take(size);
    return memory != NULL ? memset(memory, 0, size) : usual->does.calloc(usual->does.context, count, each);
}

static void release(void *context, void *memory, size_t size) {
    (void)context;
    if (!is_here(memory)) {
        usual->does.free(usual->does.context, memory, size);
        return;
    }
    struct place *place = place_at(memory);
    if (place != NULL) /* not given away */
        place->has_array = 0;
}

static void *resize(void *context, void *memory, size_t size) {
    if (!is_here(memory))
        return usual->does.realloc(usual->does.context, memory, size);
    struct place *place = place_at(memory);
    if (place == NULL)
        return NULL;
    if (size <= place->size)
        return memory;
    void *made = usual->does.malloc(usual->does.context, size);
    if (made != NULL) {
        memcpy(made, memory, place->size);
        release(context, memory, place->size);
    }
    return made;
}

static struct handler handler = {"simpler_ref", 1, {NULL, make, make_zeros, resize, release}};

/* ---------------------------------------------------------------- for large_values.py */
/* Say whether this process, or one that it was forked from, has places. */
EXPORT int simpler_ref_has_places(void) { return owner != 0; }

/* Return numpy's handler from now on, if `before` is a capsule with the one until now, and all places are in
 * some memory; NULL with an exception. */
EXPORT PyObject *simpler_ref_handler(PyObject *before, char *first, char *end) {
    usual = PyCapsule_GetPointer(before, "mem_handler");
    if (usual == NULL)
        return NULL;
    owner = getpid();
    low = first;
    high = end;
    return PyCapsule_New(&handler, "mem_handler", NULL);
}

/* Say whether there may be one more place of a size. */
EXPORT int simpler_ref_wants_place(size_t size) {
    int count = 0;
    for (int i = 0; i < PLACES; i++)
        count += places[i].memory != NULL && places[i].size == size;
    return count < MOST_OF_A_SIZE;
}

/* Add a place. Return the block that is none any more, or is not needed; 0: none. */
EXPORT int64_t simpler_ref_add_place(char *memory, size_t size, int64_t block) {
    static int turn;
    struct place *place = place_at(NULL);
    for (int i = 0; place == NULL && i < PLACES; i++) {
        turn = (turn + 1) % PLACES;
        if (!places[turn].has_array)
            place = &places[turn];
    }
    if (place == NULL)
        return block;
    int64_t before = place->memory == NULL ? 0 : place->block;
    *place = (struct place){memory, size, block, 0};
    return before;
}

/* Remove a free place, and return its block; 0: there is none. */
EXPORT int64_t simpler_ref_remove_place(void) {
    for (int i = 0; i < PLACES; i++)
        if (places[i].memory != NULL && !places[i].has_array) {
            places[i].memory = NULL;
            return places[i].block;
        }
    return 0;
}

/* Return the memory of a place with an array, and set the size; NULL: there is no such place. */
EXPORT char *simpler_ref_array_place(int number, size_t *size) {
    if (number >= PLACES || places[number].memory == NULL || !places[number].has_array)
        return NULL;
    *size = places[number].size;
    return places[number].memory;
}

/* Give a place away, with the array in it. */
EXPORT void simpler_ref_give_place(char *memory) { place_at(memory)->memory = NULL; }

/* ---------------------------------------------------------------- for inside.c */
/* Return the block of an array that is a value to which nothing else refers; 0: it is in no place, or
 * something else refers to it. */
int64_t block_of(PyObject *value) {
    struct array *array = (struct array *)value, *whole = array;
    if (low == high || !is_here(array->data) || !is_alone(value) || getpid() != owner)
        return 0;
    if (array->base != NULL) {
        if (array->base->type != value->type || !is_alone(array->base))
            return 0;
        whole = (struct array *)array->base;
        if (whole->base != NULL || whole->data != array->data)
            return 0;
    }
    struct place *place = place_at(array->data);
    return place == NULL ? 0 : place->block;
}
