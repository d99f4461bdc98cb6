"""Workers: their options, as programs and people see them, their start, and the fork server's end."""

import inspect
import os
import socket
import typing

import pytest

from simpler_ref import RemoteWorkerSpec, Worker
from simpler_ref.workers.fork_server import ServerSetup, fork_server, serve
from simpler_ref.workers.manager import WorkerManager
from tests.support import wait_until


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


@pytest.mark.spec("SCHED-DEATH-4")
@pytest.mark.parametrize("unread", [0, 1, 3])
def test_it_ends_without_a_word_when_its_parent_has_left_reports_unread(capfd, unread):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent, parent_fd = os.getpid(), os.pidfd_open(os.getpid())
    try:
        for _ in range(unread):
            theirs.send(b"a report")
        ours.close()
        setup = ServerSetup(theirs.fileno(), parent_fd, {}, parent, set(), False, None)
        server = fork_server(lambda: serve(setup, (None, [], {}), lambda: None))
        ended = []
        wait_until(lambda: ended.append(os.waitpid(server, os.WNOHANG)) or ended[-1][0])
        assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
    finally:
        theirs.close()
        os.close(parent_fd)
    assert capfd.readouterr() == ("", "")
