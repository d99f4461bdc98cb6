"""FLOW-CONFIG: execution knobs."""

import copy
import os
import pickle
import struct

import numpy as np
import pytest

from simpler_ref import CallConfig, TaskArgs, Worker
from simpler_ref.jit import layout as L
from tests.conformance.worker_manager.own import Calls
from tests.spec_rules import tables

DIAGNOSTICS = ("enable_l2_swimlane", "enable_dump_tensor", "enable_pmu", "enable_dep_gen")
DIAGNOSTICS += ("enable_scope_stats",)
FIELDS = ("block_dim", "aicpu_thread_num", *DIAGNOSTICS)


@pytest.mark.spec("FLOW-CONFIG-1")
def test_a_configuration_has_the_fields_and_defaults_of_the_table():
    rows = tables("FLOW-CONFIG")[0]
    assert [(int(at), name) for at, name, *_ in rows] == [
        *((4 * i, name) for i, name in enumerate(FIELDS)),
        (28, "output_prefix"),
    ]
    defaults = {name: default.split(",")[0].replace("empty", "") for _, name, _, default, _ in rows}
    plain = CallConfig()
    assert {name: str(getattr(plain, name) or 0) for name in FIELDS} | {
        "output_prefix": plain.output_prefix
    } == defaults


NO_VALUES = {
    "block_dim": [-1, 1 << 31, "3"],
    "aicpu_thread_num": [1.5],
    "enable_l2_swimlane": [5],
    "output_prefix": ["x" * 1024, "ü" * 512, "a\0b", "\0", "\ud800", b"bytes", None],
}


@pytest.mark.spec("FLOW-CONFIG-5")
def test_values_fields_and_bytes_that_no_configuration_has_are_refused():
    for field, value in ((name, one) for name, wrong in NO_VALUES.items() for one in wrong):
        config = CallConfig(**{"output_prefix": "x", field: value})
        for check in (config.validate, config.to_bytes):
            with pytest.raises(ValueError, match=rf"CallConfig\.{field} is"):
                check()
    with pytest.raises(TypeError, match="no field 'blockdim'"):
        CallConfig(blockdim=3)
    with pytest.raises(AttributeError):
        CallConfig().other = 1

    for raw, words in NO_CONFIG.values():
        with pytest.raises(ValueError, match=words) as error:
            CallConfig.from_bytes(raw)
        assert type(error.value) is ValueError
    for wrong in (None, 1052, "x" * 1052):
        with pytest.raises(TypeError, match=f"read from bytes, got {type(wrong).__name__}"):
            CallConfig.from_bytes(wrong)
    config = CallConfig(output_prefix=os.fsdecode(b"/tmp/\xff"))
    assert CallConfig.from_bytes(config.to_bytes()).output_prefix == config.output_prefix
    assert config.to_bytes()[28:].rstrip(b"\0") == b"/tmp/\xff", "a path that is no UTF-8"


RAW = struct.pack("<7i1024s", 1, 3, 0, 0, 0, 0, 0, b"out")
NO_CONFIG = {
    "nothing": (b"", "1052 bytes"),
    "a byte less": (RAW[:-1], "1052 bytes"),
    "a byte more": (RAW + b"\0", "1052 bytes"),
    "below 0": (struct.pack("<i", -1) + RAW[4:], "block_dim is -1"),
    "level 5": (RAW[:8] + b"\5" + RAW[9:], "enable_l2_swimlane is 5"),
    "bytes after the NUL": (RAW[:-1] + b"x", "first NUL"),
    "no NUL": (RAW[:28] + b"x" * 1024, "1023"),
    "a diagnostic that goes nowhere": (RAW[:16] + b"\1" + bytes(1035), "output_prefix"),
}


@pytest.mark.spec("FLOW-CONFIG-2")
def test_every_level_receives_equal_values(mode):
    lowest, middle, top = Worker(3), Worker(4, child_mode=mode), Worker(5, child_mode=mode)
    middle.add_worker(lowest)
    top.add_worker(middle)
    with Worker(3) as memory:
        seen = memory.share(np.zeros((3, 2), np.int64))
        lowest.add_next_level(Calls())

        @lowest.register
        def leaf(_, args, config):
            seen[0] = config.block_dim, config.aicpu_thread_num

        def orch3(orch, args, config):
            seen[1] = config.block_dim, config.aicpu_thread_num
            orch.submit_next_level(leaf, TaskArgs(), config)

        def orch4(orch, args, config):
            seen[2] = config.block_dim, config.aicpu_thread_num
            orch.submit_next_level(orch3_handle, TaskArgs(), config)

        def orch5(orch, args, config):
            orch.submit_next_level(orch4_handle, TaskArgs(), config)
            config.block_dim = 1

        orch3_handle, orch4_handle = middle.register(orch3), top.register(orch4)
        with top:
            top.run(orch5, None, CallConfig(block_dim=24, aicpu_thread_num=2))
        assert seen.tolist() == [[24, 2]] * 3


@pytest.mark.spec("FLOW-CONFIG-3", "FLOW-CONFIG-5")
def test_a_diagnostic_without_a_prefix_and_what_is_no_configuration_are_refused():
    w = Worker(3, num_sub_workers=1)
    w.add_next_level(Calls())
    with w:
        handle, mem = w.register(lambda: None), w._session.engine.mem

        def refused(config, kind, words):
            def orch_fn(orch, *_):
                for submit in (
                    lambda: orch.submit_next_level(handle, TaskArgs(), config),
                    lambda: orch.submit_next_level_group(handle, [TaskArgs()], config),
                ):
                    before = mem[L.RING_BLOCK : L.SCHED].copy()
                    with pytest.raises(kind, match=words):
                        submit()
                    assert (mem[L.RING_BLOCK : L.SCHED] == before).all()

            assert w.run(orch_fn).tasks == 0
            for take in (w.run, w.record, w.graph):
                with pytest.raises(kind, match=words):
                    take(lambda *_: pytest.fail("it ran"), None, config)

        for field in DIAGNOSTICS:
            config = CallConfig(**{field: 2})
            with pytest.raises(ValueError, match="output_prefix"):
                config.validate()
            refused(config, ValueError, rf"{field}.*output_prefix")
            config.output_prefix = "x"
            config.validate()
        for wrong in (3, 0, {"block_dim": 1}):
            refused(wrong, TypeError, "CallConfig")


@pytest.mark.spec("FLOW-CONFIG-5", "FLOW-CONFIG-7")
def test_configurations_are_equal_if_all_their_fields_are_and_true_is_the_most_detailed_level():
    for field in (*FIELDS, "output_prefix", "runtime_env"):
        one, other = CallConfig(output_prefix="p"), CallConfig(output_prefix="p")
        assert one.runtime_env == other.runtime_env and one == other
        if field == "runtime_env":
            other.runtime_env.ring_heap = 1 << 20
        else:
            setattr(other, field, "q" if field == "output_prefix" else 1 + getattr(one, field))
        assert one != other
    assert one != 1
    config = CallConfig(enable_l2_swimlane=True)
    for one in (config, copy.copy(config), pickle.loads(pickle.dumps(config))):
        assert repr(one.enable_l2_swimlane) == "4" and one == config
    config.enable_l2_swimlane = False
    assert config.enable_l2_swimlane == 0
    config.enable_l2_swimlane = True
    assert repr(config.enable_l2_swimlane) == "4"
