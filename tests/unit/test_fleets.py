"""Fleets of processes: how sessions start, announce themselves and end."""

import os
import pickle
import signal
from dataclasses import replace

import pytest

from simpler_ref.errors import RemoteError
from simpler_ref.remote import fleets
from simpler_ref.remote.fleets import Announcement, ProcessFleet, reached_at, read_manifest, to_line
from simpler_ref.version import __version__

from ..sessions import DEADLINE_S, manifest, stand_in


@pytest.fixture
def fleet(tmp_path):
    return ProcessFleet(python=stand_in(tmp_path))


@pytest.fixture
def start(fleet):
    """Start sessions that are stopped after the test."""
    started = []

    def begin(one, endpoint=0, fleet=fleet):
        started.append(fleet.start(one, endpoint))
        return started[-1]

    yield begin
    for place in started:
        place.stop(DEADLINE_S)


# ---------------------------------------------------------------- on this machine
def test_a_session_gets_its_manifest_and_announces_itself(start):
    one = manifest(num_sub_workers=3)
    place = start(one)
    found = place.announcement
    assert found.host == repr(one) and found.frames == "tcp://127.0.0.1:1"
    assert place.name == f"endpoint 0 on this machine (pid {found.pid})"
    assert os.getpgid(found.pid) != os.getpgid(0), "Ctrl-C does not reach it"
    assert place.why() == ""
    for _ in range(2):
        place.stop(DEADLINE_S)
        assert place.why() == "exited with status 0"


def test_a_session_that_does_not_end_is_killed_with_its_children(fleet):
    place = fleet.start(manifest(stays=True, child=True), 0)
    place.stop(0.01)
    assert place.why() == "killed by SIGKILL"


def test_what_a_session_says_appears_here_and_why_tells_how_it_has_ended(start, capsys):
    place = start(manifest(prints="grüße ✓\nlast words"))
    os.kill(place.announcement.pid, signal.SIGKILL)
    assert place.wait(DEADLINE_S)
    assert place.why() == "killed by SIGKILL: grüße ✓\nlast words"
    assert capsys.readouterr().err == "grüße ✓\nlast words\n"


def test_a_failed_start_says_how_and_with_which_words(fleet):
    with pytest.raises(RemoteError, match=r"(?s)endpoint 0 .*exited with status 3 while .*oh no"):
        fleet.start(manifest(prints="oh no", exits=3), 0)
    with pytest.raises(RemoteError, match=r"exited with status 1 .*: no such chip"):
        fleet.start(manifest(raises="no such chip"), 0)
    text = "\n".join(str(i) for i in range(20_000))
    with pytest.raises(RemoteError) as caught:  # of long output, the end is kept
        fleet.start(manifest(prints=text, exits=3), 0)
    assert str(caught.value).endswith("19998\n19999")
    assert len(str(caught.value)) < 1000


@pytest.mark.long
def test_a_start_that_takes_too_long_is_ended(fleet):
    one = manifest({"start_timeout_s": 5.0}, silent=True, stays=True, prints="waiting")
    with pytest.raises(RemoteError, match=r"within 5\.0 s: give start_timeout_s= .*: waiting"):
        fleet.start(one, 0)


def test_a_session_whose_children_live_on_is_noticed(fleet):
    """They have its output, whose end of file does not come."""
    one = manifest(child=True, exits=3)
    with pytest.raises(RemoteError, match="exited with status 3"):
        fleet.start(one, 0)


@pytest.mark.parametrize("name", ["/nowhere/python", "no-such-python"])
def test_a_python_that_is_missing_is_named(name):
    with pytest.raises(RemoteError, match=rf"'{name}' installed here\? .*with python="):
        ProcessFleet(python=name).start(manifest(), 0)


def test_a_python_without_the_package_is_told_apart(tmp_path):
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\necho "No module named simpler_ref.endpoint" >&2; exit 1\n')
    path.chmod(0o755)
    with pytest.raises(RemoteError, match=r"install simpler_ref\[remote\] here"):
        ProcessFleet(python=str(path)).start(manifest(), 0)


def test_a_manifest_with_fields_of_another_version_is_refused_for_the_version():
    line = to_line(manifest()).replace(f'"{__version__}"', '"9.9","colour":"red"')
    with pytest.raises(RemoteError, match=r"9\.9"):
        read_manifest(line)
    with pytest.raises(ValueError, match="no manifest"):
        read_manifest("colour")


def test_an_interrupted_start_leaves_nothing(fleet, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("simpler_ref.remote.fleets.SessionProcess.announced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fleet.start(manifest(silent=True, stays=True), 0)


# ---------------------------------------------------------------- by ssh
FAKE_SSH = """#!/bin/sh
test "$1 $2" = "-o BatchMode=yes" || exit 9
echo "welcome to $3"
case $3 in
    *down*) echo "ssh: connect to host: refused" >&2; exit 255;;
esac
SSH_CONNECTION="10.0.0.1 5 127.0.0.9 22" exec sh -c "$4"
"""


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    path = tmp_path / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(FAKE_SSH)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def test_hosts_are_reached_by_ssh_and_take_turns(ssh, start, tmp_path, capsys):
    fleet = ProcessFleet(["one", "me@two"], python=stand_in(tmp_path))
    assert not fleet.is_local
    for i, host in enumerate(["one", "me@two", "one"]):
        place = start(manifest(), i, fleet)
        assert f" on {host} (pid " in place.name
        assert place.announcement.frames == "tcp://127.0.0.9:1"  # where ssh has reached it
    assert "welcome to me@two\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "options", "words"),
    [
        ("down", {}, r"(?s)on down .*`ssh down true` must .*: refused"),
        ("one", {"python": "no-such"}, r"(?s)status 127 .*Python on one with python=: .*no-such"),
        ("one", {"ssh": ["no-such-ssh"]}, r"is 'no-such-ssh' installed"),
    ],
)
def test_what_ssh_does_not_reach_or_find_is_named(ssh, host, options, words):
    with pytest.raises(RemoteError, match=words):
        ProcessFleet([host], **options).start(manifest(), 0)


def test_all_interfaces_are_announced_as_the_host():
    here = Announcement("tcp://0.0.0.0:1", "tcp://10.0.0.0:1", "tcp://*:1")
    assert reached_at(here, "x") == Announcement("tcp://x:1", "tcp://10.0.0.0:1", "tcp://x:1")


# ---------------------------------------------------------------- arguments
@pytest.mark.parametrize(
    ("error", "options"),
    [
        *((TypeError, {"hosts": "node1"}), (TypeError, {"ssh": "ssh"})),
        *((ValueError, {"hosts": []}), (ValueError, {"hosts": ["-oProxyCommand=x"]})),
        *((ValueError, {"hosts": [""]}), (TypeError, {"python": -1})),
        *((ValueError, {"python": ""}), (TypeError, {"interface": 5})),
        (ValueError, {"interface": ""}),
    ],
)
def test_arguments_that_mean_nothing_are_refused(error, options):
    with pytest.raises(error, match=f"{next(iter(options))}="):
        ProcessFleet(**options)


def test_an_interface_that_is_not_there_is_named():
    one = replace(manifest(), worker={"num_sub_workers": 0})
    with pytest.raises(RemoteError, match=r"interface='nonsense': No such device; give an address"):
        ProcessFleet(interface="nonsense").start(one, 0)


def test_a_fleet_travels_to_other_processes():
    fleet = pickle.loads(pickle.dumps(ProcessFleet(["a", "b"], python="p")))
    assert (repr(fleet), repr(ProcessFleet())) == ("ProcessFleet(['a', 'b'])", "ProcessFleet()")
    assert [*map(fleet.where, range(3)), ProcessFleet().where(1)] == ["a", "b", "a", "this machine"]
    assert fleets.session_command("x", "p")[0] == "p"
