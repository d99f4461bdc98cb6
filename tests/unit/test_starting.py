"""Starts of workers that threads look at while others end them."""

from simpler_ref.workers.manager import WorkerManager


def test_a_start_that_another_thread_has_ended_meanwhile_has_settled():
    manager = object.__new__(WorkerManager)
    manager._ready = set()

    class Ended(dict):
        def __iter__(self):
            started = [*super().__iter__()]
            self.clear()  # what the other thread does between the look and the question
            return iter(started)

    manager.starting = Ended({3: 0.0})
    assert manager.has_started()
    assert not manager.has_started()
