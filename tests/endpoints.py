"""Workers with endpoints, for tests."""

import time
from contextlib import contextmanager

import numpy as np

from simpler_ref import (
    RemoteCallable,
    RemoteError,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TaskArgs,
    TensorArgType,
    Worker,
)
from simpler_ref.remote import ProcessFleet

from . import far_side

INOUT, INPUT = TensorArgType.INOUT, TensorArgType.INPUT
EXISTING, OUTPUT = TensorArgType.OUTPUT_EXISTING, TensorArgType.OUTPUT
COUNT = 16
BYTES = 4 * COUNT


class Program:
    """A level 4 Worker with endpoints, and shorthands for what tests do with it."""

    def __init__(self, endpoints=2, depth=1, **spec):
        self.worker = Worker(level=4, mailbox_depth=depth)
        add = self.worker.add_remote_worker
        self.ids = [add(RemoteWorkerSpec(**spec)) for _ in range(endpoints)]
        self._handles = {}

    def handle(self, function, **how):
        """Return the handle of a function of `far_side`, registered once."""
        key = (function, repr(how))
        if key not in self._handles:
            target = RemoteCallable(far_side.name(function))
            self._handles[key] = self.worker.register(target, **how)
        return self._handles[key]

    def buffer(self, worker, values):
        """Return a buffer of an endpoint with float32 values in it."""
        array = np.asarray(values, np.float32)
        made = self.worker.remote_malloc(worker=worker, nbytes=array.nbytes)
        self.worker.remote_copy_to(made, array.ctypes.data, array.nbytes)
        return made

    def values(self, buffer):
        """Return the float32 values of a buffer."""
        array = np.empty(buffer.nbytes // 4, np.float32)
        self.worker.remote_copy_from(buffer, array.ctypes.data, array.nbytes)
        return array

    def args(self, *tensors, scalars=()):
        """Return arguments: pairs of a buffer, or a tensor, and a tag."""
        args = RemoteTaskArgs()
        for buffer, tag in tensors:
            is_tensor = isinstance(buffer, RemoteTensorRef.__mro__[1])
            args.add_tensor(buffer if is_tensor else reference(buffer), tag)
        for scalar in scalars:
            args.add_scalar(scalar)
        return args

    def run(self, *tasks):
        """Run tasks: tuples of a function and its arguments, or keyword arguments of submit as well."""

        def orch_fn(orch, args, config):
            for function, given, *how in tasks:
                orch.submit_next_level(self.handle(function), given, **(how[0] if how else {}))

        self.worker.run(orch_fn)


def add_one_here(args):
    args.tensor(0).numpy()[...] += 1


class Tower:
    """A level 5 Worker over level 4 Workers, each with two endpoints and a sub worker of its own."""

    def __init__(self, children=2, function=far_side.add_scalar):
        self.worker = Worker(level=5, num_sub_workers=1)
        self.children = [self._child(function) for _ in range(children)]
        self.middle = [self.worker.register(middle) for _, middle in self.children]
        self.here = self.worker.register(add_one_here)

    def _child(self, function):
        worker = Worker(level=4, num_sub_workers=1)
        ids = [worker.add_remote_worker(RemoteWorkerSpec()) for _ in range(2)]
        there = worker.register(RemoteCallable(far_side.name(function)), workers=ids)
        local = worker.register(add_one_here)

        def middle(orch, args, config):
            """Work at the endpoint that scalar 0 names, add 1 here, work at the other endpoint."""
            first = args.scalar(0)
            for where in first, None, 1 - first:
                given = TaskArgs()
                given.add_tensor(args.tensor(0), INOUT)
                if where is None:
                    orch.submit_sub(local, given)
                else:
                    given.add_scalar(args.scalar(1))
                    orch.submit_next_level(there, given, worker=where)

        self.worker.add_worker(worker)
        return worker, middle

    def submit(self, orch, child, tensor, first, number):
        """Submit a task of a child; `middle` says what it does."""
        args = TaskArgs()
        args.add_tensor(tensor, INOUT)
        args.add_scalar(first)
        args.add_scalar(number)
        orch.submit_next_level(self.middle[child], args, worker=child)

    def submit_here(self, orch, tensor):
        """Submit a task that adds one here."""
        args = TaskArgs()
        args.add_tensor(tensor, INOUT)
        orch.submit_sub(self.here, args)


def reference(buffer, offset=0, count=None):
    """Return a float32 tensor in a buffer."""
    return RemoteTensorRef(buffer, offset, None if count is None else (count,), np.float32)


@contextmanager
def program(endpoints=2, depth=1, **spec):
    """Yield a program whose workers run; links have so many frames."""
    made = Program(endpoints, depth, **spec)
    with made.worker as worker:
        worker.init()
        worker.start()
        yield made


class Moody(ProcessFleet):
    """A fleet that starts no session of the first endpoint while there is a file."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def start(self, manifest, endpoint):
        if endpoint == 0 and self.file.exists():
            raise RemoteError("not in the mood")
        return super().start(manifest, endpoint)


class Sleepy(Moody):
    """A fleet that starts none of the first endpoint before the file is gone."""

    def start(self, manifest, endpoint):
        while endpoint == 0 and self.file.exists():
            time.sleep(0.01)
        return super().start(manifest, endpoint)
