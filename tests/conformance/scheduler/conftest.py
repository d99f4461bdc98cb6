"""What these tests share: engines of other sizes than that of `driver`."""

import pytest

from tests.support import Driver


@pytest.fixture
def make_driver():
    """Give a way to make drivers, e.g. ``make_driver(sub=1)``, which are closed at the end."""
    made = []

    def make_driver(**size):
        made.append(Driver(**size))
        return made[-1]

    yield make_driver
    for driver in made:
        driver.close()
