"""FLOW-HANDLE: what `register` returns."""

import numpy as np
import pytest

from simpler_ref import CallableHandle, CallConfig, TaskArgs, Worker
from simpler_ref.callable_identity import CallableKind, TargetNamespace
from simpler_ref.errors import CallableError
from simpler_ref.native_chip import ChipCallable, CoreCallable
from simpler_ref.workers.kinds import SubWorker


def chip_callable():
    return ChipCallable.build([], "f", b"x", [(0, CoreCallable.build([], b"y"))])


@pytest.mark.spec("FLOW-HANDLE-1")
def test_a_handle_tells_what_it_is_and_cannot_be_changed():
    w = Worker(3, num_sub_workers=1, device_ids=[0])
    python, chip = w.register(lambda args: None), w.register(chip_callable())
    assert (python.kind, python.target_namespace) == (2, 2)
    assert (chip.kind, chip.target_namespace) == (1, 1)
    assert python.kind is CallableKind.PYTHON_SERIALIZED
    assert chip.target_namespace is TargetNamespace.LOCAL_CHIP
    for handle in (python, chip):
        assert handle.hashid == "sha256:" + handle.digest.hex()
        for name in ("hashid", "kind", "target_namespace", "digest", "name", "other"):
            with pytest.raises(AttributeError):
                setattr(handle, name, 1)
            with pytest.raises(AttributeError):
                delattr(handle, name)
    assert (CallableKind.PYTHON_IMPORT, TargetNamespace.REMOTE_TASK_DISPATCHER) == (3, 3)


@pytest.mark.spec("FLOW-HANDLE-2", "FLOW-HANDLE-5")
def test_every_submit_checks_its_handle(mode):
    other = Worker(3, num_sub_workers=1)
    foreign = other.register(lambda: None)
    w = Worker(3, num_sub_workers=1, child_mode=mode)
    w.add_next_level(SubWorker())
    with w:

        def function():
            pass

        live, stale = w.register(function), w.register(lambda: 0)
        w.unregister(stale)
        by_hand = CallableHandle(live.hashid, live.kind, live.target_namespace)
        one = [TaskArgs()]

        def orch_fn(orch, *_):
            for submit in (
                lambda h: orch.submit_sub(h),
                lambda h: orch.submit_sub_group(h, one),
                lambda h: orch.submit_next_level(h),
                lambda h: orch.submit_next_level_group(h, one),
            ):
                for bad in (function, None, 0, live.hashid, live.digest):
                    with pytest.raises(TypeError, match=r"expects a CallableHandle returned by"):
                        submit(bad)
                for bad in (foreign, by_hand):
                    with pytest.raises(KeyError, match="does not belong to this Worker"):
                        submit(bad)
                with pytest.raises(KeyError, match="is not live on this Worker"):
                    submit(stale)

        assert w.run(orch_fn).tasks == 0
        with pytest.raises(KeyError, match="does not belong"):
            w.unregister(foreign)
        with pytest.raises(KeyError, match="is not live"):
            w.unregister(stale)
        with pytest.raises(TypeError, match="CallableHandle"):
            w.unregister(function)


@pytest.mark.spec("FLOW-HANDLE-3")
@pytest.mark.parametrize("when", ["before the start", "after it"])
def test_two_handles_over_one_callable_are_live_one_by_one(mode, when):
    with Worker(3, num_sub_workers=1, child_mode=mode) as w:
        count = w.share(np.zeros(1, np.int64))

        def add():
            count[0] += 1

        if when == "after it":
            w.start()
        first, second = w.register(add), w.register(add)
        assert first is not second and first != second
        assert first.digest == second.digest
        assert len(w._registry._used) == 1

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


@pytest.mark.spec("FLOW-HANDLE-4")
def test_a_serialised_handle_whose_parts_are_anothers_is_refused():
    handle = Worker(3, num_sub_workers=1).register(lambda args: None)
    rebuild, (token, hashid, kind, namespace, name) = handle.__reduce__()
    assert rebuild(token, hashid, kind, namespace, name) is handle
    other = "sha256:" + "0" * 64
    for parts in ((other, kind, namespace), (hashid, 3, namespace), (hashid, kind, 3)):
        with pytest.raises(CallableError, match="HASHID_DESCRIPTOR_MISMATCH"):
            rebuild(token, *parts, name)
