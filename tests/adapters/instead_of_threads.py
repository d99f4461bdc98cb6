"""A plugin for pytest: dask's own tests use our scheduler in the place of its own ones."""

from __future__ import annotations

import atexit
import functools

import dask.base
import dask.multiprocessing
import dask.threaded

import simpler_ref as sr


@functools.cache
def worker():
    """Return a Worker that is made at first use, and closed at the end."""
    made = sr.Worker(num_sub_workers=2)
    made.init()
    atexit.register(made.close)
    return made


def get(dsk, keys, **kwargs):
    for name in ("num_workers", "pool", "optimize_graph", "chunksize"):
        kwargs.pop(name, None)
    return worker().dask_get(dsk, keys, **kwargs)


for name in dask.base.named_schedulers:
    dask.base.named_schedulers[name] = get
dask.threaded.get = dask.multiprocessing.get = get
