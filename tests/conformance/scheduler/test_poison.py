"""SCHED-POISON: failure travels downstream."""

import pytest

from simpler_ref.jit import layout as L
from tests.support import COMPLETED, FAILED, PENDING, READY, RUNNING, reads, writes

KEY = 0x7000_0000


@pytest.mark.spec("SCHED-POISON-1", "SCHED-POISON-2", "SCHED-POISON-4")
def test_what_descends_from_a_failed_task_fails_at_once_and_nothing_else_is_touched(make_driver):
    driver = make_driver(sub=3)
    root, running, producer = (driver.submit(writes(KEY + 64 * i)) for i in range(3))
    untouched = [running, producer, driver.submit(), driver.submit(reads(KEY + 128))]
    children = [driver.submit(reads(KEY), writes(KEY + 8 * i)) for i in (1, 2)]
    grandchild = driver.submit(reads(KEY + 8), reads(KEY + 16), writes(KEY + 24))
    both = driver.submit(reads(KEY), reads(KEY + 128))
    descendants = [*children, grandchild, driver.start(reads(KEY + 24)), both]
    before = [RUNNING, RUNNING, READY, PENDING]
    assert (driver.states(*untouched), driver.states(*descendants)) == (before, [PENDING] * 5)
    worker = driver.worker_of(root)
    driver.answer_task(root, ValueError("no"))
    assert (driver.states(*untouched), driver.states(*descendants)) == (before, [FAILED] * 5)
    driver.finish_everything()
    assert driver.states(*untouched) == [COMPLETED] * 4
    assert [driver.worker_of(slot) for slot in descendants] == [-1] * 5, "never dispatched"
    assert driver.mem[L.FAILED_COUNT] == 6
    assert [driver.refs(slot)[1] for slot in descendants] == [2, 2, 2, 1, 1]
    error = driver.mem[[L.RUN_ERROR, L.ERROR_TASK, L.ERROR_WORKER]].tolist()
    assert error == [L.TASK_FAILURE, driver.id(root), worker], "poison replaces no error"


@pytest.mark.spec("SCHED-POISON-3")
def test_a_poisoned_task_keeps_its_slot_until_its_last_live_producer_has_finished(make_driver):
    driver = make_driver(sub=3)
    driver.open_scope()
    failing, slow, slower = (driver.submit(writes(KEY + 8 * i)) for i in range(3))
    poisoned = driver.submit(*[reads(KEY + 8 * i) for i in range(3)], writes(KEY + 32))
    descendant = driver.start(reads(KEY + 32))
    driver.close_scope()
    driver.answer_task(failing, ValueError("no"))
    for producer in (slow, slower):
        assert driver.state(poisoned) == FAILED
        assert driver.refs(poisoned) == (2, 1), "only the scope has let go"
        assert driver.refs(failing) == (2, 2), "the poisoned task still holds its producers"
        assert (driver.state(descendant), driver.consumed_list()) == (PENDING, [])
        assert driver.consumers(producer) == [poisoned]
        driver.answer_task(producer)
    assert set(driver.consumed_list()) == {failing, slow, slower, poisoned, descendant}
    assert (driver.reclaim(), driver.live()) == (5, 0)
