/* The cores of a simulated chip, and the threads that feed them.
 *
 * A wave is a handful of launches; each of their blocks is one item. Feeders take the items in order, a
 * chunk at a time, and put them into the queue from which the cores take them. The thread that runs a
 * wave is itself a feeder and a core, so a wave of one block wakes no thread, and any wave comes to its
 * end whether or not other threads can be had. Idle threads sleep. */
#ifndef SIMPLER_POOL_H
#define SIMPLER_POOL_H

#include <pthread.h>

#include "records.h"

#define MAX_FEEDERS 64
#define QUEUE 1024

typedef struct Launch {
    const Core *core;
    uint32_t first; /* item of its first block */
    SimplerCoreArgs args;
} Launch;

struct Wave {
    uint32_t count;
    uint32_t items;
    int32_t feeders;
    atomic_int status; /* of the first block that failed; the others are then left out */
    char text[512];
    Records *records; /* has a record for each item; NULL if nothing is recorded of them */
    Launch launches[MAX_LAUNCHES];
};

typedef struct Pool {
    pthread_mutex_t lock;
    pthread_cond_t work; /* cores: something is in the queue */
    pthread_cond_t feed; /* feeders: something can be put into it */
    pthread_cond_t done; /* the caller: the last item is finished */
    bool open;
    bool stop;
    Wave *wave;
    uint32_t unfed;   /* next item not yet put into the queue */
    uint32_t left;    /* items not finished */
    uint32_t head, tail;
    uint32_t queue[QUEUE];
    int32_t most_cores; /* threads that may run blocks, the caller's included */
    int32_t cores, feeders; /* threads that exist */
    int32_t cores_begun, feeders_begun; /* which is how each gets its number */
    pthread_t core_threads[MAX_CORES];
    pthread_t feeder_threads[MAX_FEEDERS];
} Pool;

/* Run a wave; its status and message are the outcome. Threads are made when first needed. */
void pool_run(Pool *pool, Wave *wave);

/* End and join all threads. */
void pool_close(Pool *pool);

#endif
