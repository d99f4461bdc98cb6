"""The tests of the C parts again, with C parts that report every use of memory that is not theirs."""

import pytest

from ..mutation import mutants
from ..mutation.faults import Fault, Patch
from ..sanitizers import DEADLINE_S, REPORT, NoSanitizers, Sanitized, build

pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * DEADLINE_S)]

UNCHECKED = Fault(
    "unchecked length",
    "A length in a callable's bytes is believed.",
    (Patch("native_chip/src/callable.c", "size > in->size - in->at)", "in->at > in->size)"),),
    ("tests/fuzz/test_chips.py::test_bytes_are_refused_or_do_what_they_say",),
)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Give a copy of package and tests with C parts that are built so."""
    try:
        return Sanitized(tmp_path_factory.mktemp("sanitized") / "copy")
    except NoSanitizers as why:
        pytest.skip(str(why))


CHIP_ABI = "tests/conformance/chip_abi"
SLOW = "kills_the_process"
"""A test that starts one Python after the other, of which each loads the sanitizers."""


@pytest.mark.parametrize(
    "tests",
    [("tests/fuzz/test_chips.py",), (CHIP_ABI, "-k", f"not {SLOW}"), (CHIP_ABI, "-k", SLOW)],
    ids=["fuzz", "conformance", "slow"],
)
def test_nothing_is_reported_whatever_the_c_parts_are_given(sanitized, tests):
    status, output = sanitized.run(*tests)
    assert status == 0, output[-20_000:]
    assert not REPORT.search(output)


def test_a_length_that_is_believed_is_reported(sanitized):
    runtime = sanitized.copy / "simpler_ref/native_chip/_runtime.so"
    before = runtime.read_bytes()
    with mutants.put_in(UNCHECKED, sanitized.copy):
        build(sanitized.copy, "_runtime")
    status, output = sanitized.run("tests/fuzz/test_chips.py", "-k", "prepared")
    runtime.write_bytes(before)
    assert status != 0
    assert "AddressSanitizer" in output, output[-20_000:]
