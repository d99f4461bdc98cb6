"""Workers with endpoints, for tests."""

import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from simpler_ref import (
    ContinuousTensor,
    DataType,
    RemoteCallable,
    RemoteError,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TensorArgType,
    Worker,
)
from simpler_ref.remote import ProcessFleet
from simpler_ref.remote.copies import Copies, CopyState

from . import far_side
from .support import make_args

INOUT, INPUT = TensorArgType.INOUT, TensorArgType.INPUT
EXISTING, OUTPUT = TensorArgType.OUTPUT_EXISTING, TensorArgType.OUTPUT
COUNT = 16


class Program:
    """A level 4 Worker with endpoints, and shorthands for what tests do with it."""

    def __init__(self, endpoints=2, depth=1, worker=None, **spec):
        self.worker = Worker(level=4, mailbox_depth=depth) if worker is None else worker
        add = self.worker.add_remote_worker
        self.ids = [add(RemoteWorkerSpec(**spec)) for _ in range(endpoints)]
        self._handles = {}

    @contextmanager
    def started(self):
        """Yield it with workers that run, which end with the block."""
        with self.worker as worker:
            worker.init()
            worker.start()
            yield self

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

    def __init__(self):
        self.worker = Worker(level=5, num_sub_workers=1)
        self.middle = [self.worker.register(self._child()) for _ in range(2)]
        self.here = self.worker.register(add_one_here)

    def _child(self):
        """Add a child, and return its function."""
        worker = Worker(level=4, num_sub_workers=1)
        there = Program(worker=worker).handle(far_side.add_scalar)
        here = worker.register(add_one_here)

        def middle(orch, args, config):
            """Work at the endpoint that scalar 0 names, add 1 here, work at the other endpoint."""
            tensor, first, number = (args.tensor(0), INOUT), args.scalar(0), args.scalar(1)
            orch.submit_next_level(there, make_args(tensor, scalars=[number]), worker=first)
            orch.submit_sub(here, make_args(tensor))
            orch.submit_next_level(there, make_args(tensor, scalars=[number]), worker=1 - first)

        self.worker.add_worker(worker)
        return middle

    def submit(self, orch, child, tensor, first, number):
        """Submit a task of a child; `middle` says what it does."""
        args = make_args((tensor, INOUT), scalars=[first, number])
        orch.submit_next_level(self.middle[child], args, worker=child)

    def submit_here(self, orch, tensor):
        orch.submit_sub(self.here, make_args((tensor, INOUT)))


@contextmanager
def opened(endpoints=2, subs=1, fleet=None, options=None, secure=True, **more):
    """Give a Worker with endpoints, of so many sub workers each, which take any function."""
    how = {"serialized": True, "options": options, "secure": secure}
    spec = RemoteWorkerSpec(fleet, num_sub_workers=subs, **how)
    with Worker(fleet=spec, endpoints=endpoints, **more) as w:
        yield w


def reference(buffer, offset=0, count=None):
    """Return a float32 tensor in a buffer."""
    return RemoteTensorRef(buffer, offset, None if count is None else (count,), np.float32)


def fresh(count=COUNT):
    """Return an OUTPUT without memory."""
    return ContinuousTensor.make(0, (count,), DataType.FLOAT32)


def store():
    """Return copies as a session has them, and the windows that they offer."""
    offered = {}
    mover = SimpleNamespace(
        address="here",
        offer=lambda window: offered.update({window.key: window}),
        withdraw=offered.pop,
    )
    return Copies(mover, lambda nbytes: np.zeros(nbytes, np.uint8)), offered


def validate(copies):
    """Assert what holds of all copies whenever no thread is in the middle of something."""
    with copies._lock:
        for name, one in copies._coming.items():
            assert (one.state, one.version) == (CopyState.COMING, name[1]), one.told()
        for one in copies._copies.values():
            assert one.state in (CopyState.HERE, CopyState.CHANGING), one.told()
            is_here = one.state == CopyState.HERE
            assert bool(one.window) == bool(one.version) == is_here, one.told()


def program(endpoints=2, depth=1, **spec):
    """Return a program whose workers run within a block; links have so many frames."""
    return Program(endpoints, depth, **spec).started()


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
