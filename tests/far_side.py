"""What endpoints run in tests: orchestration functions, and tasks of their workers."""

import ctypes
import os
import time

import numpy as np

from simpler_ref import ContinuousTensor, RemoteCallable, TaskArgs, TensorArgType, get_inner_handle

MODULE = __name__


def name(function):
    """Return the name by which an endpoint imports a function of this module."""
    return f"{MODULE}:{function.__name__}"


def nothing(orch, args, config):
    pass


def bump(args):
    args.tensor(0).numpy()[...] += 1


def bump_there(orch, args, config):
    """Have a worker of this endpoint add one to a tensor."""
    given = TaskArgs()
    given.add_tensor(args.tensor(0), TensorArgType.INOUT)
    orch.submit_sub(get_inner_handle(RemoteCallable(name(bump))), given)


MANY = 4000
"""Buffers that `many_buffers` allocates."""


def many_buffers(orch, args, config):
    for _ in range(MANY):
        orch.alloc((1,), np.uint8)


def add_one(orch, args, config):
    args.tensor(0).numpy()[...] += 1


def add_scalar(orch, args, config):
    args.tensor(0).numpy()[...] += np.float32(args.scalar(0))


def add_first(orch, args, config):
    """Add tensor 0 to tensor 1; numbers stay small."""
    second = args.tensor(1).numpy()
    second[...] = (second + args.tensor(0).numpy()) % 1024


def copy(orch, args, config):
    args.tensor(1).numpy()[...] = args.tensor(0).numpy()


def fail(orch, args, config):
    raise ValueError(f"no, says {os.getpid()}")


def die(orch, args, config):
    os._exit(3)


def clear(orch, args, config):
    args.tensor(0).numpy()[...] = 0


def sleep(orch, args, config):
    time.sleep(60)


def hold(orch, args, config):
    """Wait until somebody opens the pipe that the configuration names."""
    os.close(os.open(config.output_prefix, os.O_RDONLY))


def tell(orch, args, config):
    """Write what the task sees of itself into its tensor: pid, block_dim, scalar."""
    args.tensor(0).numpy()[:3] = os.getpid(), config.block_dim, args.scalar(0)


def scale(args):
    args.tensor(0).numpy()[...] *= np.float32(args.scalar_float(0))


def wait(orch, args, config):
    time.sleep(args.scalar(0) / 1000)


def hold_the_lock(orch, args, config):
    """Keep Python's lock for some milliseconds, as native code may."""
    ctypes.PyDLL(None).usleep(args.scalar(0) * 1000)


def on_a_chip(handle):
    """Return a function that has the second chip there add two tensors."""

    def orchestrate(orch, args, config):
        task = TaskArgs()
        for i in range(3):
            task.add_tensor(args.tensor(i), args.tag(i))
        orch.submit_next_level(get_inner_handle(handle.hashid), task, worker=1)

    return orchestrate


def in_a_domain(handle):
    """Return a function that has both chips there add up what they have in their windows."""

    def orchestrate(orch, args, config):
        from . import domain_kernels as k

        sums = args.tensor(0)
        rows = [
            ContinuousTensor.make(sums.data + i * sums.nbytes() // 2, (16,), sums.dtype)
            for i in range(2)
        ]
        window = sum(one.nbytes for one in k.BUFFERS)
        with orch.allocate_domain(
            name="both", workers=[0, 1], window_size=window, buffers=k.BUFFERS
        ) as domain:
            members = [k.args_for(domain, i, rows[i], k.MEET) for i in range(2)]
            inner = get_inner_handle(handle.hashid)
            orch.submit_next_level_group(inner, members, k.ONE_BLOCK, workers=[0, 1])
            orch.drain()

    return orchestrate


def meet(args):
    """Say with a file that this task runs, and wait until another one has said so: paths of 64 bytes."""
    mine, others = (bytes(args.tensor(i).numpy()).rstrip(b"\0").decode() for i in (0, 1))
    with open(mine, "w"):
        pass
    end = time.monotonic() + 60
    while not os.path.exists(others):
        if time.monotonic() > end:
            raise TimeoutError(others)
        time.sleep(0.001)


def add_to(args):
    """Add tensor 0 to tensor 1, after a while."""
    time.sleep(0.02)
    second = args.tensor(1).numpy()
    second += args.tensor(0).numpy()
