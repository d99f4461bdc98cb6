"""dask's own tests, with our scheduler in the place of its own ones."""

from __future__ import annotations

from pathlib import Path

import pytest

dask = pytest.importorskip("dask", reason="dask is not installed")

from .own_tests import compare, run, table  # noqa: E402

FOLDER = Path(dask.__file__).parent
SCHEDULERS = [FOLDER / "tests/test_threaded.py", FOLDER / "tests/test_multiprocessing.py"]
ARRAYS = [FOLDER / f"array/tests/test_{name}.py" for name in ("array_core", "overlap", "linalg")]
OURS = "not test_binary_operator_delegation"  # which needs a plugin of pytest


@pytest.mark.skipif(not ARRAYS[0].exists(), reason="this dask comes without its tests")
@pytest.mark.slow("a process with a sample of dask's tests")
def test_a_sample_passes(tmp_path):
    ended = run("instead_of_threads", SCHEDULERS, tmp_path)
    assert len(ended.passed) > 20
    compare(ended, table("dask"), whole=False)


@pytest.mark.long
@pytest.mark.skipif(not ARRAYS[0].exists(), reason="this dask comes without its tests")
@pytest.mark.timeout(3600)
def test_all_pass_that_the_page_does_not_name(tmp_path):
    ended = run("instead_of_threads", [*SCHEDULERS, *ARRAYS], tmp_path, "-k", OURS)
    assert len(ended.passed) > 1000
    compare(ended, table("dask"), whole=True)
