"""Which endpoint is likely to begin a task first."""

from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref.remote.counters import COUNTERS, TASKS, UNMOVED, UNMOVED_NS
from simpler_ref.remote.queues import MEMORY, TASK_S, Queues

NOTHING = SimpleNamespace(outlook=lambda uses, where: ([], 0))


@pytest.fixture
def link():
    """Give a link whose endpoint has run nothing."""
    return SimpleNamespace(number=0, words=np.zeros(len(COUNTERS), np.int64))


@pytest.fixture
def queues(link):
    made = Queues(lambda number: link, NOTHING)
    made.begin_run([link])
    return made


def run(link, count, each_s):
    """Count tasks of an endpoint that took so long."""
    for word in (TASKS, UNMOVED):
        link.words[word] += count
    link.words[UNMOVED_NS] += int(count * each_s * 1e9)


def wait_of_one(queues, link):
    """Return how long one more task is taken to last."""
    queues.begin_run([link])
    queues.take_turn(0)
    return queues.start_s(0, None)


def test_an_endpoint_that_has_run_nothing_has_a_usual_pace(queues, link):
    assert wait_of_one(queues, link) == TASK_S


def test_a_slow_start_is_soon_forgotten(queues, link):
    run(link, 4, 1.0)
    assert wait_of_one(queues, link) == pytest.approx(1.0)
    for _ in range(5):
        run(link, 10 * MEMORY, 1e-3)
        last = wait_of_one(queues, link)
    assert last == pytest.approx(1e-3, rel=0.1)


def test_tasks_since_the_queues_were_empty_count_at_once(queues, link):
    run(link, MEMORY, 1e-3)
    queues.begin_run([link])
    run(link, MEMORY, 3e-3)
    assert wait_of_one(queues, link) == pytest.approx(2e-3)


def test_a_link_that_begins_anew_is_taken_to_be_as_fast(queues, link):
    run(link, 100, 2e-3)
    queues.begin_run([link])
    link.words[:] = 0
    assert wait_of_one(queues, link) == pytest.approx(2e-3)
    run(link, 10_000, 1e-3)
    assert wait_of_one(queues, link) == pytest.approx(1e-3, rel=0.1)
