"""Whatever the bytes: the C parts refuse them, or do what they say; `test_sanitized.py` runs this too."""

import pytest

from . import chips
from .chips import CHIP_TARGETS
from .runs import run_fixed_and_new

EXAMPLES = 40


@pytest.fixture(autouse=True, scope="module")
def _chip():
    """Open a chip with little memory, and close it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIMPLER_SIM_DEVICE_MEMORY", str(chips.DEVICE))
        yield
        chips.close()


@pytest.mark.parametrize("name", CHIP_TARGETS)
def test_bytes_are_refused_or_do_what_they_say(name):
    run_fixed_and_new(CHIP_TARGETS[name], EXAMPLES)
