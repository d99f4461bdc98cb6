#define _GNU_SOURCE
#include "pool.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shim.h"

#define CORE_STACK (1 << 20)

/* ---------------------------------------------------------------- one block */

typedef struct Block {
    const Launch *launch;
    SimplerCoreArgs args;
    int32_t status;
} Block;

static void block_step(void *of)
{
    Block *block = of;
    block->status = block->launch->core->kernel(&block->args);
}

static const Launch *launch_of(const Wave *wave, uint32_t item)
{
    const Launch *launch = &wave->launches[wave->count - 1];
    while (launch->first > item)
        launch--;
    return launch;
}

static void describe_status(int32_t status, char *what, size_t room)
{
    const int64_t dtype = (int64_t)SIMPLER_KERNEL_WRONG_DTYPE - status;
    const int64_t ndims = (int64_t)SIMPLER_KERNEL_WRONG_NDIMS - status;
    if (dtype >= 0 && dtype < SIMPLER_CORE_MAX_TENSOR_ARGS)
        snprintf(what, room, "got a tensor %d of another element type than it was compiled for", (int)dtype);
    else if (ndims >= 0 && ndims < SIMPLER_CORE_MAX_TENSOR_ARGS)
        snprintf(what, room, "got a tensor %d of other dimensions than it was compiled for", (int)ndims);
    else if (status == SIMPLER_KERNEL_RAISED)
        snprintf(what, room, "raised an exception, such as that of an integer division by zero");
    else if (status == SIMPLER_DOMAIN_TIMEOUT)
        snprintf(what, room, "waited for other ranks of its domain until its deadline");
    else if (status == SIMPLER_DOMAIN_BROKEN)
        snprintf(what, room, "waited for other ranks of a domain that is broken");
    else if (status == SIMPLER_DOMAIN_OUTSIDE)
        snprintf(what, room, "named a rank that its domain has not, or memory outside of its window");
    else if (status == SIMPLER_DOMAIN_TWICE)
        snprintf(what, room, "is at a barrier where another block of its rank is: launch one block");
    else
        snprintf(what, room, "returned error %d", status);
}

/* Keep the first failure; the cores that come later see the status and leave its message alone.
 * Rule CHIP-FAULT-1 */
static void blame(Wave *wave, const Block *block, int32_t status, const char *what)
{
    static pthread_mutex_t blaming = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&blaming);
    if (atomic_load(&wave->status) == PTO2_OK) {
        snprintf(wave->text, sizeof wave->text, "kernel func_id %d (block %d of %d) %s",
                 block->launch->core->func_id, block->args.block_idx, block->launch->args.block_dim,
                 what);
        atomic_store(&wave->status, status);
    }
    pthread_mutex_unlock(&blaming);
}

static void guard_block(Wave *wave, uint32_t item)
{
    Block block;
    Fault fault;
    char what[128];
    block.launch = launch_of(wave, item);
    block.args = block.launch->args;
    const int32_t index = block.args.block_idx = (int32_t)(item - block.launch->first);
    if (!faults_guard(block_step, &block, &fault)) {
        faults_describe(&fault, what, sizeof what);
    } else if (block.status != 0) {
        describe_status(block.status, what, sizeof what);
        fault.signal = 0;
    } else {
        return;
    }
    block.args.block_idx = index; /* which the kernel may have written over */
    blame(wave, &block, fault.signal ? PTO2_E_FAULT : PTO2_E_KERNEL, what);
}

static void record_block(Wave *wave, uint32_t item, int32_t core)
{
    BlockRecord *record = &wave->records->blocks[item];
    record->queued = now_ns();
    const bool counting = wave->records->to.counters >= 0;
    uint64_t before[MAX_COUNTS];
    if (counting)
        records_count(wave->records, core, before);
    record->core = core;
    record->begin = now_ns();
    guard_block(wave, item);
    record->end = record->seen = now_ns();
    if (!counting)
        return;
    records_count(wave->records, core, record->counts);
    for (int i = 0; i < MAX_COUNTS; i++)
        record->counts[i] -= before[i];
}

static void run_block(Wave *wave, uint32_t item, int32_t core)
{
    if (atomic_load_explicit(&wave->status, memory_order_relaxed) != PTO2_OK)
        return;
    if (wave->records == NULL)
        guard_block(wave, item);
    else
        record_block(wave, item, core);
}

/* ---------------------------------------------------------------- items; all under the lock */

static bool has_next(const Pool *pool)
{
    return pool->wave != NULL && pool->next < pool->wave->items;
}

static void run_next(Pool *pool, int32_t core)
{
    Wave *wave = pool->wave;
    const uint32_t item = pool->next++;
    pthread_mutex_unlock(&pool->lock);
    run_block(wave, item, core);
    pthread_mutex_lock(&pool->lock);
    if (wave->records != NULL)
        wave->records->blocks[item].seen = now_ns();
    if (--pool->left == 0)
        pthread_cond_signal(&pool->done);
}

/* ---------------------------------------------------------------- threads */

static void *core_thread(void *of)
{
    Pool *pool = of;
    faults_enter_thread();
    pthread_mutex_lock(&pool->lock);
    const int32_t number = ++pool->begun; /* core 0 is the caller of the wave */
    while (!pool->stop) {
        if (has_next(pool))
            run_next(pool, number);
        else
            pthread_cond_wait(&pool->work, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    faults_leave_thread();
    return NULL;
}

/* Make threads until there are `wanted`, or the system has no more. They take no signals, which are
 * for the program's own threads, but for those of faults: a blocked one would kill the process. */
static void grow(Pool *pool, int32_t wanted)
{
    sigset_t all, old;
    pthread_attr_t attributes;
    if (pool->cores >= wanted || pthread_attr_init(&attributes) != 0)
        return;
    pthread_attr_setstacksize(&attributes, CORE_STACK);
    sigfillset(&all);
    faults_unblock(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool->cores < wanted &&
           pthread_create(&pool->threads[pool->cores], &attributes, core_thread, pool) == 0)
        pool->cores++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
}

/* Cores that this process may use: more threads than that would only take turns. */
static int32_t real_cores(void)
{
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        return CPU_COUNT(&mask);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

static void open_pool(Pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    const int32_t cores = real_cores();
    pool->most_cores = cores < MAX_CORES ? cores : MAX_CORES;
    pool->open = true;
}

/* ---------------------------------------------------------------- a wave */

/* Rule CHIP-RUN-1, CHIP-RUN-5 */
void pool_run(Pool *pool, Wave *wave)
{
    if (wave->items == 1) { /* nothing to share */
        run_block(wave, 0, 0);
        return;
    }
    if (!pool->open)
        open_pool(pool);
    const int32_t items = (int32_t)wave->items;
    const int32_t helpers = (items < pool->most_cores ? items : pool->most_cores) - 1;
    grow(pool, helpers);
    pthread_mutex_lock(&pool->lock);
    pool->wave = wave;
    pool->next = 0;
    pool->left = wave->items;
    for (int32_t i = 0; i < helpers; i++)
        pthread_cond_signal(&pool->work);
    while (pool->left > 0) {
        if (has_next(pool))
            run_next(pool, 0);
        else
            pthread_cond_wait(&pool->done, &pool->lock);
    }
    pool->wave = NULL;
    pthread_mutex_unlock(&pool->lock);
}

void pool_close(Pool *pool)
{
    if (!pool->open)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (int32_t i = 0; i < pool->cores; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pool->open = pool->stop = false;
    pool->cores = pool->begun = 0;
}
