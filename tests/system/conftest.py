"""An interpreter for the programs of a module."""

import pytest

from .programs import Interpreter


@pytest.fixture(scope="module")
def interpreter():
    with Interpreter() as made:
        yield made
