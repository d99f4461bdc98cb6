"""What a task costs on each kind of worker, in processes and in threads, and what registering costs."""

from __future__ import annotations

import time

from graphs import OrchFunction, Prepare, fresh_of, noop, tensors

from simpler_ref import TaskArgs, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import ChipCallable, CoreCallable, compile_kernel

N = 2000
ROUNDS = 7

NOTHING = """
#include "simpler_kernel.h"
int32_t nothing(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    (void)device;
    (void)args;
    return 0;
}
"""
EMPTY_BLOCK = """
#include "simpler_kernel.h"
int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    (void)args;
    return 0;
}
"""


def subs(workers: int, child_mode: str):
    """Return how to make a Worker with sub workers."""
    return lambda: Worker(level=3, num_sub_workers=workers, child_mode=child_mode)


def chip(child_mode: str):
    """Return how to make a Worker with one chip."""
    return lambda: Worker(level=3, device_ids=[0], child_mode=child_mode)


def nested(child_mode: str):
    """Return how to make a Worker with a Worker below it, which has a sub worker."""

    def make() -> Worker:
        inner = Worker(level=3, num_sub_workers=1)
        outer = Worker(level=4, child_mode=child_mode)
        outer.leaf = inner.register(noop)
        outer.add_worker(inner)
        return outer

    return make


def chain_of_leaves(worker: Worker) -> OrchFunction:
    """Prepare a chain: each task waits for the one before."""
    task = worker.register(noop)
    (buffer,) = tensors(worker, 1)

    def orchestrate(orch, args, config):
        for _ in range(N):
            a = TaskArgs()
            a.add_tensor(buffer, T.INOUT)
            orch.submit_sub(task, a)

    return orchestrate


def chain_next_level(target) -> Prepare:
    """Prepare a chain of tasks for the next level."""

    def prepare(worker: Worker) -> OrchFunction:
        task = worker.register(target(worker))

        def orchestrate(orch, args, config):
            for _ in range(N):
                orch.submit_next_level(task)

        return orchestrate

    return prepare


def groups_of_two(worker: Worker) -> OrchFunction:
    """Prepare groups of two, one after the other."""
    task = worker.register(noop)
    members = [TaskArgs(), TaskArgs()]

    def orchestrate(orch, args, config):
        for _ in range(N):
            orch.submit_sub_group(task, members)

    return orchestrate


def nothing_below(worker: Worker):
    """Return an orchestration function that submits nothing."""
    return lambda orch, args, config: None


def leaf_below(worker: Worker):
    """Return an orchestration function that submits one leaf."""
    leaf = worker.leaf
    return lambda orch, args, config: orch.submit_sub(leaf)


def test_one_task_after_another_on_each_kind_of_worker(record):
    nothing = ChipCallable.build([], "nothing", compile_kernel(NOTHING), [])
    block = ChipCallable.from_kernel(CoreCallable.build([], compile_kernel(EMPTY_BLOCK)))

    def on_chip(callable_):
        return chain_next_level(lambda worker: callable_)

    record(
        {
            "leaf_process": fresh_of(subs(1, "process"), chain_of_leaves, N),
            "leaf_thread": fresh_of(subs(1, "thread"), chain_of_leaves, N),
            "chip_process": fresh_of(chip("process"), on_chip(nothing), N),
            "chip_thread": fresh_of(chip("thread"), on_chip(nothing), N),
            "kernel_process": fresh_of(chip("process"), on_chip(block), N),
            "nested_process": fresh_of(nested("process"), chain_next_level(nothing_below), N),
            "nested_thread": fresh_of(nested("thread"), chain_next_level(nothing_below), N),
            "nested_leaf": fresh_of(nested("process"), chain_next_level(leaf_below), N),
            "group_2": fresh_of(subs(2, "process"), groups_of_two, N),
            "group_2_thread": fresh_of(subs(2, "thread"), groups_of_two, N),
        },
        rounds=ROUNDS,
    )


def test_asking_a_worker_between_its_tasks(record):
    def memory():
        with Worker(level=2) as worker:
            worker.start()
            start = time.perf_counter()
            for _ in range(200):
                worker.free(worker.malloc(4096))
            return time.perf_counter() - start

    def before():
        with Worker(level=3, num_sub_workers=2) as worker:
            start = time.perf_counter()
            for i in range(200):
                worker.register(lambda args, i=i: i)
            return time.perf_counter() - start

    def after():
        with Worker(level=3, num_sub_workers=2) as worker:
            worker.start()
            start = time.perf_counter()
            for i in range(200):
                worker.unregister(worker.register(lambda args, i=i: i))
            return time.perf_counter() - start

    record(
        {
            "control": (memory, 200),
            "register_before": (before, 200),
            "register_after": (after, 200),
        },
        rounds=ROUNDS,
    )
