"""ORCH-API: what the user holds."""

import threading

import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref.orchestrator import INVALID, Ring, Scope, TensorMap
from tests.support import Gate, inside


@pytest.mark.spec("ORCH-API-1")
def test_run_calls_the_orch_function_once_on_the_calling_thread():
    calls = []

    def orch_fn(orch, args, config):
        calls.append((orch, args, config, threading.get_ident()))

    given_args, given_config = object(), CallConfig(block_dim=7)
    with Worker(3) as w:
        w.run(orch_fn, given_args, given_config)
    [(orch, args, config, thread)] = calls
    assert args is given_args and config is given_config
    assert callable(orch.submit_sub)
    assert thread == threading.get_ident()


@pytest.mark.spec("ORCH-API-1")
def test_run_without_args_and_config_passes_none_and_a_default_config():
    seen = []
    with Worker(3) as w:
        w.run(lambda *call: seen.append(call[1:]))
    [(args, config)] = seen
    assert args is None
    assert config.to_bytes() == CallConfig().to_bytes()


@pytest.mark.spec("ORCH-API-2")
def test_submit_sub_takes_no_config_and_returns_none():
    results = []

    def orch_fn(orch, args, config):
        with pytest.raises(TypeError):
            orch.submit_sub(handle, TaskArgs(), config)
        results.append(orch.submit_sub(handle, TaskArgs()))
        results.append(orch.submit_sub(handle))

    with Worker(3, num_sub_workers=1) as w:
        handle = w.register(lambda: None)
        timing = w.run(orch_fn)
    assert results == [None, None]
    assert timing.tasks == 2


@pytest.mark.spec("ORCH-API-2")
def test_without_args_the_workers_function_receives_an_empty_task_args():
    with Worker(3, num_sub_workers=1) as w:
        seen = w.share([-1, -1, -1])

        def leaf(args):
            seen[:] = args.tensor_count(), args.scalar_count(), isinstance(args, TaskArgs)

        handle = w.register(leaf)
        w.run(lambda orch, args, config: orch.submit_sub(handle))
        assert seen.tolist() == [0, 0, 1]


@pytest.mark.spec("ORCH-API-3")
def test_the_orch_function_can_open_and_end_scopes_but_not_drain():
    def orch_fn(orch, args, config):
        with orch.scope():
            orch.scope_begin()
            orch.scope_end()
        assert not [name for name in dir(orch) if "drain" in name.lower()]
        assert not [name for name in dir(orch.scope()) if "drain" in name.lower()]

    with Worker(3) as w:
        w.run(orch_fn)


@pytest.mark.spec("ORCH-API-4")
def test_ring_tensor_map_and_scope_work_without_a_worker():
    ring = Ring(heap_bytes=4096, timeout_ms=0)
    claim = ring.alloc(100)
    assert ring.slot_state(claim.slot).task_id == claim.slot == 0
    ring.release(claim.slot)

    keys = TensorMap()
    assert keys.lookup(4096) == INVALID
    keys.insert(4096, 3)
    assert keys.lookup(4096) == 3
    assert keys.erase(4096, 3)
    assert keys.lookup(4096) == INVALID

    scope, released = Scope(), []
    scope.scope_begin()
    scope.register_task(5)
    scope.scope_end(released.append)
    assert released == [5]


@pytest.mark.spec("ORCH-API-5")
def test_rings_and_live_tasks_can_be_read_while_a_run_goes_on():
    with Gate() as go, Worker(3, num_sub_workers=1, heap_ring_size=1 << 16) as w:
        handle = w.register(go.wait)

        def orch_fn(orch, args, config):
            ring = orch.ring
            assert ring.ring_count() == 4
            assert orch.live_tasks() == 0
            bases = [ring.heap_base(i) for i in range(4)]
            assert all(ring.heap_size(i) == 1 << 16 for i in range(4))
            assert all(ring.heap_top(i) == ring.heap_tail(i) == 0 for i in range(4))
            assert all(not inside(a, 1, b, 1 << 16) for i, a in enumerate(bases) for b in bases[:i])
            for depth in range(4):
                buffer = orch.alloc(1000 * (depth + 1), "uint8")
                assert inside(buffer.data, buffer.nbytes(), bases[depth], 1 << 16)
                assert ring.heap_top(depth) == 1024 * (depth + 1)
                assert ring.heap_tail(depth) == 0
                orch.scope_begin()
            orch.submit_sub(handle)
            assert orch.live_tasks() == 5
            go.open()

        w.run(orch_fn)
