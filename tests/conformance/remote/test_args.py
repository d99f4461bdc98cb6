"""REMOTE-ARGS: remote arguments."""

import numpy as np
import pytest

from simpler_ref import (
    ContinuousTensor,
    DataType,
    RemoteTaskArgs,
    RemoteTensorRef,
    RemoteWorkerSpec,
    TaskArgs,
    TensorArgType,
    Worker,
)
from tests import far_side
from tests.endpoints import EXISTING, INOUT, INPUT, reference
from tests.support import make_args


@pytest.mark.spec("REMOTE-ARGS-1", "REMOTE-ARGS-3")
def test_both_kinds_of_arguments_take_references_to_what_is_all_in_a_buffer(two):
    buffer = two.buffer(0, np.arange(4))
    for kind in (RemoteTaskArgs, TaskArgs):
        args = kind()
        args.add_tensor(RemoteTensorRef(buffer, 4, (2, 1), np.float32), INOUT)
        args.add_scalar(0.5)
        assert (args.tensor_count(), args.tag(0), args.tensor(0).shapes) == (1, INOUT, (2, 1))
        two.run((far_side.add_scalar, args))
    assert two.values(buffer).tolist() == [0, 2, 3, 3]
    with pytest.raises(TypeError, match="RemoteTensorRef"):
        RemoteTaskArgs().add_tensor(ContinuousTensor.make(4096, (1,), DataType.UINT8))
    with pytest.raises(ValueError, match="remote_copy_from"):
        reference(buffer).numpy()
    with pytest.raises(TypeError, match="handle"):
        RemoteTensorRef(np.zeros(4))
    for how, kind, words in (
        ({"offset": 4, "shape": (4,), "dtype": np.float32}, ValueError, "not all in"),
        ({"shape": (2,), "dtype": np.float64}, TypeError, "UINT8"),
        ({"offset": -1}, ValueError, "offset=-1"),
        ({"offset": "x"}, TypeError, "offset='x'"),
        ({"offset": 17}, ValueError, "offset=17"),
        ({"shape": (-1,)}, ValueError, "below 0"),
        ({"shape": (1.5,)}, TypeError, r"shape \(1.5,\) must be a sequence of integers"),
        ({"shape": "ab"}, TypeError, "sequence of integers"),
        ({"shape": b"ab"}, TypeError, "sequence of integers"),
    ):
        with pytest.raises(kind, match=words):
            RemoteTensorRef(buffer, **how)


@pytest.mark.spec("REMOTE-ARGS-2")
def test_workers_of_this_machine_are_not_given_references():
    worker = Worker(level=4, num_sub_workers=1)
    worker.add_remote_worker(RemoteWorkerSpec())
    task = worker.register(lambda args: None)
    with worker:
        worker.init()
        buffer = worker.remote_malloc(worker=0, nbytes=8)

        def orch_fn(orch, args, config):
            given = make_args((reference(buffer), INPUT))
            with pytest.raises(ValueError, match="remote_copy_from"):
                orch.submit_sub(task, given)

        worker.run(orch_fn)


@pytest.mark.spec("REMOTE-ARGS-4")
def test_what_an_endpoint_cannot_reach_is_refused_and_nothing_is_submitted(two):
    buffers = [two.buffer(number, np.zeros(4)) for number in two.ids]
    shared = two.worker.share(np.zeros(4, np.float32))
    private = np.zeros(4, np.float32)
    by_hand = ContinuousTensor(private.ctypes.data, (4,), DataType.FLOAT32)
    cases = [
        ([(by_hand, INPUT)], {}, "cannot see"),
        ([(shared, TensorArgType.NO_DEP)], {}, "NO_DEP"),
        ([(shared[:3], INPUT), (shared[1:], INOUT)], {}, "share some bytes"),
        ([(reference(one), INPUT) for one in buffers], {}, "memory of the endpoints"),
        ([(reference(buffers[0]), INPUT)], {"worker": 1}, "memory of the endpoints"),
    ]

    def orch_fn(orch, args, config):
        for tensors, how, words in cases:
            with pytest.raises(ValueError, match=words):
                orch.submit_next_level(two.handle(far_side.nothing), make_args(*tensors), **how)
        for wrong in (5, TaskArgs, "x", []):
            with pytest.raises(TypeError, match="args must be a TaskArgs or None"):
                orch.submit_next_level(two.handle(far_side.nothing), wrong)
        assert orch.live_tasks() == 0

    two.worker.run(orch_fn)


@pytest.mark.spec("REMOTE-ARGS-5")
def test_few_bytes_travel_with_the_task(two):
    target, values = two.buffer(0, np.zeros(4)), np.arange(4, dtype=np.float32)
    inline = RemoteTensorRef.host_inline(values)
    values[:] = 9  # it was copied
    two.run((far_side.copy, two.args((inline, INPUT), (target, EXISTING))))
    assert two.values(target).tolist() == [0, 1, 2, 3]
    raw = RemoteTensorRef.host_inline(np.ones(4, np.float32).tobytes(), (4,), np.float32)
    two.run((far_side.copy, two.args((raw, INPUT), (target, EXISTING))))
    assert two.values(target).tolist() == [1] * 4
    with pytest.raises(ValueError, match="can only read"):
        two.run((far_side.add_one, two.args((inline, INOUT))))
    with pytest.raises(ValueError, match="remote_malloc"):
        RemoteTensorRef.host_inline(bytes((1 << 20) + 1))
    half = RemoteTensorRef.host_inline(bytes(700_000))
    with pytest.raises(ValueError, match="remote_malloc"):
        two.run((far_side.nothing, two.args((half, INPUT), (half, INPUT))))
    for wrong in (5, None, "x", [1, 2]):
        with pytest.raises(TypeError, match="needs bytes or an array"):
            RemoteTensorRef.host_inline(wrong)
    with pytest.raises(ValueError, match="no FLOAT32 tensor"):
        RemoteTensorRef.host_inline(b"12345", (1,), np.float32)
