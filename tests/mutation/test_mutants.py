"""The tests catch the faults that such programs have really had: each is put in, and must be found.

What runs tests with a fault in the package is ``long``; that each patch fits is known at once.
"""

import re

import pytest

from ..spec_rules import ROOT
from . import mutants
from .faults import FAULTS, Fault, Patch

each_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


@each_fault
def test_each_patch_fits_the_source_of_today_and_each_test_named_for_it_is_there(fault):
    for path, text in mutants.patched_files(fault, ROOT / "simpler_ref").items():
        compile(text, path, "exec", dont_inherit=True)
    for test in fault.caught_by:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


# ---------------------------------------------------------------- tests with a fault in the package
@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return mutants.Runner(tmp_path_factory.mktemp("mutants") / "copy")


@pytest.mark.long
def test_without_a_fault_all_the_tests_named_here_pass(runner):
    named = sorted({test for fault in FAULTS for test in fault.caught_by})
    outcome = runner.run_tests(*named)
    assert (outcome.failed, outcome.hung) == ([], "")
    assert set(named) <= outcome.passed, outcome.output


@pytest.mark.long
@each_fault
def test_a_fault_is_caught_by_each_test_named_for_it(fault, runner):
    outcome = runner.run_with(fault)
    missed = outcome.missed_by(fault)
    print(f"\n{fault.name}: {fault.what}")
    for test in fault.caught_by:
        how = "MISSED" if test in missed else "hangs" if outcome.hung else "fails"
        print(f"    {how:6} {test}")
    assert missed == [], outcome.output


# ---------------------------------------------------------------- the checker itself
NO_FAULT = Fault(
    "none",
    "Words that nobody reads are other words.",
    (Patch("jit/schedule.py", "Stop being the Scheduler.", "Be the Scheduler no more."),),
    ("tests/unit/test_words.py::test_events_have_their_kernels_and_step_alone_writes_a_state",),
)


@pytest.mark.long
def test_a_fault_that_is_none_is_caught_by_nobody(runner):
    outcome = runner.run_with(NO_FAULT)
    assert outcome.missed_by(NO_FAULT) == list(NO_FAULT.caught_by)
    assert outcome.passed == set(NO_FAULT.caught_by)


@pytest.mark.parametrize("old", ["not in that file", "mem"], ids=["gone", "twice"])
def test_a_patch_whose_text_is_not_there_once_is_refused(old):
    stale = NO_FAULT._replace(patches=(Patch("jit/schedule.py", old, ""),))
    with pytest.raises(ValueError, match="not once"):
        mutants.patched_files(stale, ROOT / "simpler_ref")
