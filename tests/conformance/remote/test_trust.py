"""REMOTE-TRUST: who may do what."""

import logging

import pytest

from simpler_ref import CallableError, RemoteCallable, RemoteWorkerSpec
from simpler_ref.remote.connection import new_pair
from simpler_ref.remote.frames import FrameType, HelloPayload, encode_hello
from simpler_ref.remote.session_frames import profile
from tests import far_side
from tests.endpoints import Program
from tests.raw_session import session
from tests.support import wait_until


@pytest.mark.spec("REMOTE-TRUST-1")
def test_connections_are_encrypted_unless_that_is_given_up_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "simpler_ref"):
        assert RemoteWorkerSpec().secure and not caplog.records
        RemoteWorkerSpec(secure=False)
    assert "in the open" in caplog.text


@pytest.mark.spec("REMOTE-TRUST-1", "REMOTE-TRUST-2")
@pytest.mark.slow("a stranger is refused only when its time is up")
def test_only_the_parents_key_is_admitted_and_its_hello_once(capfd):
    pair = new_pair()
    with session(pair) as (place, connect):
        for keys in (new_pair(), None):
            client = connect(keys)
            client.send(FrameType.SHUTDOWN)
            assert client.hear(1.0) is None
        told: list[str] = []

        def is_told():
            told.append(capfd.readouterr().err)
            text = "".join(told)
            return "is not admitted" in text and "refused a connection: it has other keys" in text

        wait_until(is_told)
        first = connect()
        first.greet()
        second = connect()
        hello = encode_hello(HelloPayload(77, 3, comm_profile=profile()))
        assert second.ask(FrameType.HELLO, hello, timeout_s=1.0) is None
        second.send(FrameType.SHUTDOWN)
        assert second.hear(0.5) is None
        assert first.ask(FrameType.CONTROL, b"") is not None
        second.socket.close(linger=0)
        assert first.ask(FrameType.CONTROL, b"") is not None
        assert not place.why()


@pytest.mark.spec("REMOTE-TRUST-3")
def test_callables_are_imported_from_allowed_modules_only():
    made, allowed = Program(0), [["json"], ["tests.far_side"]]
    made.ids = [made.worker.add_remote_worker(RemoteWorkerSpec(modules=one)) for one in allowed]
    with made.worker as worker:
        worker.init()
        worker.start()
        target = RemoteCallable(far_side.name(far_side.nothing))
        refused = r"does not import from 'tests\.far_side'.*json.* --module tests\.far_side"
        with pytest.raises(CallableError, match=refused):
            worker.register(target)
        missing = RemoteCallable("json.no_such:function")
        with pytest.raises(CallableError, match=r"No module named 'json\.no_such' on .*PYTHONPATH"):
            worker.register(missing, workers=[0])
        handle = worker.register(target, workers=[1])
        worker.run(lambda orch, args, config: orch.submit_next_level(handle, worker=1))
