"""Workers with endpoints, for tests."""

from contextlib import contextmanager

import numpy as np

from simpler_ref import (
    RemoteCallable,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TensorArgType,
    Worker,
)

from . import far_side

INOUT, INPUT = TensorArgType.INOUT, TensorArgType.INPUT
EXISTING = TensorArgType.OUTPUT_EXISTING
COUNT = 16
BYTES = 4 * COUNT


class Program:
    """A level 4 Worker with endpoints, and shorthands for what tests do with it."""

    def __init__(self, endpoints=2, depth=1, **spec):
        self.worker = Worker(level=4, mailbox_depth=depth)
        self.ids = [
            self.worker.add_remote_worker(RemoteWorkerSpec(**spec)) for _ in range(endpoints)
        ]
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


def reference(buffer, offset=0, count=None):
    """Return a float32 tensor in a buffer."""
    shape = None if count is None else (count,)
    return RemoteTensorRef(buffer, offset, shape, np.float32)


@contextmanager
def program(endpoints=2, depth=1, **spec):
    """Yield a program whose workers run; links have so many frames."""
    made = Program(endpoints, depth, **spec)
    with made.worker as worker:
        worker.init()
        worker.start()
        yield made
