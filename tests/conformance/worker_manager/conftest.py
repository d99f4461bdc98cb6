"""Both kinds of workers, and engines of any size by hand."""

import pytest

from tests.support import Driver


@pytest.fixture(params=["process", "thread"])
def mode(request):
    """Have a test run with workers that are processes, and with threads."""
    return request.param


@pytest.fixture
def make_driver():
    """Give a function that makes a `Driver` of the size wanted."""
    made = []

    def make(**size):
        made.append(Driver(**size))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
