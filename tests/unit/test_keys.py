"""CURVE keys: files of them, and who is admitted."""

import logging
import threading
from contextlib import suppress

import pytest
import zmq

from simpler_ref.remote import keys


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context
    assert "simpler-keys" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture
def server(context):
    with context.socket(zmq.PULL) as socket:
        yield socket


PAIR = keys.new_pair()
CLIENT = keys.new_pair()
OTHER = keys.new_pair()


def serve(server, admitted):
    keys.secure_server(server, PAIR, admitted)
    return f"tcp://127.0.0.1:{server.bind_to_random_port('tcp://127.0.0.1')}"


def send(context, address, pair, server_key, what):
    """Send, and return what became of the handshake."""
    with context.socket(zmq.PUSH) as client:
        client.linger = 0
        if pair:
            keys.secure_client(client, pair, server_key)
        monitor = client.get_monitor_socket(zmq.EVENT_ALL)
        client.connect(address)
        with suppress(zmq.Again):  # refused by now: there is nobody to send to
            client.send(what, zmq.DONTWAIT)
        happened = outcome(monitor)
        client.disable_monitor()
        monitor.close()
        if happened == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            client.linger = -1
        return happened


def outcome(monitor):
    from zmq.utils.monitor import recv_monitor_message

    while True:
        assert monitor.poll(10_000)
        event = recv_monitor_message(monitor)["event"]
        if "HANDSHAKE" in event.name or event == zmq.EVENT_DISCONNECTED:
            return event


def test_other_clients_are_refused_and_the_server_serves_on(context, server, caplog):
    address = serve(server, {CLIENT.public})
    with caplog.at_level(logging.WARNING, "simpler_ref"):
        refused = send(context, address, OTHER, PAIR.public, b"not admitted")
    assert refused == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    assert OTHER.public in caplog.text
    send(context, address, CLIENT, OTHER.public, b"expects another server")
    send(context, address, None, None, b"in the open")
    send(context, address, CLIENT, PAIR.public, b"1")
    assert server.recv() == b"1"
    assert not server.poll(0)


def test_a_client_gets_through_once_its_key_is_admitted(context, server):
    admitted = set()
    address = serve(server, admitted)
    assert send(context, address, CLIENT, PAIR.public, b"0") == zmq.EVENT_HANDSHAKE_FAILED_AUTH
    admitted.add(CLIENT.public)
    assert send(context, address, CLIENT, PAIR.public, b"1") == zmq.EVENT_HANDSHAKE_SUCCEEDED
    assert server.recv() == b"1"


def test_nobody_is_admitted_when_nobody_answers(context, server, monkeypatch):
    class Gone:
        guard = staticmethod(str)

    monkeypatch.setattr(keys, "doorkeeper", lambda _context: Gone())
    send(context, serve(server, {CLIENT.public}), CLIENT, PAIR.public, b"0")
    assert not server.poll(0)


# ---------------------------------------------------------------- files
def test_a_file_holds_the_pair_and_is_refused_unless_it_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "keys"
    pair = keys.write_pair(path)
    assert (path.stat().st_mode & 0o777, keys.read_pair(path)) == (0o600, pair)
    assert pair.secret not in repr(pair)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match=r"mode 0640\): chmod 600"):
        keys.read_pair(path)


@pytest.mark.parametrize("text", ["", "x", "é" * 40, "~" * 40])
def test_a_file_without_a_key_is_refused(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=r"no key of 40 characters in .*--make-keys"):
        keys.read_pair(path)
