"""Daemons that are started by hand, and the fleet that asks them for sessions."""

import contextlib
import os
import pickle
import signal
import socket as sockets
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from simpler_ref import endpoint
from simpler_ref.errors import RemoteError
from simpler_ref.remote import connection
from simpler_ref.remote.daemon import START, Daemon, HostFleet, common_modules
from simpler_ref.remote.fleets import to_line

from ..sessions import DEADLINE_S, manifest, stand_in
from ..support import Gate, sample, wait_until
from ..system.programs import Fork, dies
from ..system.workers import shared_words

ROOT = Path(__file__).parents[2]
DAEMON = """
import sys
import simpler_ref.remote.daemon as daemon
daemon.TICK_MS = int(sys.argv.pop(1))
daemon.session_command = lambda interface: [
    sys.argv[1], "-m", "simpler_ref.endpoint", "--interface", interface
]
from simpler_ref.endpoint import main
sys.exit(main(sys.argv[2:]))
"""
OPEN = {"parent_key": "", "group_key": "", "group_secret": ""}


@contextmanager
def daemon(tmp_path, *options, listen="tcp://127.0.0.1:*", tick_ms=10):
    """Run a daemon; yield its process, with its address; `log` in the folder has what it logs."""
    words = str(tick_ms), stand_in(tmp_path), "--listen", listen, *options
    command = [sys.executable, "-c", DAEMON, *words]
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        ) as process,
    ):
        try:
            process.address = process.stdout.readline().split()[-1]
            yield process
        finally:
            process.terminate()
    assert process.returncode in (0, -signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("daemon")


@pytest.fixture(scope="module")
def key_file(folder):
    connection.write_pair(folder / "keys")
    return str(folder / "keys")


@pytest.fixture(scope="module")
def served(folder, key_file):
    with daemon(folder, "--keys", key_file, "--module", "json") as process:
        yield process


@pytest.fixture(scope="module")
def fleet(served, key_file):
    return HostFleet([served.address], keys=key_file)


def refused(fleet, one):
    with pytest.raises(RemoteError) as caught:
        fleet.start(one, 0)
    return str(caught.value)


def test_a_daemon_starts_a_session_per_request(fleet, served):
    places = [fleet.start(manifest(), i) for i in range(2)]
    pids = [place.announcement.pid for place in places]
    assert (len(set(pids)), [place.why() for place in places]) == (2, ["", ""])
    assert served.address in places[0].name and str(pids[0]) in places[0].name
    for place in places:
        place.stop(DEADLINE_S)
        assert place.why() == "exited with status 0"
    assert all(map(dies, pids))


def test_a_manifest_is_cut_down_to_what_the_daemon_allows(fleet):
    more = {"modules": ("json.tool", "other"), "serialized": True, "path": ("/elsewhere",)}
    place = fleet.start(manifest(more), 0)
    told = place.announcement.host
    assert "modules=('json.tool',)" in told and "serialized=False" in told and "path=()" in told
    place.stop(DEADLINE_S)


@pytest.mark.parametrize(
    ("some", "others", "common"),
    [
        *((["a"], ["a"], ["a"]), (["a.b", "c"], ["a"], ["a.b"]), (["ab"], ["a"], [])),
        *((["a"], ["a.b", "a.c"], ["a.b", "a.c"]), (["a"], [], []), ([], ["*"], [])),
        *((["*"], ["a"], ["a"]), (["a"], ["*"], ["a"]), (["*"], ["*"], ["*"])),
    ],
)
def test_modules_that_both_sides_allow(some, others, common):
    assert common_modules(some, others) == tuple(common)


def test_why_says_how_a_session_or_its_start_has_ended_there(fleet):
    text = refused(fleet, manifest(prints="oh no", exits=3))
    assert "exited with status 3 while it was started: oh no" in text
    place = fleet.start(manifest(prints="last words"), 0)
    os.kill(place.announcement.pid, signal.SIGKILL)
    assert place.wait(DEADLINE_S)
    assert place.why() == "killed by SIGKILL: last words"
    place.stop(DEADLINE_S)


def test_the_end_of_a_session_is_told_at_once(tmp_path, key_file):
    with daemon(tmp_path, "--keys", key_file, tick_ms=int(2000 * DEADLINE_S)) as served:
        place = HostFleet([served.address], keys=key_file).start(manifest(), 0)
        os.kill(place.announcement.pid, signal.SIGKILL)
        assert place.wait(DEADLINE_S) and place.why() == "killed by SIGKILL"
        place.stop(0)
        served.kill()


def test_the_end_of_the_connection_ends_the_session(fleet):
    place = fleet.start(manifest(), 0)
    place.close()
    assert dies(place.announcement.pid)


@pytest.mark.parametrize("number", sample([signal.SIGKILL, signal.SIGSTOP], 1))
def test_a_session_ends_when_its_parent_is_killed_or_silent(served, key_file, number):
    one, pid = manifest(), shared_words(1)

    def be_parent():
        pid[0] = HostFleet([served.address], keys=key_file).start(one, 0).announcement.pid
        started.open(1)
        signal.pause()

    with Gate() as started, Fork(be_parent) as parent:
        started.wait()
        parent.kill(number)
        assert dies(int(pid[0]))


# ---------------------------------------------------------------- who is refused, and for what
def test_other_keys_and_none_are_refused_and_the_daemon_serves_on(served, fleet, folder, tmp_path):
    connection.write_pair(tmp_path / "others")
    other = HostFleet([served.address], keys=tmp_path / "others")
    assert "other keys" in refused(other, manifest())
    with zmq.Context() as context, context.socket(zmq.DEALER) as without:
        without.linger = 0
        without.connect(served.address)
        wait_until(lambda: (folder / "log").read_text().count("refused a connection: it has") >= 2)
    fleet.start(manifest(), 0).stop(DEADLINE_S)


def test_a_request_that_is_sent_again_of_another_version_or_without_keys_is_refused(fleet):
    one = manifest()
    place = fleet.start(one, 0)
    assert f"session {one.session_id} has been asked for before" in refused(fleet, one)
    assert place.why() == ""
    place.stop(DEADLINE_S)
    assert "has been asked for before" in refused(fleet, one)
    assert "the parent has simpler_ref 9.9" in refused(fleet, replace(manifest(), version="9.9"))
    assert "--insecure" in refused(fleet, manifest(OPEN))


@pytest.mark.long
def test_both_sides_can_agree_to_sessions_in_the_open(tmp_path, key_file):
    with daemon(tmp_path, "--keys", key_file, "--insecure") as served:
        HostFleet([served.address], keys=key_file).start(manifest(OPEN), 0).stop(DEADLINE_S)


def test_messages_that_are_no_requests_are_refused(fleet, served, key_file):
    pair = connection.read_pair(key_file)
    with zmq.Context() as context, context.socket(zmq.DEALER) as client:
        client.linger = 0
        connection.secure_client(client, pair, pair.public)
        client.connect(served.address)
        for parts in ([b""], [b"hello"], [START], [START, b"{", b""], [b"stop"]):
            client.send_multipart(parts)
        assert client.recv_multipart()[0] == b"refused"
        client.send_multipart([START, to_line(manifest(silent=True)).encode(), b"x"])
        client.send_multipart([START, to_line(manifest()).encode(), b"x"])  # a second one
        while (answer := client.recv_multipart())[0] == b"alive":
            pass
        assert answer[0] == b"refused" and b"before" in answer[1]
    fleet.start(manifest(), 0).stop(DEADLINE_S)


def test_a_daemon_that_is_not_there_and_a_host_that_nobody_knows_are_named(key_file, monkeypatch):
    def unknown(host):
        raise sockets.gaierror(sockets.EAI_NONAME, "Name or service not known")

    fleet = HostFleet(["tcp://127.0.0.1:1"], keys=key_file)
    text = refused(fleet, manifest({"start_timeout_s": 0.3}))
    assert "tcp://127.0.0.1:1 could not be started: no answer in time; is it started" in text
    monkeypatch.setattr(sockets, "gethostbyname", unknown)
    text = refused(fleet, manifest({"start_timeout_s": 0.3}))
    assert text.endswith("apart? 127.0.0.1: Name or service not known")


def test_a_daemon_that_is_stopped_is_told_apart_from_one_with_other_keys(key_file):
    with sockets.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        text = refused(HostFleet([address], keys=key_file), manifest({"silence_s": 0.5}))
    assert f"{address} was silent for 0.5 s: is it stopped" in text


# ---------------------------------------------------------------- addresses
@pytest.mark.long
def test_a_session_listens_where_the_parent_reaches_the_daemon(tmp_path, key_file):
    with daemon(tmp_path, "--keys", key_file, listen="tcp://0.0.0.0:*") as served:
        port = served.address.rpartition(":")[2]
        place = HostFleet([f"tcp://127.0.0.3:{port}"], keys=key_file).start(manifest(), 0)
        assert place.announcement.frames == "tcp://127.0.0.3:1"
        place.stop(DEADLINE_S)
    pair = connection.read_pair(key_file)
    with contextlib.closing(Daemon("tcp://0.0.0.0:*", pair)) as elsewhere:
        assert elsewhere._listening_address("192.0.2.1") == "0.0.0.0"


# ---------------------------------------------------------------- the command and its arguments
def test_keys_are_made_once_and_a_daemon_wants_them(tmp_path, capsys):
    path = tmp_path / "new"
    assert endpoint.main(["--make-keys", str(path)]) == 0
    assert connection.read_pair(path)
    assert endpoint.main(["--make-keys", str(path)]) == 1
    assert "File exists" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        endpoint.main(["--listen", "tcp://127.0.0.1:*"])
    assert "--keys FILE" in capsys.readouterr().err
    assert endpoint.main(["--listen", "tcp://127.0.0.1:*", "--keys", str(tmp_path / "no")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_a_daemon_refuses_modules_that_are_not_there(key_file, capsys):
    words = ["--listen", "tcp://127.0.0.1:*", "--keys", key_file, "--module"]
    with pytest.raises(SystemExit):
        endpoint.main([*words, "no_such.part"])
    assert "--module no_such.part: there is no such module here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:65536", "tcp://127.0.0.1", "tcp://:5555", "ipc://x", "127.0.0.1:5555"],
)
def test_what_is_no_address_with_a_port_is_refused(address, key_file, capsys):
    assert endpoint.main(["--listen", address, "--keys", key_file]) == 1
    assert f"cannot listen at {address!r}: give tcp://HOST:PORT" in capsys.readouterr().err


ADDRESSES = ["a:1", "tcp://a", "tcp://a:0", "tcp://a:65536", "tcp://a:*", "tcp://:1"]


@pytest.mark.parametrize(
    ("error", "options"),
    [
        *((ValueError, {"addresses": [one]}) for one in ADDRESSES),
        *((ValueError, {"addresses": []}), (TypeError, {"addresses": "tcp://a:1"})),
        (TypeError, {"addresses": [None]}),
        *((TypeError, {"keys": 0}), (TypeError, {"keys": None}), (ValueError, {"keys": ""})),
        (FileNotFoundError, {"keys": "/nowhere"}),
    ],
)
def test_addresses_and_keys_that_are_none_are_refused(error, options, key_file):
    with pytest.raises(error, match=r"addresses=|keys=|No such file"):
        HostFleet(**{"addresses": ["tcp://a:1"], "keys": key_file, **options})


def test_a_fleet_travels_to_other_processes_and_hides_its_keys(key_file):
    fleet = pickle.loads(pickle.dumps(HostFleet(["tcp://a:1"], keys=key_file)))
    assert (repr(fleet), fleet.where(1)) == ("HostFleet(['tcp://a:1'])", "tcp://a:1")


ALONE = """
import simpler_ref
from simpler_ref import orchestrator, remote_l3_protocol, task_interface
print(simpler_ref.get_inner_handle.__name__)
"""
MAKE_KEYS = ["-m", "simpler_ref.endpoint", "--make-keys=/nowhere/keys"]
MISSING = "endpoints need pyzmq (no zmq): pip install 'simpler_ref[remote]'\n"


@pytest.mark.parametrize(
    "arguments, code, said",
    [(["-c", ALONE], 0, "get_inner_handle\n"), (MAKE_KEYS, 1, MISSING)],
    ids=["import", "keys"],
)
def test_without_pyzmq_all_but_endpoints_works_and_a_line_says_what_to_install(
    tmp_path, arguments, code, said
):
    (tmp_path / "zmq.py").write_text("raise ImportError('no zmq')")
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == code and done.stdout.endswith(said)
    assert "Traceback" not in done.stdout


# ---------------------------------------------------------------- keys
def test_nobody_is_admitted_when_nobody_answers(monkeypatch):
    monkeypatch.setattr(connection, "doorkeeper", lambda _context: {})
    pair = connection.new_pair()
    with zmq.Context() as context, context.socket(zmq.REP) as server:
        connection.secure_server(server, pair, {pair.public})
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.REQ) as client:
            client.linger = 0
            connection.secure_client(client, pair, pair.public)
            client.connect(f"tcp://127.0.0.1:{port}")
            client.send(b"0")
            assert not server.poll(300)


def test_a_file_holds_the_pair_and_is_refused_unless_it_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "keys"
    pair = connection.write_pair(path)
    assert (path.stat().st_mode & 0o777, connection.read_pair(path)) == (0o600, pair)
    assert pair.secret not in repr(pair)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match=r"mode 0640\): chmod 600"):
        connection.read_pair(path)


@pytest.mark.parametrize("text", ["", "x", "é" * 40, "~" * 40])
def test_a_file_without_a_key_is_refused(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"no key of 40 characters in .*--make-keys"):
        connection.read_pair(path)
