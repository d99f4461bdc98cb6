"""FLOW-ENV: sizes beside the configuration."""

import logging

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskError, Worker
from simpler_ref import TensorArgType as T
from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipWorker,
    CoreCallable,
    compile_kernel,
)
from simpler_ref.orch import words
from simpler_ref.task_interface import ArgDirection as D
from simpler_ref.task_interface import RuntimeEnv
from tests.chip_kernels import host_args
from tests.support import make_args

NOTES_SIZES = """
#include "simpler_kernel.h"

int32_t simpler_kernel(const SimplerCoreArgs *args)
{
    const SimplerRuntimeEnv *env = (const SimplerRuntimeEnv *)args->runtime_env;
    uint64_t *out = (uint64_t *)args->tensors[0].data;
    for (int32_t i = 0; i < SIMPLER_MAX_RINGS && args->block_idx == 0; i++) {
        out[i] = env->ring_task_window[i];
        out[4 + i] = env->ring_heap[i];
        out[8 + i] = env->ring_dep_pool[i];
    }
    return 0;
}
"""
REFUSES_SIZES = """
#include "simpler_kernel.h"

int32_t refuses(SimplerDevice *device, const SimplerChipStorageTaskArgs *args)
{
    return device->runtime_env->ring_heap[3] == 7000 ? device->fail(device, "seven") : 0;
}
"""
HEAPS = (1024, 1025, 2**63 - 1, 0)
ENV = RuntimeEnv(ring_task_window=16, ring_heap=HEAPS, ring_dep_pool=2**31 - 1)
SEEN = [16] * 4 + [*HEAPS] + [2**31 - 1] * 4


def noting():
    core = CoreCallable.build([D.INOUT], compile_kernel(NOTES_SIZES), name="notes")
    return ChipCallable.from_kernel(core)


def refusing():
    core = CoreCallable.build([D.INOUT], compile_kernel(NOTES_SIZES))
    return ChipCallable.build([], "refuses", compile_kernel(REFUSES_SIZES), [(0, core)])


@pytest.mark.spec("FLOW-ENV-1")
def test_a_configuration_has_sizes_outside_its_1052_bytes():
    plain, config = CallConfig(), CallConfig(runtime_env=ENV)
    assert len(config.to_bytes()) == 1052 and config.to_bytes() == plain.to_bytes()
    assert config.runtime_env is ENV and RuntimeEnv.from_bytes(ENV.to_bytes()) == ENV
    assert f"runtime_env=RuntimeEnv(ring_task_window=16, ring_heap={HEAPS}" in repr(config)
    assert not plain.runtime_env and "runtime_env" not in repr(plain)
    plain.runtime_env.ring_heap = 5000
    assert plain.runtime_env == RuntimeEnv(ring_heap=[5000] * 4) != RuntimeEnv()


@pytest.mark.spec("FLOW-CONFIG-5")
def test_sizes_that_are_none_are_refused_by_name_also_by_run_and_submit():
    none = {"ring_task_window": (48, 2**31), "ring_heap": (1023,), "ring_dep_pool": (2**31,)}
    for name, values in none.items():
        wrong = -1, 3, 2**63, 1.5, None, "4", (4096,) * 2, (4096, 0, 0, -4), [0] * 5
        for value in (*wrong, *values):
            config = CallConfig(runtime_env=RuntimeEnv(**{name: value}))
            for refuse in (config.validate, config.runtime_env.validate):
                with pytest.raises(ValueError, match=f"RuntimeEnv.{name} is "):
                    refuse()
    with pytest.raises(TypeError, match="must be a RuntimeEnv, got int"):
        CallConfig(runtime_env=5)
    bad = CallConfig(runtime_env=RuntimeEnv(ring_heap=-1))
    with Worker(3, device_ids=[0], child_mode="thread") as w:
        handle = w.register(noting())
        with pytest.raises(ValueError, match="ring_heap is -1"):
            w.run(lambda *_: None, None, bad)

        def orch_fn(orch, *_):
            with pytest.raises(ValueError, match="ring_heap is -1"):
                orch.submit_next_level(handle, make_args(), bad)

        assert w.run(orch_fn).tasks == 0


@pytest.mark.spec("FLOW-ENV-3", "FLOW-ENV-1")
@pytest.mark.parametrize("mode, depth", [("process", 3), ("thread", 1)])
def test_each_task_of_a_chip_reads_the_sizes_it_was_submitted_with(mode, depth):
    with Worker(3, device_ids=[0, 1], child_mode=mode, mailbox_depth=depth) as w:
        out, handle = w.zeros((9, 12), np.uint64), w.register(noting())
        envs = [ENV, None, RuntimeEnv(ring_heap=9999)] * 3

        def orch_fn(orch, args, config):
            for row, env in zip(out, envs, strict=True):
                knobs = None if env is None else CallConfig(runtime_env=env)
                orch.submit_next_level(handle, make_args((row, T.INOUT)), knobs)

        for graph in (lambda: w.run(orch_fn), w.record(orch_fn).run):
            out[...] = 5
            graph()
            wanted = [SEEN, [0] * 12, [0] * 4 + [9999] * 4 + [0] * 4] * 3
            assert out.tolist() == wanted


@pytest.mark.spec("FLOW-ENV-1")
@pytest.mark.parametrize("options", [{}, {"child_mode": "process"}])
def test_a_level_2_worker_and_a_chip_alone_pass_sizes_and_their_errors_name_them(options):
    seven = CallConfig(runtime_env=RuntimeEnv(ring_heap=7000))
    with ChipWorker() as chip:
        out = np.full(12, 5, np.uint64)
        handle, fails = chip.prepare_callable(noting()), chip.prepare_callable(refusing())
        chip.run(handle, host_args(out), CallConfig(runtime_env=ENV))
        assert out.tolist() == SEEN
        chip.run(handle, host_args(out))
        assert not out.any(), "for one run"
        with pytest.raises(ChipError, match=r"with RuntimeEnv\(.*ring_heap=7000"):
            chip.run(fails, host_args(), seven)
        with pytest.raises(ValueError, match="has 96 bytes, these are 5"):
            chip.set_runtime_env(bytes(5))
    with Worker(2, **options) as w:
        out = w.zeros(12, np.uint64)
        w.run(w.register(noting()), make_args((out, T.INOUT)), CallConfig(runtime_env=ENV))
        assert out.tolist() == SEEN
        handle = w.register(refusing())
        w.run(handle, make_args())
        with pytest.raises(TaskError, match=r"with RuntimeEnv\(.*ring_heap=7000.*: .*seven"):
            w.run(handle, make_args(), seven)


@pytest.mark.spec("FLOW-ENV-1")
def test_what_the_simulated_chip_does_not_do_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr(words, "_told", False)
    with caplog.at_level(logging.WARNING, "simpler_ref"), Worker(2) as w:
        handle, out = w.register(noting()), np.zeros(12, np.uint64)
        w.run(handle, make_args((out, T.INOUT)), CallConfig(runtime_env=RuntimeEnv()))
        assert not caplog.records
        for _ in range(2):
            w.run(handle, make_args((out, T.INOUT)), CallConfig(runtime_env=ENV))
    [record] = caplog.records
    assert "ring_task_window=16" in record.getMessage() and "no rings" in record.getMessage()
