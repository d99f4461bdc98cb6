"""What these tests share."""

import pytest


@pytest.fixture(params=["process", "thread"])
def mode(request):
    """Give each way in which a Worker runs those below it."""
    return request.param
