"""CURVE keys: files of them, and nobody who is admitted without an answer."""

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from simpler_ref.remote import keys

ENDS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED
ENDS |= zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


def test_nobody_is_admitted_when_nobody_answers(monkeypatch):
    class Gone:
        guard = staticmethod(str)

    monkeypatch.setattr(keys, "doorkeeper", lambda _context: Gone())
    pair = keys.new_pair()
    with zmq.Context() as context, context.socket(zmq.REP) as server:
        keys.secure_server(server, pair, {pair.public})
        port = server.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.REQ) as client:
            keys.secure_client(client, pair, pair.public)
            with client.get_monitor_socket(ENDS) as monitor:
                client.connect(f"tcp://127.0.0.1:{port}")
                assert monitor.poll(10_000)
                event = recv_monitor_message(monitor)["event"]
                assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
                client.disable_monitor()


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
