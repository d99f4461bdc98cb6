"""FLOW-HANDLE: what `register` returns."""

import pickle

import numpy as np
import pytest

from simpler_ref import CallableHandle, CallConfig, TaskArgs, Worker
from simpler_ref.callable_identity import (
    CallableKind,
    CallableKindName,
    TargetNamespace,
    TargetNamespaceName,
)
from simpler_ref.errors import CallableError
from simpler_ref.native_chip import ChipCallable, CoreCallable
from simpler_ref.workers.kinds import SubWorker


def chip_callable():
    return ChipCallable.build([], "f", b"x", [(0, CoreCallable.build([], b"y"))])


@pytest.mark.spec("FLOW-HANDLE-1")
def test_a_handle_tells_what_it_is_in_texts_that_equal_the_enums():
    w = Worker(3, num_sub_workers=1, device_ids=[0])
    python, chip = w.register(lambda args: None), w.register(chip_callable())
    assert (python.kind, python.target_namespace) == ("PYTHON_SERIALIZED", "LOCAL_PYTHON")
    assert (chip.kind, chip.target_namespace) == ("CHIP_CALLABLE", "LOCAL_CHIP")
    for handle, kind, namespace in (
        (python, CallableKind.PYTHON_SERIALIZED, TargetNamespace.LOCAL_PYTHON),
        (chip, CallableKind.CHIP_CALLABLE, TargetNamespace.LOCAL_CHIP),
    ):
        assert handle.hashid == "sha256:" + handle.digest.hex()
        assert isinstance(handle.kind, str) and f"{handle.kind}" == str(handle.kind) == kind.name
        assert (handle.kind, handle.target_namespace) == (kind, namespace)
        assert kind == handle.kind and handle.kind.name == kind.name
        assert handle.kind is CallableKindName(kind) is CallableKindName(kind.name)
        assert handle.target_namespace is TargetNamespaceName(int(namespace))
        assert {handle.kind: 1}[kind.name] == 1
    assert python.kind != chip.kind and python.kind != CallableKind.CHIP_CALLABLE
    assert python.kind != "" and python.kind != 2
    assert chip.target_namespace != CallableKind.CHIP_CALLABLE
    with pytest.raises(ValueError, match="9"):
        CallableKindName(9)
    assert (CallableKind.PYTHON_IMPORT, TargetNamespace.REMOTE_TASK_DISPATCHER) == (3, 3)


@pytest.fixture
def w(mode):
    """Give a Worker with a sub worker and one of the next level."""
    made = Worker(3, num_sub_workers=1, child_mode=mode)
    made.add_next_level(SubWorker())
    with made:
        yield made


def submits(orch):
    """Return each way to submit tasks of a handle."""
    one = [TaskArgs()]
    return [
        *(orch.submit_sub, lambda handle: orch.submit_sub_group(handle, one)),
        *(orch.submit_next_level, lambda handle: orch.submit_next_level_group(handle, one)),
        lambda handle: orch.submit_sub_many(handle, scalars=[np.arange(2)]),
    ]


@pytest.mark.spec("FLOW-HANDLE-6")
def test_a_changed_handle_is_refused_until_it_is_as_before(w):
    handle, other = w.register(lambda: None), w.register(lambda: 1)

    def orch_fn(orch, *_):
        for write, name, value in (
            *((setattr, "hashid", "sha256:" + "0" * 64), (setattr, "kind", "CHIP_CALLABLE")),
            *((object.__setattr__, "digest", bytes(32)), (object.__setattr__, "kind", 7)),
            *((setattr, "target_namespace", "LOCAL_CHIP"), (setattr, "target_namespace", None)),
        ):
            right = getattr(handle, name)
            write(handle, name, value)
            assert getattr(handle, name) == value
            for use in (*submits(orch), w.unregister, pickle.dumps):
                for kind in (CallableError, RuntimeError):
                    with pytest.raises(kind, match=f"HANDLE_MUTATED.*{name}") as caught:
                        use(handle)
                assert caught.value.code == "CALLABLE_HANDLE_MUTATED"
            orch.submit_sub(other)
            write(handle, name, right)
            orch.submit_sub(handle)

    assert w.run(orch_fn).tasks == 12
    w.unregister(handle)
    for name in ("name", "other", "_token"):
        with pytest.raises(AttributeError, match=name):
            setattr(handle, name, 1)
    for name in ("hashid", "kind", "target_namespace", "digest", "name", "other"):
        with pytest.raises(AttributeError, match=name):
            delattr(handle, name)


@pytest.mark.spec("FLOW-HANDLE-2", "FLOW-HANDLE-5")
def test_every_submit_checks_its_handle(w):
    other = Worker(3, num_sub_workers=1)
    foreign = other.register(lambda: None)
    live, stale = w.register(chip_callable), w.register(lambda: 0)
    w.unregister(stale)
    by_hand = CallableHandle(live.hashid, live.kind, live.target_namespace)

    def orch_fn(orch, *_):
        for use in (*submits(orch), w.unregister):
            for bad in (chip_callable, None, 0, live.hashid, live.digest):
                with pytest.raises(TypeError, match=r"expects a CallableHandle returned by"):
                    use(bad)
            for bad in (foreign, by_hand):
                with pytest.raises(KeyError, match="does not belong to this Worker"):
                    use(bad)
            with pytest.raises(KeyError, match="is not live on this Worker"):
                use(stale)

    assert w.run(orch_fn).tasks == 0


@pytest.mark.spec("FLOW-HANDLE-3")
@pytest.mark.parametrize("when", ["before the start", "after it"])
def test_two_handles_over_one_callable_are_live_one_by_one(w, when):
    count = w.share(np.zeros(1, np.int64))

    def add():
        count[0] += 1

    if when == "after it":
        w.start()
    first, second = w.register(add), w.register(add)
    assert first is not second and first != second
    assert (first.digest, len(w._life.registry._used)) == (second.digest, 1)

    def submit(*handles):
        w.run(lambda orch, *_: [orch.submit_sub(handle) for handle in handles])

    submit(first, second)
    w.unregister(first)
    submit(second)
    with pytest.raises(KeyError, match="is not live"):
        submit(first)
    w.unregister(second)
    with pytest.raises(KeyError, match="is not live"):
        submit(second)
    submit(w.register(add))
    assert count[0] == 4


@pytest.mark.spec("FLOW-HANDLE-4")
@pytest.mark.parametrize("when", ["before the start", "after it", "in a run"])
def test_a_nested_orch_function_can_use_its_handles_however_it_got_there(mode, when):
    below = Worker(3, num_sub_workers=1)
    with Worker(3) as memory:
        count = memory.share(np.zeros(1, np.int64))
        leaf = below.register(lambda: count.__setitem__(0, count[0] + 1))

        def orch3(orch, args, config):
            orch.submit_sub(leaf)

        w = Worker(4, child_mode=mode)
        w.add_worker(below)
        with w:
            if when != "before the start":
                w.start()
            if when != "in a run":
                handle = w.register(orch3)

            def orch4(orch, *_):
                used = w.register(orch3) if when == "in a run" else handle
                orch.submit_next_level(used, TaskArgs(), CallConfig())

            w.run(orch4)
        assert count[0] == 1
