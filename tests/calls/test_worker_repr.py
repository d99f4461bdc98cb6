"""What a Worker says of itself."""

import numpy as np

import simpler_ref as sr

from ..conformance.calls.tasks import wait_at


def test_a_worker_says_what_it_has_and_what_it_does():
    w = sr.Worker(num_sub_workers=2, child_mode="thread")
    assert repr(w) == "<Worker: level 3, 2 sub workers, in threads, not open yet>"
    with w:
        assert "not open yet" in repr(w)
        w.init()
        assert repr(w) == "<Worker: level 3, 2 sub workers, in threads, open>"
        gate = w.share(np.zeros(1, np.int32))
        held = [wait_at(gate) for _ in range(3)]
        assert repr(w).endswith(", open, 3 calls waiting or running>")
        gate[0] = 1
        assert [one.result() for one in held] == [None] * 3
        assert repr(w).endswith(", open, 0 calls waiting or running>")
        said = []
        w.run(lambda orch, args, config: said.append(repr(w)))
        assert said[0].endswith(", open, a run is in progress>")
    assert repr(w) == "<Worker: level 3, 2 sub workers, in threads, closed>"


def test_pools_that_are_empty_are_left_out():
    for options, text in (
        ({"level": 3, "num_sub_workers": 1}, "level 3, 1 sub worker, in processes"),
        ({"level": 3, "device_ids": [0, 1]}, "level 3, 2 next-level workers, in processes"),
        ({"level": 4}, "level 4, in processes"),
    ):
        assert repr(sr.Worker(**options)) == f"<Worker: {text}, not open yet>"
