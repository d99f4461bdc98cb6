"""Options of a Worker, as programs and people see them."""

import inspect
import typing

import pytest

from simpler_ref import RemoteWorkerSpec, Worker


def test_a_worker_shows_the_type_the_default_and_the_text_of_each_option():
    shown = inspect.signature(Worker).parameters
    first, *others = shown.values()
    assert first.name == "level" and {"heap_ring_size", "initializer", "fleet"} < set(shown)
    assert {one.kind.name for one in others} == {"KEYWORD_ONLY"}
    assert (shown["level"].default, shown["start_timeout_s"].default) == (None, 30.0)
    types = typing.get_type_hints(Worker.__init__)
    assert types.keys() == {*shown, "return"} and types["task_window"] == int | None
    for name in shown:
        assert f"\n    {name} : " in Worker.__doc__, name


def test_an_option_that_is_left_out_and_one_that_is_none_mean_the_same():
    options = inspect.signature(Worker).parameters.values()
    optional = {one.name: None for one in options if one.default is None}
    assert Worker(**optional)._life.options == Worker()._life.options


@pytest.mark.parametrize(("subs", "depth", "expected"), [(1, None, 4), (60, None, 64), (2, 5, 5)])
def test_the_depth_fits_the_sub_workers_of_an_endpoint(subs, depth, expected):
    """Two more than twice as many calls as those, at most 64, or as many as `mailbox_depth` says."""
    spec = RemoteWorkerSpec(num_sub_workers=subs)
    assert Worker(fleet=spec, endpoints=1, mailbox_depth=depth).mailbox_depth == expected
    assert Worker(num_sub_workers=subs).mailbox_depth == 1, "without endpoints"
