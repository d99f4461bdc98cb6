"""Where the programs `spread_*.py` run: on workers of this machine, on endpoints, or on a Ray cluster."""

import argparse

from simpler_ref import RemoteWorkerSpec, Worker
from simpler_ref.remote import ProcessFleet


def worker_from(arguments=None):
    """Return the Worker that the command line asks for; nothing else differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2, help="worker processes, in all (2)")
    parser.add_argument("--endpoints", type=int, metavar="NUMBER", help="on so many endpoints")
    parser.add_argument("--ray", metavar="ADDRESS", help="at the nodes of this Ray cluster")
    options = parser.parse_args(arguments)
    endpoints = options.endpoints or 2
    here = -(-options.workers // endpoints)
    if options.ray:
        from simpler_ref.extras.ray_fleet import RayFleet

        fleet = RayFleet(address=options.ray, resources={"CPU": 1})
        spec = RemoteWorkerSpec(fleet, num_sub_workers=here, serialized=True)
        return Worker(fleet=spec, endpoints=endpoints)
    if options.endpoints:
        return Worker(fleet=ProcessFleet(), endpoints=endpoints, num_sub_workers=here)
    return Worker(num_sub_workers=options.workers)


def report(worker, what):
    """Print what the program has found, and what had to move for it."""
    told = worker.transfers() if worker.level > 3 else []
    moved, found = (
        sum(one[f"copies_{name}"] for one in told for name in names)
        for names in (("stored", "fetched", "brought"), ("hits",))
    )
    print(f"{what}; tensors moved: {moved}, found in place: {found}")
