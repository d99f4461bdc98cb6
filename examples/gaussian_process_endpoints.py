"""The Gaussian process on endpoints: memory and references are explicit.

Column j of the lower triangle of K is in the memory of endpoint j mod E, its tiles one below the other.
A task of an endpoint is an orchestration function there: it submits the steps on tiles to the workers of
that endpoint. A column that another endpoint has computed is imported, and moves when a task reads it.
"""

import numpy as np
from gaussian_process import (
    CLASSES,
    LEAVES,
    NOISE_VARIANCE,
    add_mean,
    cross_tile,
    gemm,
    kernel_tile,
    potrf,
    reduce_variance,
    solve,
    subtract,
    syrk,
    trsm,
)

from simpler_ref import (
    ContinuousTensor,
    DataType,
    ProcessFleet,
    RemoteCallable,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TaskArgs,
    get_inner_handle,
)
from simpler_ref import TensorArgType as T

PIXELS = 64
COLUMNS_OF_A_TASK = 16


# ---------------------------------------------------------------- what endpoints run
# The first scalars of a task are the tile's rows, the number of images, and its column.


class Tiles:
    """Tensors of a task seen as tiles, and how to submit the steps on them to the workers there."""

    def __init__(self, orch, args):
        self.orch, self.args = orch, args
        self.size, self.images, self.column = (args.scalar(i) for i in range(3))
        self.rows = -(-self.images // self.size)

    def height(self, i):
        """Return the rows of tile i."""
        return min(self.size, self.images - i * self.size)

    def of_column(self, tensor, column):
        """Return the tiles of a column, by their number."""
        return self.split(tensor, range(column, self.rows), self.height(column))

    def split(self, tensor, numbers, width):
        """Return tiles that are one below the other, by their number."""
        address, found = self.args.tensor(tensor).data, {}
        for i in numbers:
            shape = (width, self.height(i))  # of the transposed matrix
            found[i] = ContinuousTensor.make(address, shape, DataType.INT64)
            address += 8 * width * self.height(i)
        return found

    def whole(self, tensor, width):
        """Return a tensor as one tile."""
        one = self.args.tensor(tensor)
        shape = (width, one.nbytes() // 8 // width)
        return ContinuousTensor.make(one.data, shape, DataType.INT64)

    def submit(self, leaf, reads=(), updates=(), scalar=None):
        """Have a worker of this endpoint do a step."""
        task = TaskArgs()
        for one in reads:
            task.add_tensor(one, T.INPUT)
        for one in updates:
            task.add_tensor(one, T.INOUT)
        if scalar is not None:
            task.add_scalar(scalar)
        self.orch.submit_sub(get_inner_handle(named(leaf, "gaussian_process")), task)


def make_column(orch, args, config):
    """K := the column of the kernel matrix; reads the images."""
    t = Tiles(orch, args)
    x = t.split(0, range(t.rows), PIXELS)
    for i, k in t.of_column(1, t.column).items():
        noise = NOISE_VARIANCE if i == t.column else 0.0
        t.submit(kernel_tile, [x[i], x[t.column]], [k], noise)


def factor_column(orch, args, config):
    """L := the column of the factor, when all columns before have been subtracted."""
    t = Tiles(orch, args)
    column = t.of_column(0, t.column)
    diagonal = column.pop(t.column)
    t.submit(potrf, updates=[diagonal])
    for below in column.values():
        t.submit(trsm, [diagonal], [below])


def update_columns(orch, args, config):
    """Subtract a column of the factor from columns after it, whose numbers are further scalars."""
    t = Tiles(orch, args)
    left = t.of_column(0, t.column)
    for tensor in range(1, args.tensor_count()):
        j = args.scalar(2 + tensor)
        for i, k in t.of_column(tensor, j).items():
            if i == j:
                t.submit(syrk, [left[i]], [k])
            else:
                t.submit(gemm, [left[i], left[j]], [k])


def solve_forward(orch, args, config):
    """Y := L⁻¹ Y, the part of one column."""
    t = Tiles(orch, args)
    column, y = t.of_column(0, t.column), t.split(1, range(t.rows), CLASSES)
    t.submit(solve, [column.pop(t.column)], [y[t.column]], 0)
    for i, k in column.items():
        t.submit(subtract, [k, y[t.column]], [y[i]], 0)


def solve_backward(orch, args, config):
    """Y := L⁻ᵀ Y, the part of one column."""
    t = Tiles(orch, args)
    column, y = t.of_column(0, t.column), t.split(1, range(t.rows), CLASSES)
    diagonal = column.pop(t.column)
    for i, k in column.items():
        t.submit(subtract, [k, y[i]], [y[t.column]], 1)
    t.submit(solve, [diagonal], [y[t.column]], 1)


def begin_predictions(orch, args, config):
    """V := K*; reads the images and those held out, whose number is a further scalar."""
    t = Tiles(orch, args)
    cross_tiles(t, 0)


def cross_tiles(t, first):
    """Submit V := K* for three tensors of a task; return V's tiles."""
    x = t.split(first, range(t.rows), PIXELS)
    x_new = t.whole(first + 1, PIXELS)
    v = t.split(first + 2, range(t.rows), t.args.scalar(3))
    for i in range(t.rows):
        t.submit(cross_tile, [x[i], x_new], [v[i]])
    return v


def predict(orch, args, config):
    """V := L⁻¹ V, the part of one column, and S := S − the squares of its rows."""
    t = Tiles(orch, args)
    column, v = t.of_column(0, t.column), t.split(1, range(t.rows), args.scalar(3))
    t.submit(solve, [column.pop(t.column)], [v[t.column]], 0)
    t.submit(reduce_variance, [v[t.column]], [t.whole(2, 1)])
    for i, k in column.items():
        t.submit(subtract, [k, v[t.column]], [v[i]], 0)


def add_means(orch, args, config):
    """M := K*ᵀ α; V is no longer needed, and holds K* again."""
    t = Tiles(orch, args)
    alpha, v = t.split(0, range(t.rows), CLASSES), cross_tiles(t, 1)
    for i in range(t.rows):
        t.submit(add_mean, [v[i], alpha[i]], [t.whole(4, CLASSES)])


STEPS = [
    make_column, factor_column, update_columns, solve_forward, solve_backward,
    begin_predictions, predict, add_means,
]  # fmt: skip


def named(function, module="gaussian_process_endpoints"):
    """Return what an endpoint imports a function by."""
    return RemoteCallable(f"{module}:{function.__name__}")


# ---------------------------------------------------------------- the program
class Buffer:
    """Memory of an endpoint, and the handles by which the endpoints name it."""

    def __init__(self, worker, owner, nbytes):
        self.worker, self.owner, self.nbytes = worker, owner, nbytes
        self.handles = {owner: worker.remote_malloc(worker=owner, nbytes=nbytes)}

    def at(self, endpoint):
        """Return a reference for an endpoint."""
        if endpoint not in self.handles:
            exported = self.worker.remote_export(self.handles[self.owner])
            self.handles[endpoint] = self.worker.remote_import(exported, worker=endpoint)
        return RemoteTensorRef(self.handles[endpoint], 0, (self.nbytes // 8,), DataType.INT64)

    def fill(self, matrix):
        """Copy a matrix of doubles to it."""
        matrix = np.ascontiguousarray(matrix)
        self.worker.remote_copy_to(self.handles[self.owner], matrix.ctypes.data, matrix.nbytes)

    def read(self, shape):
        """Return its values."""
        matrix = np.empty(shape)
        self.worker.remote_copy_from(self.handles[self.owner], matrix.ctypes.data, matrix.nbytes)
        return matrix


class EndpointModel:
    """The memory at the endpoints, and the orchestration function that submits the tasks."""

    def __init__(self, worker, endpoints, workers):
        self.worker = worker
        spec = RemoteWorkerSpec(
            ProcessFleet(),
            num_sub_workers=-(-workers // endpoints),
            modules=["gaussian_process", "gaussian_process_endpoints"],
        )
        self.endpoints = [worker.add_remote_worker(spec) for _ in range(endpoints)]
        self.steps = {step: worker.register(named(step)) for step in STEPS}
        for leaf in LEAVES:
            worker.register(named(leaf, "gaussian_process"), inner=True)

    def fill(self, images, targets, held_out, size):
        """Allocate memory, and copy the data to it."""
        self.size, self.count = size, len(images)
        self.rows = -(-self.count // size)
        owners = self.endpoints
        self.parts = dict(zip(owners, np.array_split(held_out, len(owners)), strict=True))
        self.columns = [
            self.allocate(self.owner(j), (self.count - j * size) * min(size, self.count - j * size))
            for j in range(self.rows)
        ]
        self.alpha = self.allocate(owners[0], self.count * CLASSES)  # Y before, K⁻¹ Y after it
        self.alpha.fill(self.tiles(targets))
        self.images, self.held_out, self.v, self.mean, self.variance = ({} for _ in range(5))
        for e, part in self.parts.items():
            self.images[e] = self.allocate(e, images.size)
            self.images[e].fill(self.tiles(images))
            self.held_out[e] = self.allocate(e, part.size)
            self.held_out[e].fill(part.T)
            self.v[e] = self.allocate(e, self.count * len(part))
            self.mean[e] = self.allocate(e, CLASSES * len(part))
            self.variance[e] = self.allocate(e, len(part))
            self.variance[e].fill(np.ones(len(part)))

    def allocate(self, endpoint, count):
        """Return memory of an endpoint for so many doubles."""
        return Buffer(self.worker, endpoint, 8 * count)

    def owner(self, j):
        """Return the endpoint that has a column."""
        return self.endpoints[j % len(self.endpoints)]

    def tiles(self, matrix):
        """Return a matrix as its tiles, one after the other, each in Fortran order."""
        starts = range(0, len(matrix), self.size)
        return np.concatenate([matrix[i : i + self.size].T.ravel() for i in starts])

    def build(self, orch, args, config):
        """Submit everything: the orchestration function given to `Worker.run`."""

        def submit(step, endpoint, column, reads=(), updates=(), scalars=()):
            task = RemoteTaskArgs()
            for tag, buffers in ((T.INPUT, reads), (T.INOUT, updates)):
                for one in buffers:
                    task.add_tensor(one.at(endpoint), tag)
            for scalar in (self.size, self.count, column, *scalars):
                task.add_scalar(scalar)
            orch.submit_next_level(self.steps[step], task, worker=endpoint)

        k, owner = self.columns, self.owner
        for j in range(self.rows):
            submit(make_column, owner(j), j, [self.images[owner(j)]], [k[j]])
        for p in range(self.rows):
            submit(factor_column, owner(p), p, updates=[k[p]])
            for e, columns in self.later_columns(p):
                submit(update_columns, e, p, [k[p]], [k[j] for j in columns], columns)
        for p in range(self.rows):
            submit(solve_forward, owner(p), p, [k[p]], [self.alpha])
        for p in reversed(range(self.rows)):
            submit(solve_backward, owner(p), p, [k[p]], [self.alpha])
        for e, part in self.parts.items():
            here = [self.images[e], self.held_out[e]]
            submit(begin_predictions, e, 0, here, [self.v[e]], [len(part)])
            for p in range(self.rows):
                updates = [self.v[e], self.variance[e]]
                submit(predict, e, p, [k[p]], updates, [len(part)])
            updates = [self.v[e], self.mean[e]]
            submit(add_means, e, 0, [self.alpha, *here], updates, [len(part)])

    def later_columns(self, p):
        """Return endpoints with their columns after p: first the next one, which is waited for."""
        if p + 1 < self.rows:
            yield self.owner(p + 1), [p + 1]
        for e in self.endpoints:
            mine = [j for j in range(p + 2, self.rows) if self.owner(j) == e]
            for first in range(0, len(mine), COLUMNS_OF_A_TASK):
                yield e, mine[first : first + COLUMNS_OF_A_TASK]

    def result(self):
        """Return mean and variance."""
        mean = [self.mean[e].read((CLASSES, len(part))).T for e, part in self.parts.items()]
        variance = [self.variance[e].read((len(part), 1)) for e, part in self.parts.items()]
        return np.concatenate(mean), np.concatenate(variance)
