"""Unit tests as they are written for the original: the names, types and words that it promises.

``python -m simpler_ref.compat -m pytest tests/ported/units.py`` runs them.
"""

import ctypes
import hashlib
import struct

import pytest
from _task_interface import (
    MAILBOX_ERROR_MSG_SIZE,
    MAILBOX_OFF_ERROR_MSG,
    MAILBOX_SIZE,
    ArgDirection,
    CallConfig,
    ChipCallable,
    ChipStorageTaskArgs,
    ContinuousTensor,
    CoreCallable,
    DataType,
    TaskArgs,
    TensorArgType,
    arg_direction_name,
    get_dtype_name,
    get_element_size,
    read_args_from_blob,
)
from simpler.callable_identity import (
    CALLABLE_HASH_DIGEST_BYTES,
    build_chip_callable_descriptor,
    build_chip_signature_schema,
    build_python_import_descriptor,
    compute_callable_hashid,
    hashid_to_digest,
    parse_python_callable_payload,
    parse_python_import_target,
    validate_hashid,
)
from simpler.task_interface import RuntimeEnv, RunTiming, scalar_to_uint64
from simpler.worker import Worker


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def text(value):
    return u32(len(value)) + value


def chip_callable():
    core = CoreCallable.build(signature=[ArgDirection.IN], binary=b"core")
    return ChipCallable.build(
        signature=[ArgDirection.IN, ArgDirection.INOUT],
        func_name="entry",
        binary=b"binary",
        children=[(5, core), (2, core)],
    )


class TestTensor:
    def test_default(self):
        t = ContinuousTensor()
        assert (t.data, t.ndims, t.child_memory) == (0, 0, False)

    def test_fields_can_be_set(self):
        t = ContinuousTensor()
        t.data, t.shapes, t.dtype, t.child_memory = 0xDEAD, [2, 3], DataType.INT16, True
        assert (t.data, tuple(t.shapes), t.ndims) == (0xDEAD, (2, 3), 2)
        assert (t.dtype, t.nbytes()) == (DataType.INT16, 12)
        assert "child_memory=True" in repr(t)
        assert "child_memory=True" not in repr(ContinuousTensor.make(1, (1,), DataType.INT8))

    def test_a_tensor_that_was_added_is_a_copy(self):
        t, args = ContinuousTensor.make(16, (2,), DataType.INT8), TaskArgs()
        args.add_tensor(t)
        t.data = 32
        assert args.tensor(0).data == 16


class TestArgs:
    def test_tags(self):
        args = TaskArgs()
        args.add_tensor(ContinuousTensor.make(0x10, (2,), DataType.INT8))
        assert args.tag(0) == TensorArgType.INPUT
        args.set_tag(0, TensorArgType.OUTPUT_EXISTING)
        assert args.tag(0) == TensorArgType.OUTPUT_EXISTING

    def test_tensors_come_first(self):
        for args in (TaskArgs(), ChipStorageTaskArgs()):
            args.add_scalar(1)
            with pytest.raises(RuntimeError, match="cannot add tensor after scalar"):
                args.add_tensor(ContinuousTensor())
            args.clear()
            args.add_tensor(ContinuousTensor())
            assert len(args) == 1

    def test_scalars_are_bits(self):
        assert scalar_to_uint64(ctypes.c_float(1.0)) == 0x3F800000
        assert scalar_to_uint64(ctypes.c_int64(-1)) == (1 << 64) - 1

    def test_blob(self):
        tensor = struct.pack("<Q6I2B6x", 0x1234, 2, 3, 0, 0, 0, 2, 2, 1)
        blob = struct.pack("<ii", 1, 1) + tensor + struct.pack("<Q", 9)
        memory = ctypes.create_string_buffer(blob, 64)
        args = read_args_from_blob(ctypes.addressof(memory), 64)
        assert (args.tensor(0).data, args.tensor(0).shapes, args.scalar(0)) == (0x1234, (2, 3), 9)
        assert args.tensor(0).child_memory
        with pytest.raises((ValueError, RuntimeError), match="48"):
            read_args_from_blob(ctypes.addressof(memory), 48)

    def test_constants(self):
        assert MAILBOX_OFF_ERROR_MSG + MAILBOX_ERROR_MSG_SIZE == MAILBOX_SIZE == 16384
        assert ChipStorageTaskArgs.sizeof() == 6152


class TestEnums:
    def test_types(self):
        assert [get_element_size(d) for d in DataType] == [4, 2, 4, 2, 1, 1, 2, 8, 8, 2, 4, 1]
        assert get_dtype_name(DataType.BFLOAT16) == "BFLOAT16"
        assert [arg_direction_name(d) for d in ArgDirection] == ["SCALAR", "IN", "OUT", "INOUT"]


class TestConfig:
    def test_true_is_the_highest_level(self):
        config = CallConfig()
        config.enable_l2_swimlane = True
        assert config.enable_l2_swimlane == 4
        with pytest.raises(ValueError, match="output_prefix"):
            config.validate()

    def test_runtime_env(self):
        config = CallConfig()
        config.runtime_env.ring_heap = 1 << 20
        assert isinstance(config.runtime_env, RuntimeEnv)
        assert config.runtime_env.ring_heap == 1 << 20

    def test_timing(self):
        host, device = RunTiming()
        assert (host, device, RunTiming().host_wall_us, RunTiming().device_wall_us) == (0,) * 4


class TestCallables:
    def test_texts_and_sizes(self):
        made = chip_callable()
        assert "sig_count=2" in repr(made) and "child_count=2" in repr(made)
        assert "sig_count=1" in repr(made.child(0))
        assert (made.binary_size, made.child(1).binary_size, made.child_func_id(0)) == (6, 4, 5)
        assert made.child_offset(0) != made.child_offset(1)
        empty = CoreCallable.build(signature=[], binary=b"")
        assert (empty.binary_size, empty.sig_count) == (0, 0)
        again = ChipCallable.from_bytes(ctypes.string_at(made.buffer_ptr(), made.buffer_size()))
        assert (again.sig(1), again.child_count) == (ArgDirection.INOUT, 2)

    def test_identities(self):
        made = chip_callable()
        blob = ctypes.string_at(made.buffer_ptr(), made.buffer_size())
        schema = build_chip_signature_schema([ArgDirection.IN, ArgDirection.INOUT])
        assert schema == u32(1, 2, 1, 3)
        assert build_chip_callable_descriptor(target=made, platform="a2a3sim") == (
            u32(1, 1)
            + text(b"a2a3")
            + text(b"a2a3sim")
            + text(b"")
            + text(hashlib.sha256(blob).digest())
            + text(hashlib.sha256(schema).digest())
        )
        hashid = compute_callable_hashid(build_python_import_descriptor("pkg.mod", "fn"))
        assert len(hashid_to_digest(hashid)) == CALLABLE_HASH_DIGEST_BYTES
        validate_hashid(hashid)
        with pytest.raises(ValueError, match="HASHID_FORMAT_INVALID"):
            validate_hashid(hashid[:-1])
        assert tuple(parse_python_import_target("pkg.mod:Class.fn")) == ("pkg.mod", "Class.fn")
        parse_python_callable_payload(b"SPYC" + bytes([1, 1]) + struct.pack("<HQ", 0, 3) + b"abc")


class TestWorker:
    def test_levels_and_children(self):
        with pytest.raises(ValueError, match="level 1 not supported"):
            Worker(level=1)
        with pytest.raises(RuntimeError, match="level >= 4"):
            Worker(level=3).add_worker(Worker(level=3))

    def test_with_does_not_initialise(self):
        with Worker(level=4, num_sub_workers=0) as w:
            w.add_worker(Worker(level=3, num_sub_workers=1, heap_ring_size=None))
            w.init()
            with pytest.raises(RuntimeError, match="already initialized"):
                w.init()
            for call in (
                lambda: w.malloc(64),
                lambda: w.free(1),
                lambda: w.copy_to(1, 1, 1),
                lambda: w.copy_from(1, 1, 1),
            ):
                with pytest.raises(IndexError, match="out of range"):
                    call()

    def test_who_takes_which_callables(self):
        w = Worker(level=3, num_sub_workers=0)
        assert w.register(chip_callable()).kind == "CHIP_CALLABLE"
        w.init()
        with pytest.raises(RuntimeError, match="no Python-capable child"):
            w.register(lambda args: None)
        w.close()
        with pytest.raises(TypeError, match="level 2 only supports ChipCallable"):
            Worker(level=2).register(lambda args: None)

    def test_handles(self):
        w, other = Worker(level=3, num_sub_workers=1), Worker(level=3, num_sub_workers=1)
        handle, stale, foreign = (one.register(lambda args: None) for one in (w, w, other))
        w.unregister(stale)
        w.init()
        for bad, kind, words in (
            (3, TypeError, "expects a CallableHandle returned by Worker.register"),
            (foreign, KeyError, "does not belong to this Worker"),
            (stale, KeyError, "is not live on this Worker"),
        ):
            with pytest.raises(kind, match=words):
                w.run(lambda orch, args, config, bad=bad: orch.submit_sub(bad))
        handle.kind = "PYTHON_IMPORT"
        with pytest.raises(Exception, match="CALLABLE_HANDLE_MUTATED"):
            w.run(lambda orch, args, config: orch.submit_sub(handle))
        w.close()
        other.close()
