"""What these tests share: engines with more than one frame per worker."""

import pytest

from tests.support import Driver


@pytest.fixture
def make():
    """Give a way to make drivers, which are closed at the end."""
    made = []

    def make(depth, **size):
        made.append(Driver(depth=depth, **size))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
