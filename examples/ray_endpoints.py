"""Endpoints on the nodes of a Ray cluster: one draws numbers, the other adds them up.

Without ``--address`` the program starts a cluster of two nodes on this machine. Ray places the
endpoints, one on each node; the numbers then move from one to the other, neither through Ray nor through
this program.
Needs ``simpler_ref[ray]``.
"""

import argparse
import os
from contextlib import contextmanager

import numpy as np

from simpler_ref import (
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TensorArgType,
    Worker,
)
from simpler_ref.extras.ray_fleet import RayFleet

COUNT = 1_000_000


def draw(orch, args, config):
    """Fill a tensor; tell which node this is by the process that looks after it."""
    numbers, where = (args.tensor(i).numpy() for i in range(2))
    numbers[:] = np.random.default_rng(args.scalar(0)).integers(0, 100, len(numbers))
    where[0] = int(os.environ["RAY_RAYLET_PID"])


def add_up(orch, args, config):
    """Add the numbers up; tell which node this is."""
    numbers, result = (args.tensor(i).numpy() for i in range(2))
    result[:] = numbers.sum(), int(os.environ["RAY_RAYLET_PID"])


@contextmanager
def cluster(address):
    """Give the address of a cluster; of a new one with two nodes if there is none yet."""
    if address:
        yield address
        return
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    try:
        for _ in range(2):
            nodes.add_node(num_cpus=1, object_store_memory=100_000_000, include_dashboard=False)
        yield nodes.address
    finally:
        nodes.shutdown()


def run(address):
    """Return the sum, and the nodes of both endpoints."""
    fleet = RayFleet(address, {"CPU": 1}, strategy="STRICT_SPREAD")
    with Worker(level=4) as worker:
        first, second = (
            worker.add_remote_worker(RemoteWorkerSpec(fleet, serialized=True)) for _ in range(2)
        )
        tasks = [worker.register(draw, workers=[first]), worker.register(add_up, workers=[second])]
        worker.start()
        numbers = worker.remote_malloc(worker=first, nbytes=8 * COUNT)
        where = worker.remote_malloc(worker=first, nbytes=8)
        imported = worker.remote_import(worker.remote_export(numbers), worker=second)
        result = worker.remote_malloc(worker=second, nbytes=16)

        def orch_fn(orch, args, config):
            for task, endpoint, reads, writes in (
                (tasks[0], first, [], [numbers, where]),
                (tasks[1], second, [imported], [result]),  # waits for the first
            ):
                given = RemoteTaskArgs()
                for tag, handles in (
                    (TensorArgType.INPUT, reads),
                    (TensorArgType.OUTPUT_EXISTING, writes),
                ):
                    for one in handles:
                        given.add_tensor(RemoteTensorRef(one, 0, (one.nbytes // 8,), np.int64), tag)
                given.add_scalar(7)
                orch.submit_next_level(task, given, worker=endpoint)

        worker.run(orch_fn)
        found = np.empty(3, np.int64)
        worker.remote_copy_from(where, found.ctypes.data, 8)
        worker.remote_copy_from(result, found[1:].ctypes.data, 16)
        return found[1], found[[0, 2]], worker.transfers()[second]["bytes_in"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", help="of a Ray cluster, such as head:6379")
    with cluster(parser.parse_args().address) as address:
        total, nodes, moved = run(address)
    expected = np.random.default_rng(7).integers(0, 100, COUNT).sum()
    print(
        f"sum of {COUNT:,} numbers: {total:,}, {'as' if total == expected else 'NOT as'} in numpy"
    )
    print(f"nodes: {len(set(nodes))}, moved between them: {moved:,} bytes")


if __name__ == "__main__":
    main()
