"""What the tests of endpoints share."""

import pytest

from tests.endpoints import program


@pytest.fixture(scope="module")
def two():
    """Give a program with two endpoints, of a sub worker each, to all tests of a file."""
    with program(num_sub_workers=1) as made:
        yield made
