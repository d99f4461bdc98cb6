"""CALL-JOBLIB: `Parallel` of joblib, and what uses it, on workers of this package."""

import gc
import importlib.metadata
import multiprocessing
import os
import threading
import time
import warnings
from pathlib import Path
from pickle import PicklingError

import numpy as np
import pytest

import simpler_ref as sr

joblib = pytest.importorskip("joblib", reason="joblib is not installed")

from joblib import Parallel, delayed  # noqa: E402

from simpler_ref.adapters import joblib_backend  # noqa: E402

pytestmark = pytest.mark.spec("CALL-JOBLIB-1")

sr.register_joblib()


@pytest.fixture(autouse=True)
def _backend():
    with joblib.parallel_config(backend="simpler_ref", n_jobs=2):
        yield
    joblib_backend.close()


def about(array, index=0):
    """Say where an array is, whether a task may write there, and in which order it is."""
    flags = array.flags
    return array.ctypes.data, flags.writeable, flags.f_contiguous, float(array.flat[index])


def raise_at(index):
    if index == 3:
        raise KeyError(index)
    return index


def sleep_or_raise(index):
    if index == 0:
        raise ValueError("first")
    time.sleep(60)


def nested(index):
    inside = Parallel(n_jobs=2)(delayed(divmod)(index, 2) for _ in range(3))
    explicit = Parallel(n_jobs=2, backend="simpler_ref")(delayed(pow)(index, 2) for _ in range(2))
    return inside, explicit


@sr.task
def number(index):
    return index


# ---------------------------------------------------------------- results and errors
def test_an_error_has_its_type_and_the_traceback_of_the_worker():
    with pytest.raises(KeyError) as caught:
        Parallel(batch_size=1)(delayed(raise_at)(i) for i in range(10))
    assert "in raise_at" in str(caught.value.__cause__)
    lock = threading.Lock()
    with pytest.raises(PicklingError, match="Could not pickle the task"):
        Parallel()(delayed(id)(lock) for _ in range(3))
    with pytest.raises(KeyboardInterrupt):
        Parallel()(delayed(exec)("raise KeyboardInterrupt") for _ in range(3))


def test_an_error_or_a_timeout_ends_the_tasks_that_run():
    start = time.monotonic()
    with pytest.raises(ValueError, match="first"):
        Parallel(batch_size=1)(delayed(sleep_or_raise)(i) for i in range(4))
    with pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.1)(delayed(time.sleep)(60) for _ in range(2))
    assert Parallel()(delayed(abs)(-i) for i in range(3)) == [0, 1, 2]
    assert time.monotonic() - start < 30


def test_a_parallel_within_a_task_does_not_wait_for_workers():
    expected = [([divmod(i, 2)] * 3, [i**2] * 2) for i in range(4)]
    assert Parallel()(delayed(nested)(i) for i in range(4)) == expected


# ---------------------------------------------------------------- arrays
def test_a_large_array_is_one_copy_that_is_only_read():
    array = np.asfortranarray(np.arange(300_000.0).reshape(300, 1000))
    items = [delayed(about)(array), delayed(about)(array=array)] * 2
    with Parallel(batch_size=1) as parallel:
        first = parallel(items)
        array[0, 0] = -1
        second = parallel(items)
    for seen, value in (first, 0.0), (second, -1.0):
        assert len(set(seen)) == 1 and seen[0][1:] == (False, True, value)
        assert seen[0][0] != array.ctypes.data
    for options, other in ({}, np.full(10, -1.0)), ({"max_nbytes": None}, array):
        ((_, writeable, _, value),) = Parallel(**options)([delayed(about)(other)])
        assert (writeable, value) == (True, -1.0), "a copy for the task"


def test_arrays_within_others_are_shared_and_results_are_the_programs_own():
    array = np.ones(200_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = Parallel()(delayed(dict)(x=[array], k=k) for k in range(3))
    for k, value in enumerate(values):
        value["x"][0] += k
        assert value["x"][0].sum() == (k + 1) * array.size
    assert array.sum() == array.size


def test_a_file_that_is_mapped_is_mapped_by_tasks(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10.0))
    mapped = np.load(path, mmap_mode="r")
    kinds = Parallel()(delayed(type)(part) for part in (mapped, mapped[2:]))
    assert kinds == [np.memmap] * 2
    sums = Parallel()(delayed(np.sum)(part) for part in (mapped, mapped[2:], mapped[::3]))
    assert sums == [45, 44, 18]


# ---------------------------------------------------------------- which workers
def test_the_workers_are_those_of_an_open_worker_or_are_kept():
    def pids(**options):
        return set(Parallel(batch_size=1, **options)(delayed(os.getpid)() for _ in range(20)))

    mine = pids()
    assert os.getpid() not in mine and number(1) == 1, "calls are plain ones"
    with sr.Worker(num_sub_workers=2) as w:
        shared = w.share(np.ones(3))
        assert pids() <= set(w.worker_pids()) and pids(n_jobs=-1) <= set(w.worker_pids())
        seen = Parallel()(delayed(about)(shared) for _ in range(2))
        assert seen == [(shared.ctypes.data, False, True, 1.0)] * 2
        assert number(1).result() == 1
        assert not pids(n_jobs=3) & set(w.worker_pids())
        gc.collect()
        assert not any(Path(f"/proc/{pid}").exists() for pid in mine), "nobody wants these any more"
    assert joblib.effective_n_jobs(-1) == joblib.cpu_count()
    after = pids()
    assert len(pids() | pids() | after) == 2


def test_without_joblib_it_says_what_to_install(monkeypatch):
    from simpler_ref.system import lazy

    def gone(name):
        raise ModuleNotFoundError("No module named 'joblib'", name="joblib")

    found = [type("", (), {"load": gone})()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: found)
    with pytest.raises(ModuleNotFoundError, match=r"pip install simpler_ref\[joblib\]"):
        lazy.load.__wrapped__("joblib")
