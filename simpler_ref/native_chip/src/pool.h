/* The cores of a simulated chip.
 *
 * A wave is a handful of launches; each of their blocks is one item, and cores take the items in order. The
 * thread that runs a wave is itself a core, so a wave of one block wakes no thread, and any wave comes to its
 * end whether or not other threads can be had. Idle threads sleep. */
#ifndef SIMPLER_POOL_H
#define SIMPLER_POOL_H

#include <pthread.h>

#include "records.h"

typedef struct Launch {
    const Core *core;
    uint32_t first; /* item of its first block */
    SimplerCoreArgs args;
} Launch;

struct Wave {
    uint32_t count;
    uint32_t items;
    atomic_int status; /* of the first block that failed; the others are then left out */
    char text[512];
    Records *records; /* has a record for each item; NULL if nothing is recorded of them */
    Launch launches[MAX_LAUNCHES];
};

typedef struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t work; /* cores: there are items */
    pthread_cond_t done; /* the caller: the last item is finished */
    bool open;
    bool stop;
    Wave *wave;
    uint32_t next;      /* item that no core has taken */
    uint32_t left;      /* items not finished */
    int32_t most_cores; /* threads that may run blocks, the caller's included */
    int32_t cores;      /* threads that exist */
    int32_t begun;      /* which is how each gets its number */
    pthread_t threads[MAX_CORES];
} Pool;

/* Run a wave; its status and message are the outcome. Threads are made when first needed. */
void pool_run(Pool *pool, Wave *wave);

/* End and join all threads. */
void pool_close(Pool *pool);

#endif
