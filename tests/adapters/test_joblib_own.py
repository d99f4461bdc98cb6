"""joblib's own tests of `Parallel`, with our backend in the place of loky."""

from __future__ import annotations

from pathlib import Path

import pytest

joblib = pytest.importorskip("joblib", reason="joblib is not installed")

from .own_tests import compare, run, table  # noqa: E402

TESTS = Path(joblib.__file__).parent / "test/test_parallel.py"
SAMPLE = "test_simple_parallel or test_parallel_timeout_success or test_error_capture"
OURS = "(loky or not (threading or multiprocessing))"


@pytest.mark.slow("a process with a sample of joblib's tests")
@pytest.mark.skipif(not TESTS.exists(), reason="this joblib comes without its tests")
def test_a_sample_passes(tmp_path):
    ended = run("instead_of_loky", [TESTS], tmp_path, "-k", f"{OURS} and ({SAMPLE})")
    assert len(ended.passed) > 10
    compare(ended, table("joblib"), whole=False)


@pytest.mark.long
@pytest.mark.skipif(not TESTS.exists(), reason="this joblib comes without its tests")
@pytest.mark.timeout(1800)
def test_all_pass_that_the_page_does_not_name(tmp_path):
    ended = run("instead_of_loky", [TESTS], tmp_path, "-k", OURS)
    assert len(ended.passed) > 300
    compare(ended, table("joblib"), whole=True)
