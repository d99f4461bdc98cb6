"""REMOTE-LINK: endpoints and frames."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import zmq

from simpler_ref import (
    CallConfig,
    RemoteCallable,
    RemoteTensorRef,
    RemoteWorkerSpec,
    Worker,
    WorkerStartError,
)
from simpler_ref.errors import RemoteError
from simpler_ref.remote import frames
from simpler_ref.remote.connection import prepare
from simpler_ref.remote.fleets import read_manifest, to_line
from simpler_ref.remote.frames import FrameType, ReadyState
from simpler_ref.remote.session_frames import address_at
from simpler_ref.remote.tasks import TaskPayloadWire, encode_task_payload
from tests import far_side
from tests.endpoints import COUNT, EXISTING, INOUT, INPUT, Program, Tower, program, reference
from tests.raw_session import greeted, manifest, session


@pytest.mark.spec("REMOTE-LINK-1")
def test_endpoints_are_next_level_workers_after_those_of_this_machine():
    worker, child = Worker(level=4), Worker(level=3, num_sub_workers=1)
    worker.add_worker(child)
    assert worker.add_remote_worker(RemoteWorkerSpec()) == 1
    with pytest.raises(RuntimeError, match="before the endpoints"):
        worker.add_worker(Worker(level=3, num_sub_workers=1))
    local = worker.register(far_side.nothing)
    there = worker.register(RemoteCallable(far_side.name(far_side.nothing)))

    def orch_fn(orch, args, config):
        for _ in range(3):
            orch.submit_next_level(local)
            orch.submit_next_level(there)
        with pytest.raises(ValueError, match="is an endpoint"):
            orch.submit_next_level(local, worker=1)
        with pytest.raises(ValueError, match="no endpoint"):
            orch.submit_next_level(there, worker=0)

    with worker:
        worker.run(orch_fn)
        assert worker.endpoints()[0]["tasks"] == 3


@pytest.mark.spec("REMOTE-LINK-1")
def test_only_workers_of_level_4_with_processes_have_endpoints():
    with pytest.raises(RuntimeError, match="level >= 4"):
        Worker(level=3).add_remote_worker(RemoteWorkerSpec())
    with pytest.raises(RuntimeError, match="processes"):
        Worker(level=4, child_mode="thread").add_remote_worker(RemoteWorkerSpec())
    with pytest.raises(TypeError, match="RemoteWorkerSpec"):
        Worker(level=4).add_remote_worker("node1")
    with pytest.raises(RuntimeError, match="no endpoints"):
        Worker(level=4).remote_malloc(worker=0, nbytes=4)


@pytest.mark.spec("REMOTE-LINK-2", "REMOTE-LINK-7", "REMOTE-LINK-8")
def test_a_session_is_ready_at_a_unix_socket_when_it_says_hello_and_takes_nothing_before():
    with session() as (place, connect):
        assert connect().ask(FrameType.TASK, b"", timeout_s=0.5) is None
        client = connect()
        hello = client.greet()
        assert (hello.ready_state, hello.session_id, hello.endpoint_id) == (ReadyState.READY, 77, 3)
        for _ in range(3):
            assert client.ask(FrameType.CONTROL, b"") is not None  # refuses another number
        assert client.order.received == 4
        found, sockets = place.announcement, unix_sockets()
        for address in (found.frames, found.health):
            assert address.startswith("ipc://@") and address.removeprefix("ipc://") in sockets
        assert found.tensors.startswith("tcp://127.0.0.1:")
    assert found.frames.removeprefix("ipc://") not in unix_sockets()
    assert address_at("127.0.0.9") == "tcp://127.0.0.9:*"


@pytest.mark.spec("REMOTE-LINK-3", "REMOTE-LINK-4")
def test_a_task_frame_names_its_callable_by_digest(two):
    target = RemoteCallable(far_side.name(far_side.nothing))
    with greeted() as (_, client):
        payload = encode_task_payload(TaskPayloadWire(bytes.fromhex(target.hashid[7:])))
        done = client.run(payload)
        assert done.error_code == 1 and target.hashid[7:] in done.error_message
    before = two.worker.endpoints()[0]
    two.run((far_side.nothing, None, {"worker": 0}))
    after = two.worker.endpoints()[0]
    assert after["tasks"] == before["tasks"] + 1
    assert after["frames_sent"] > before["frames_sent"]


@pytest.mark.spec("REMOTE-LINK-5")
def test_the_configuration_arrives_field_by_field(two):
    buffer = two.buffer(0, np.zeros(4))

    def orch_fn(orch, args, config):
        given = two.args((buffer, INOUT), scalars=[2.5])
        orch.submit_next_level(two.handle(far_side.tell), given, CallConfig(block_dim=7))

    two.handle(far_side.tell)
    two.worker.run(orch_fn)
    assert two.values(buffer)[1:3].tolist() == [7, 2.5]


@pytest.mark.spec("REMOTE-LINK-6")
@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"num_sub_workers": "x"}, TypeError, "num_sub_workers='x'"),
        ({"num_sub_workers": 10**6}, ValueError, "num_sub_workers=1000000"),
        ({"options": {"arena": 1}}, TypeError, "'arena' is no option of a Worker"),
        ({"options": {"arena_size": -1}}, ValueError, "arena_size=-1"),
        ({"options": 5}, TypeError, "options=5"),
        ({"heap_ring_size": "x"}, TypeError, "heap_ring_size='x'"),
        ({"modules": [5]}, TypeError, "modules= has 5"),
        ({"device_ids": ["a"]}, TypeError, "device_id='a'"),
        ({"device_ids": [1, 1]}, ValueError, "names a device twice"),
        ({"platform": 5}, TypeError, "platform=5"),
        ({"runtime": ""}, ValueError, "runtime=''"),
        ({"serialized": "no"}, TypeError, "serialized='no' is neither"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_a_session_is_started(given, error, words):
    with pytest.raises(error, match=words):
        RemoteWorkerSpec(**given)


@pytest.mark.spec("REMOTE-LINK-6")
def test_the_options_of_its_worker_travel_in_the_manifest():
    spec = RemoteWorkerSpec(num_sub_workers=2, modules=["a"], start_timeout_s=9, silence_s=1)
    made = spec.manifest(5, 1, None, None)
    assert (made.session_id, made.endpoint_id, made.modules) == (5, 1, ("a",))
    assert (made.worker["num_sub_workers"], made.start_timeout_s, made.silence_s) == (2, 9, 1)
    for wrong in (0, -1, "x", 10**9):
        with pytest.raises((TypeError, ValueError), match="start_timeout_s"):
            RemoteWorkerSpec(start_timeout_s=wrong)
    with pytest.raises(ValueError, match=r"silence_s=7000.*3600"):  # more than ZeroMQ can be told
        RemoteWorkerSpec(silence_s=7000)
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        prepare(socket, RemoteWorkerSpec(silence_s=3600).silence_s)


@pytest.mark.long
@pytest.mark.spec("REMOTE-LINK-6")
def test_a_session_that_nobody_greets_is_ended():
    with session(start_timeout_s=6.0) as (place, _connect):
        assert place.wait(20) and "not greeted within 6.0 s" in place.why()


@pytest.mark.spec("REMOTE-LINK-8")
def test_versions_that_differ_are_refused_by_name():
    with session() as (place, connect):
        assert connect().greet(comm_profile="simpler_ref/0.0").ready_state == ReadyState.NOT_READY
        assert place.wait(20) and "simpler_ref/0.0" in place.why()
    other = dataclasses.replace(manifest(), version="0.0.1")
    with pytest.raises(RemoteError, match=r"0\.0\.1.*same version"):
        read_manifest(to_line(other))


@pytest.mark.long
@pytest.mark.spec("REMOTE-LINK-8")
def test_a_link_refuses_a_session_that_answers_for_another(monkeypatch):
    real = frames.decode_hello
    monkeypatch.setattr(
        frames, "decode_hello", lambda b: dataclasses.replace(real(b), endpoint_id=8)
    )
    made = Program(1)
    with made.worker as worker, pytest.raises(WorkerStartError, match="another session"):
        worker.init()
        worker.start()


@pytest.mark.spec("REMOTE-LINK-9")
def test_tasks_go_where_their_memory_is_else_where_least_is_to_do(two):
    there = two.buffer(1, np.zeros(4))
    before = [one["tasks"] for one in two.worker.endpoints()]
    two.run(*[(far_side.add_one, two.args((there, INOUT)))] * 3)
    assert [one["tasks"] for one in two.worker.endpoints()] == [before[0], before[1] + 3]
    two.run(*[(far_side.nothing, None)] * 40)
    counts = [one["tasks"] for one in two.worker.endpoints()]
    assert counts[0] > before[0] and counts[1] > before[1] + 3


@pytest.mark.spec("REMOTE-LINK-11")
def test_many_tasks_of_endpoints_are_those_of_a_loop(two):
    worker, add = two.worker, two.handle(far_side.add_scalar)
    x = worker.zeros((6, COUNT), np.float32)
    buffers = [two.buffer(i, np.zeros(COUNT)) for i in (0, 1, 1)]
    there = [reference(one) for one in buffers]
    inline = RemoteTensorRef.host_inline(np.ones(COUNT, np.float32))

    def orch_fn(orch, args, config):
        many = orch.submit_next_level_many
        given = many(add, [x], [INOUT], [np.arange(1, 7)])
        assert given.tolist() == [[row.ctypes.data] for row in x]
        many(add, [there[0]], [INOUT], [np.arange(1, 3)])
        many(add, [there[0]], [INOUT], [20], workers=[0], count=1)
        many(add, [there[1]], [INOUT], [20], workers=1, count=1)
        many(two.handle(far_side.copy), [inline, there[2]], [INPUT, EXISTING], count=1)
        for tensor, workers, words in (
            (there[1], 0, "needs memory of the endpoints"),
            (x, [0, 1, 2, 0, 1, 7], "worker=2 is no endpoint"),
            (inline, -1, "can only read it"),
        ):
            with pytest.raises(ValueError, match=words):
                many(add, [tensor], [INOUT], [100], workers=workers, count=6)

    worker.run(orch_fn)
    assert x[:, 0].tolist() == [1, 2, 3, 4, 5, 6]
    assert [two.values(one)[0] for one in buffers] == [23, 20, 1]


@pytest.mark.spec("REMOTE-LINK-10")
def test_endpoints_join_and_leave_between_runs():
    with program(1) as one:
        joined = one.worker.add_remote_worker(RemoteWorkerSpec())
        assert joined == 1
        late = one.handle(far_side.add_one, workers=[joined])
        buffer = one.buffer(joined, np.zeros(2))

        def orch_fn(orch, args, config):
            orch.submit_next_level(late, one.args((buffer, INOUT)))
            with pytest.raises(RuntimeError, match="during a run"):
                one.worker.add_remote_worker(RemoteWorkerSpec())
            with pytest.raises(RuntimeError, match="during a run"):
                one.worker.remove_remote_worker(joined)

        one.worker.run(orch_fn)
        assert one.values(buffer).tolist() == [1, 1]
        first = one.worker.endpoints()[0]["pid"]
        one.worker.remove_remote_worker(0)
        assert [each["endpoint"] for each in one.worker.endpoints()] == [1]
        assert not os.path.exists(f"/proc/{first}")
        one.worker.run(lambda orch, *_: orch.submit_next_level(late, one.args((buffer, INOUT))))
        assert one.values(buffer).tolist() == [2, 2]
        one.worker.remove_remote_worker(joined)
        with pytest.raises(ValueError, match="have left"):
            one.worker.run(lambda orch, args, config: orch.submit_next_level(late))
        with pytest.raises(ValueError, match="no endpoint"):
            one.worker.remove_remote_worker(joined)
    plain = Worker(level=4, num_sub_workers=1)
    with plain:
        plain.init()
        with pytest.raises(RuntimeError, match="before init"):
            plain.add_remote_worker(RemoteWorkerSpec())


@pytest.mark.long
@pytest.mark.spec("REMOTE-LINK-12")
def test_workers_with_endpoints_are_children_of_another_one():
    tower = Tower()
    with tower.worker as worker:
        arrays = [worker.share(np.zeros(COUNT, dtype)) for dtype in (np.float32, np.float64)]

        def orch_fn(orch, args, config):
            for turn in range(4):
                for k, array in enumerate(arrays):
                    tower.submit(orch, (k + turn) % 2, array, turn % 2, 10 ** (k + 1))
                    tower.submit_here(orch, array)

        for n in (1, 2):
            worker.run(orch_fn)
            assert [array.tolist() for array in arrays] == [[88 * n] * COUNT, [808 * n] * COUNT]


def unix_sockets():
    """Return the names of all Unix sockets; those without a file begin with @."""
    return {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
