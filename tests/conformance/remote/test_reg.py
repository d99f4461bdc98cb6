"""REMOTE-REG: remote callables."""

import functools
import hashlib
from dataclasses import astuple

import numpy as np
import pytest

from simpler_ref import (
    CallableError,
    ContinuousTensor,
    DataType,
    RemoteCallable,
    RemoteWorkerSpec,
    get_inner_handle,
)
from simpler_ref.callable_identity import (
    CallableKind,
    build_chip_callable_descriptor,
    build_python_import_descriptor,
    compute_callable_hashid,
)
from simpler_ref.native_chip import ChipCallable
from simpler_ref.remote import callables, frames, tasks
from simpler_ref.remote.tasks import TaskPayloadWire, encode_task_payload
from tests import chip_kernels, domain_kernels, far_side
from tests.endpoints import EXISTING, INOUT, INPUT, Program, program
from tests.raw_session import greeted
from tests.support import make_args

NAME = far_side.name(far_side.nothing)
DISPATCHER = callables.RemoteRegistryTarget.REMOTE_TASK_DISPATCHER


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


@pytest.mark.spec("REMOTE-REG-3", "REMOTE-REG-6", "REMOTE-REG-11")
def test_serialised_callables_need_the_endpoints_agreement_and_have_no_memory_of_this_machine():
    made = Program(1)
    made.worker.add_remote_worker(RemoteWorkerSpec(serialized=True))
    made.handle(far_side.nothing)  # registered before the start, it is sent, too
    with made.worker as worker:
        shared = worker.share(np.arange(4, dtype=np.float32))
        made.run((far_side.nothing, None, {"worker": 0}))
        with pytest.raises(CallableError, match="no serialised callables"):
            worker.register(closure(2), workers=[0, 1])
        handle = worker.register(closure(2), workers=[1])
        buffer = made.buffer(1, np.zeros(2))
        worker.run(lambda orch, *_: orch.submit_next_level(handle, made.args((buffer, INOUT))))
        assert made.values(buffer).tolist() == [2, 2]
        for one in (
            closure(shared),
            closure(shared[::2]),
            closure(ContinuousTensor(shared.ctypes.data, (4,), DataType.FLOAT32)),
            functools.partial(closure(2), None, [shared]),
        ):
            with pytest.raises(TypeError, match=r"cannot be sent to an endpoint .* as an argument"):
                worker.register(one, workers=[1])
        worker.register(closure(np.arange(4)), workers=[1])  # a copy


@pytest.mark.spec("REMOTE-REG-4")
def test_a_callable_is_for_the_endpoints_that_were_named(two):
    only = two.worker.register(RemoteCallable(far_side.name(far_side.bump)), workers=[1])

    def orch_fn(orch, args, config):
        with pytest.raises(ValueError, match=r"endpoints \[1\], not for 0"):
            orch.submit_next_level(only, worker=0)

    two.worker.run(orch_fn)
    for wrong in ([7], [-1], ["a"]):
        with pytest.raises(ValueError, match="no endpoint"):
            two.worker.register(RemoteCallable(NAME), workers=wrong)
    for wrong in (5, "01"):
        with pytest.raises(TypeError, match=f"workers={wrong!r} must be a list of endpoints"):
            two.worker.register(RemoteCallable("math:sqrt"), workers=wrong)
    with pytest.raises(ValueError, match="names no endpoint"):
        two.worker.register(RemoteCallable(NAME), workers=[])
    two.handle(far_side.nothing)
    with pytest.raises(CallableError, match="registered already"):
        two.worker.register(RemoteCallable(NAME), workers=[1])
    two.worker.unregister(only)


@pytest.mark.long
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


@pytest.mark.spec("REMOTE-REG-5", "REMOTE-REG-7")
def test_a_callable_is_usable_once_it_is_committed():
    target = RemoteCallable(NAME)
    kind, digest = CallableKind.PYTHON_IMPORT, bytes.fromhex(target.hashid[7:])
    encode = callables.encode_register_callable_command
    command = encode(DISPATCHER, kind, digest, 1, target.descriptor)
    by_digest = callables.encode_digest_callable_command(DISPATCHER, kind, digest)
    name = frames.ControlName
    task = encode_task_payload(TaskPayloadWire(digest))
    with greeted() as (_, client):
        ask = client.control
        wrong = encode(DISPATCHER, kind, bytes(32), 1, target.descriptor)
        assert "HASHID_DESCRIPTOR_MISMATCH" in ask(name.PREPARE_REGISTER_CALLABLE, wrong)
        assert "was not prepared" in ask(name.COMMIT_REGISTER_CALLABLE, by_digest)
        assert ask(name.PREPARE_REGISTER_CALLABLE, command) == b""
        assert "is not registered" in client.run(task).error_message
        assert ask(name.ABORT_REGISTER_CALLABLE, by_digest) == b""
        assert "was not prepared" in ask(name.COMMIT_REGISTER_CALLABLE, by_digest)
        assert ask(name.PREPARE_REGISTER_CALLABLE, command) == b""
        assert ask(name.COMMIT_REGISTER_CALLABLE, by_digest) == b""
        assert client.run(task).error_message == ""
        assert ask(name.UNREGISTER_CALLABLE, by_digest) == b""
        assert "is not registered" in client.run(task).error_message


@pytest.mark.spec("REMOTE-REG-8")
def test_inner_callables_are_for_the_workers_of_an_endpoint(two):
    inner = two.handle(far_side.bump, inner=True)
    buffer = two.buffer(1, np.ones(3))
    two.run((far_side.bump_there, two.args((buffer, INOUT))))
    assert two.values(buffer).tolist() == [2] * 3

    def orch_fn(orch, args, config):
        with pytest.raises(TypeError, match="get_inner_handle"):
            orch.submit_next_level(inner)

    two.worker.run(orch_fn)
    with pytest.raises(RuntimeError, match="endpoint"):
        get_inner_handle(RemoteCallable(NAME))
    with pytest.raises(ValueError, match="workers="):
        two.worker.register(closure(1), inner=True)


@pytest.fixture(scope="module")
def chips():
    """Endpoints with two chips each."""
    with program(device_ids=[0, 1], serialized=True) as made:
        yield made


@pytest.mark.spec("REMOTE-REG-3", "REMOTE-REG-8")
def test_the_chips_of_endpoints_run_chip_callables(chips):
    worker = chips.worker
    target = ChipCallable.from_kernel(chip_kernels.add_core())
    handle = worker.register(target, workers=[0, 1])
    function = worker.register(far_side.on_a_chip(handle), workers=[0, 1])
    x, y = (worker.share(one) for one in chip_kernels.numbers(100))
    sums = worker.zeros((2, 100), np.float32)

    def orch_fn(orch, args, config):
        for i in range(2):
            task = make_args((x, INPUT), (y, INPUT), (sums[i], EXISTING))
            orch.submit_next_level(function, task, worker=i)

    worker.run(orch_fn)
    assert np.array_equal(sums, [x + y, x + y])
    assert all(one["buffers"] == 0 for one in worker.transfers())
    with pytest.raises(CallableError):
        worker.register(target, workers=[0])  # for others than the first time
    worker.unregister(handle)
    worker.unregister(function)


@pytest.mark.long
@pytest.mark.spec("REMOTE-REG-10")
def test_functions_at_endpoints_allocate_domains_of_the_chips_there(chips):
    worker = chips.worker
    handle = worker.register(domain_kernels.in_c(), workers=[0, 1])
    function = worker.register(far_side.in_a_domain(handle), workers=[0, 1])
    sums = worker.zeros((2, 2, 16), np.int64)

    def orch_fn(orch, args, config):
        for i in range(2):
            orch.submit_next_level(function, make_args((sums[i], INOUT)), worker=i)

    worker.run(orch_fn)
    assert (sums[:, :, :4] == 10).all()  # 0 of the first and 10 of the second


@pytest.mark.spec("REMOTE-REG-7", "REMOTE-REG-9", "REMOTE-REG-10")
def test_a_staged_blob_is_a_live_buffer_with_the_right_bytes():
    target = ChipCallable.from_kernel(chip_kernels.add_core())
    blob = target.to_bytes()
    name = frames.ControlName
    registry = callables.RemoteRegistryTarget.INNER_L3_WORKER
    staged = callables.ChipCallableBlobLocation.STAGED_BLOB
    descriptor = build_chip_callable_descriptor(target=target, platform="", runtime="")
    digest, kind = hashlib.sha256(descriptor).digest(), CallableKind.CHIP_CALLABLE
    by_digest = callables.encode_digest_callable_command(registry, kind, digest)
    with greeted(worker={"device_ids": [0]}) as (_, client):
        ask = client.control

        def prepare(token, size=0):
            sha256 = hashlib.sha256(blob).digest()
            chip = callables.RemoteChipCallablePayload(
                descriptor, staged, size or len(blob), sha256, staged_blob_token=token
            )
            raw = callables.encode_remote_chip_callable_payload(chip)
            command = callables.encode_register_callable_command(registry, kind, digest, 1, raw)
            return ask(name.PREPARE_REGISTER_CALLABLE, command)

        alloc = tasks.ALLOC.encode(len(blob))
        token = ask(name.ALLOC_REMOTE_BUFFER, alloc)
        assert "another size or SHA-256" in prepare(token)
        owner = tasks.IDENTITY.decode(token)
        copy = tasks.CopyRequest(*astuple(owner), 0, len(blob), blob)
        ask(name.COPY_TO_REMOTE, tasks.COPY.encode(copy))
        assert "remote_wire" in prepare(token[:-1])
        assert "another size or SHA-256" in prepare(token, size=len(blob) - 1)
        assert prepare(token) == b""
        assert "is not registered" in ask(name.PREPARE_CALLABLE, by_digest)
        assert ask(name.COMMIT_REGISTER_CALLABLE, by_digest) == b""
        assert ask(name.PREPARE_CALLABLE, by_digest) == b""
        assert ask(name.UNREGISTER_CALLABLE, by_digest) == b""
        ask(name.FREE_REMOTE_BUFFER, token)
        assert "is not a live buffer" in prepare(token)
        for which in (name.COMM_INIT, name.ALLOC_DOMAIN, name.RELEASE_DOMAIN):
            assert f"does not carry out {which.name}" in ask(which, b"")
