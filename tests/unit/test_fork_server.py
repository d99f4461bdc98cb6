"""The fork server ends with its parent, and says nothing."""

import os
import socket

import pytest

from simpler_ref.workers.fork_server import Makings, ServerSetup, fork_server, serve
from tests.support import wait_until


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
        server = fork_server(lambda: serve(setup, Makings(None, [], {}), lambda: None))
        ended = []
        wait_until(lambda: ended.append(os.waitpid(server, os.WNOHANG)) or ended[-1][0])
        assert os.waitstatus_to_exitcode(ended[-1][1]) == 0
    finally:
        theirs.close()
        os.close(parent_fd)
    assert capfd.readouterr() == ("", "")
