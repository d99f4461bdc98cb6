"""REMOTE-REG: remote callables."""

import numpy as np
import pytest

from simpler_ref import CallableError, RemoteCallable, RemoteWorkerSpec, get_inner_handle
from simpler_ref.callable_identity import (
    CallableKind,
    build_python_import_descriptor,
    compute_callable_hashid,
)
from simpler_ref.remote import (
    callables,
    frames,
)
from tests import far_side
from tests.endpoints import INOUT, Program, program
from tests.raw_session import session

NAME = far_side.name(far_side.nothing)
DISPATCHER = callables.RemoteRegistryTarget.REMOTE_TASK_DISPATCHER


@pytest.fixture(scope="module")
def two():
    with program(num_sub_workers=1) as made:
        yield made


def closure(value):
    def add(orch, args, config):
        args.tensor(0).numpy()[...] += value

    return add


@pytest.mark.spec("REMOTE-REG-1", "REMOTE-REG-2")
def test_a_remote_callable_is_known_by_module_and_name(two):
    handle = two.handle(far_side.nothing)
    assert handle.target_namespace == "REMOTE_TASK_DISPATCHER"
    assert handle.kind == CallableKind.PYTHON_IMPORT
    descriptor = build_python_import_descriptor(*NAME.split(":"))
    assert handle.hashid == RemoteCallable(NAME).hashid == compute_callable_hashid(descriptor)
    for wrong in ("nothing", "a:b:c", "a b:c", "a:<locals>.f"):
        with pytest.raises(CallableError):
            RemoteCallable(wrong)


@pytest.mark.spec("REMOTE-REG-3")
def test_serialised_callables_need_the_endpoints_agreement():
    made = Program(1)
    made.worker.add_remote_worker(RemoteWorkerSpec(serialized=True))
    with made.worker as worker:
        worker.init()
        worker.start()
        with pytest.raises(CallableError, match="no serialised callables"):
            worker.register(closure(2), workers=[0, 1])
        handle = worker.register(closure(2), workers=[1])
        buffer = made.buffer(1, np.zeros(2))
        worker.run(
            lambda orch, args, config: orch.submit_next_level(handle, made.args((buffer, INOUT)))
        )
        assert made.values(buffer).tolist() == [2, 2]


@pytest.mark.spec("REMOTE-REG-4")
def test_a_callable_is_for_the_endpoints_that_were_named(two):
    only = two.worker.register(RemoteCallable(far_side.name(far_side.double)), workers=[1])

    def orch_fn(orch, args, config):
        with pytest.raises(ValueError, match=r"endpoints \[1\], not for 0"):
            orch.submit_next_level(only, worker=0)

    two.worker.run(orch_fn)
    for wrong in ([7], [-1], ["a"]):
        with pytest.raises(ValueError, match="no endpoint"):
            two.worker.register(RemoteCallable(NAME), workers=wrong)
    with pytest.raises(ValueError, match="names no endpoint"):
        two.worker.register(RemoteCallable(NAME), workers=[])
    two.handle(far_side.nothing)
    with pytest.raises(CallableError, match="registered already"):
        two.worker.register(RemoteCallable(NAME), workers=[1])
    two.worker.unregister(only)


@pytest.mark.spec("REMOTE-REG-5")
def test_what_one_endpoint_refuses_no_other_has():
    made = Program(0)
    for modules in (["tests"], ["json"]):
        made.worker.add_remote_worker(RemoteWorkerSpec(modules=modules))
    with made.worker as worker:
        worker.init()
        worker.start()
        with pytest.raises(CallableError) as caught:
            worker.register(RemoteCallable(NAME))
        assert caught.value.code == "REGISTER_PARTIAL_FAILURE"
        handle = worker.register(RemoteCallable(NAME), workers=[0])
        worker.run(lambda orch, args, config: orch.submit_next_level(handle))


@pytest.mark.spec("REMOTE-REG-5")
def test_a_callable_is_usable_once_it_is_committed():
    target = RemoteCallable(NAME)
    kind, digest = CallableKind.PYTHON_IMPORT, bytes.fromhex(target.hashid[7:])
    command = callables.encode_register_callable_command(
        DISPATCHER, kind, digest, 1, target.descriptor
    )
    by_digest = callables.encode_digest_callable_command(DISPATCHER, kind, digest)
    name = frames.ControlName

    with session() as (_place, connect):
        client = connect()
        client.greet()

        def ask(which, payload):
            answer = client.ask(frames.FrameType.CONTROL, frames.encode_control(which, 1, payload))
            return frames.decode_control_reply(answer.payload).error_message

        from simpler_ref.remote.tasks import TaskPayloadWire, encode_task_payload

        def run():
            answer = client.ask(frames.FrameType.TASK, encode_task_payload(TaskPayloadWire(digest)))
            return frames.decode_completion(answer.payload).error_message

        assert "was not prepared" in ask(name.COMMIT_REGISTER_CALLABLE, by_digest)
        assert ask(name.PREPARE_REGISTER_CALLABLE, command) == ""
        assert "is not registered" in run()
        assert ask(name.ABORT_REGISTER_CALLABLE, by_digest) == ""
        assert "was not prepared" in ask(name.COMMIT_REGISTER_CALLABLE, by_digest)
        assert ask(name.PREPARE_REGISTER_CALLABLE, command) == ""
        assert ask(name.COMMIT_REGISTER_CALLABLE, by_digest) == ""
        assert run() == ""
        assert ask(name.UNREGISTER_CALLABLE, by_digest) == ""
        assert "is not registered" in run()


@pytest.mark.spec("REMOTE-REG-6")
def test_callables_of_before_the_start_are_sent_too():
    made = Program(1)
    made.handle(far_side.nothing)
    with made.worker:
        made.run((far_side.nothing, None))


@pytest.mark.spec("REMOTE-REG-7")
def test_the_digest_is_computed_anew_where_it_arrives():
    target = RemoteCallable(NAME)
    command = callables.encode_register_callable_command(
        DISPATCHER, CallableKind.PYTHON_IMPORT, bytes(32), 1, target.descriptor
    )
    request = frames.encode_control(frames.ControlName.PREPARE_REGISTER_CALLABLE, 1, command)
    with session() as (_place, connect):
        client = connect()
        client.greet()
        answer = client.ask(frames.FrameType.CONTROL, request)
        assert (
            "HASHID_DESCRIPTOR_MISMATCH"
            in frames.decode_control_reply(answer.payload).error_message
        )


@pytest.mark.spec("REMOTE-REG-8")
def test_inner_callables_are_for_the_workers_of_an_endpoint(two):
    inner = two.handle(far_side.double, inner=True)
    buffer = two.buffer(1, np.ones(3))
    two.run((far_side.by_worker, two.args((buffer, INOUT))))
    assert two.values(buffer).tolist() == [2] * 3

    def orch_fn(orch, args, config):
        with pytest.raises(TypeError, match="get_inner_handle"):
            orch.submit_next_level(inner)

    two.worker.run(orch_fn)
    with pytest.raises(RuntimeError, match="endpoint"):
        get_inner_handle(RemoteCallable(NAME))
    with pytest.raises(ValueError, match="workers="):
        two.worker.register(closure(1), inner=True)
