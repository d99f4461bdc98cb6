"""ChipWorker over the simulated chip: runs, memory, cores, errors, several chips, forks."""

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipStatus,
    ChipWorker,
    compile_kernel,
    default_runtime,
)
from simpler_ref.task_interface import CallConfig, ContinuousTensor, DataType, TaskArgs

from . import native_chip_kernels as K
from .native_chip_kernels import D, host_args, orchestration

DEADLINE_S = 60.0
"""A guard against hangs, not a measurement."""
ADD = [D.IN, D.IN, D.OUT]


@pytest.fixture
def chip():
    with ChipWorker() as worker:
        yield worker


@pytest.fixture
def adder(chip):
    chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
    return chip


def numbers(count):
    return np.arange(count, dtype=np.float32), np.full(count, 0.5, np.float32)


# ---------------------------------------------------------------- runs
@pytest.mark.parametrize("block_dim", [0, 1, 7, 24])
@pytest.mark.parametrize("count", [1, 3, 1001, 4096])
def test_a_kernel_in_c_does_what_numpy_does(adder, block_dim, count):
    x, y = numbers(count)
    out = np.full(count, -1, np.float32)
    adder.run_args(0, host_args(x, y, out), CallConfig(block_dim=block_dim))
    assert np.array_equal(out, x + y)
    assert adder.device_wall_ns > 0


@pytest.mark.parametrize("feeders", [1, 3, 64])
def test_many_more_blocks_and_threads_than_cores_come_to_their_end(monkeypatch, feeders):
    monkeypatch.setenv("SIMPLER_SIM_CORES", "4000")
    with ChipWorker() as chip:
        chip.prepare(0, ChipCallable.from_kernel(K.mark_core()))
        seen = np.zeros(4000, np.int32)
        for _ in range(20):
            chip.run_args(0, host_args(seen), CallConfig(aicpu_thread_num=feeders))
    assert (seen == 20).all()


def test_blocks_may_wait_for_each_other_when_there_is_a_thread_for_each(chip):
    chip.prepare(0, ChipCallable.from_kernel(K.meet_core()))
    blocks = min(len(os.sched_getaffinity(0)), 24)
    for _ in range(50):
        here = np.zeros(1, np.int32)
        chip.run_args(0, host_args(here), CallConfig(block_dim=blocks))
        assert here[0] == blocks


def test_a_function_launches_waits_and_uses_memory_of_the_run(chip):
    chip.prepare(3, orchestration("twice", ADD, [(0, K.add_core())]))
    x, y = numbers(1000)
    out = np.zeros(1000, np.float32)
    chip.run_args(3, host_args(x, y, out))
    assert np.array_equal(out, 2 * (x + y))


def test_a_function_launches_as_often_as_it_likes(chip):
    chip.prepare(0, orchestration("many", [D.INOUT], [(0, K.mark_core())]))
    seen = np.zeros(24, np.int32)
    chip.run_args(0, host_args(seen))
    assert (seen == 200).all()


def test_a_view_in_any_memory_is_run_by_address_or_as_a_buffer(adder):
    x, y = numbers(10)
    out = np.zeros(10, np.float32)
    wires = [ContinuousTensor.make(a.ctypes.data, a.shape, a.dtype)._wire for a in (x, y, out)]
    view = struct.pack("<ii", 3, 0) + b"".join(wires)
    config = CallConfig().to_bytes()
    adder.run(0, view, config=config)
    assert np.array_equal(out, x + y)
    held, held_config = ctypes.create_string_buffer(view), ctypes.create_string_buffer(config)
    out[...] = 0
    adder.run(0, ctypes.addressof(held), len(view), ctypes.addressof(held_config))
    assert np.array_equal(out, x + y)
    adder.run(0, bytearray(view), len(view), config)


def test_tensors_of_no_elements_go_through(adder):
    empty = np.zeros((3, 0), np.float32)
    adder.run_args(0, host_args(empty, empty, empty))


# ---------------------------------------------------------------- one buffer, several tensors
def test_a_buffer_that_is_given_twice_has_one_copy_on_the_device(adder):
    x, y = numbers(100)
    wanted = x + y
    adder.run_args(0, host_args(x, y, x), CallConfig(block_dim=1))
    assert np.array_equal(x, wanted)


def test_tensors_that_overlap_overlap_on_the_device_too(adder):
    memory = np.arange(10, dtype=np.float32)
    y = np.ones(9, np.float32)
    adder.run_args(0, host_args(memory[:-1], y, memory[1:]), CallConfig(block_dim=1))
    assert memory.tolist() == [float(k) for k in range(10)]  # each read what was written before it


def test_what_is_only_read_is_not_written_back(adder):
    x, y = numbers(100)
    x.flags.writeable = y.flags.writeable = False
    page = np.frombuffer(read_only_page(), np.float32, 100)
    out = np.zeros(100, np.float32)
    adder.run_args(0, host_args(page, y, out))
    assert np.array_equal(out, y)
    with pytest.raises(
        ChipError, match=r"tensor 2: the host memory .* wrote to a bad address"
    ) as e:
        adder.run_args(0, host_args(x, y, page))
    assert e.value.code == ChipStatus.ADDRESS


def read_only_page():
    import mmap

    return mmap.mmap(-1, 4096, prot=mmap.PROT_READ)


# ---------------------------------------------------------------- device memory
def child(address, count):
    return ContinuousTensor.make(address, (count,), DataType.FLOAT32, child_memory=True)


def test_child_memory_stays_on_the_device_between_runs(adder):
    x, _ = numbers(50)
    at = adder.malloc(200)
    adder.copy_to(at, np.zeros(50, np.float32))
    args = host_args(x)
    for k in (0, 0):
        args.add_tensor(child(at, 50 - k))
    for _ in range(3):
        adder.run_args(0, args)
    back = np.empty(50, np.float32)
    adder.copy_from(back, at)
    assert np.array_equal(back, 3 * x)
    adder.free(at)


def test_child_memory_must_be_in_one_live_allocation(adder):
    x, y = numbers(50)
    at = adder.malloc(200)
    for address, count in ((at, 51), (at - 4, 50), (at + 4, 50), (0x1000, 1), (x.ctypes.data, 50)):
        args = host_args(x, y)
        args.add_tensor(child(address, count))
        with pytest.raises(ChipError, match="not inside one live allocation") as error:
            adder.run_args(0, args)
        assert error.value.code == ChipStatus.ADDRESS
    adder.free(at)
    args = host_args(x, y)
    args.add_tensor(child(at, 50))
    with pytest.raises(ChipError, match="not inside one live allocation"):
        adder.run_args(0, args)


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30), data=st.data())
def test_allocations_do_not_overlap_and_come_back(sizes, data):
    with ChipWorker() as chip:
        held = {}
        for fill, size in enumerate(sizes):
            at = chip.malloc(size)
            assert at % 64 == 0
            assert all(at + size <= a or a + s <= at for a, (s, _) in held.items())
            chip.copy_to(at, bytes([fill]) * size)
            held[at] = size, fill
            if data.draw(st.booleans()):
                gone = data.draw(st.sampled_from(sorted(held)))
                chip.free(gone)
                del held[gone]
        for at, (size, fill) in held.items():
            back = bytearray(size)
            chip.copy_from(back, at)
            assert back == bytes([fill]) * size


def test_misuse_of_device_memory_is_refused(monkeypatch):
    monkeypatch.setenv("SIMPLER_SIM_DEVICE_MEMORY", str(4 << 20))
    with ChipWorker() as chip:
        at = chip.malloc(1000)
        buffer = bytearray(2000)
        host = np.frombuffer(buffer, np.uint8).ctypes.data
        for code, words, call in (
            (ChipStatus.ADDRESS, "no live allocation", lambda: chip.free(at + 64)),
            (ChipStatus.ADDRESS, "no live allocation", lambda: chip.free(0)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_to(at, host, 1001)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_to(at - 1, host, 1)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_from(host, at + 1000, 1)),
            (ChipStatus.ADDRESS, "not inside one", lambda: chip.copy_from(host, at, 1 << 62)),
            (ChipStatus.ADDRESS, "read a bad address 0x10", lambda: chip.copy_to(at, 16, 8)),
            (ChipStatus.ADDRESS, "wrote to a bad address", lambda: chip.copy_from(16, at, 8)),
            (ChipStatus.MEMORY, "no room for 8388608", lambda: chip.malloc(8 << 20)),
            (ChipStatus.MEMORY, "no room", lambda: chip.malloc((1 << 63) - 1)),
        ):
            with pytest.raises(ChipError, match=words) as error:
                call()
            assert error.value.code == code
        chip.free(at)
        with pytest.raises(ChipError, match="freed already"):
            chip.free(at)
        assert chip.malloc(4 << 20)
        with pytest.raises(ChipError, match="4194304 of 4194304 are allocated in 1"):
            chip.malloc(1)


def test_values_that_cannot_be_are_refused_before_the_chip_sees_them(chip):
    for kind, call in (
        (ValueError, lambda: chip.malloc(0)),
        (ValueError, lambda: chip.malloc(-1)),
        (TypeError, lambda: chip.malloc(1.5)),
        (ValueError, lambda: chip.free(-1)),
        (ValueError, lambda: chip.copy_to(0, 1)),
        (ValueError, lambda: chip.copy_to(0, b"abc", 4)),
        (ValueError, lambda: chip.copy_from(b"abc", 0)),
        (TypeError, lambda: chip.copy_to(0, "abc")),
        (TypeError, lambda: chip.prepare("0", b"")),
        (TypeError, lambda: chip.prepare(0, 3)),
        (TypeError, lambda: chip.run(0, 1, None, 0)),
        (ValueError, lambda: chip.run(0, bytes(8), 8, b"short")),
        (ValueError, lambda: ChipWorker(-1)),
        (TypeError, lambda: ChipWorker("0")),
    ):
        with pytest.raises(kind):
            call()


def test_the_host_finds_inputs_that_are_not_there(adder):
    x, y = numbers(10)
    args = TaskArgs()
    args.add_tensor(ContinuousTensor.make(0x10, (10,), DataType.FLOAT32))
    for array in (x, y):
        args.add_tensor(ContinuousTensor.make(array.ctypes.data, (10,), DataType.FLOAT32))
    with pytest.raises(ChipError, match=r"tensor 0: the host memory .* read a bad address 0x10"):
        adder.run_args(0, args)
    with pytest.raises(ChipError, match="no room"):
        huge = TaskArgs()
        for _ in range(3):
            huge.add_tensor(ContinuousTensor.make(0x1000, (1 << 31,), DataType.FLOAT32))
        adder.run_args(0, huge)


# ---------------------------------------------------------------- views, slots, configuration
@pytest.mark.parametrize(
    ("counts", "capacity"),
    [
        *(((-1, 0), 100), ((0, -1), 100), ((1, 0), 47), ((129, 0), 9999), ((0, 129), 9999)),
        *(((0, 0), 7), ((2**31 - 1, 2**31 - 1), 100), ((0, 0), -1), ((128, 128), 8 + 128 * 48 - 1)),
    ],
)
def test_a_view_that_walks_out_of_its_bounds_is_refused_with_both_counts(adder, counts, capacity):
    view = ctypes.create_string_buffer(struct.pack("<ii", *counts), 16384)
    with pytest.raises(ChipError, match=rf" in {capacity} bytes") as error:
        adder.run(0, ctypes.addressof(view), capacity, CallConfig().to_bytes())
    assert error.value.code == ChipStatus.VIEW
    if capacity >= 8:
        assert f"{counts[0]} tensors and {counts[1]} scalars" in str(error.value)


def test_arguments_that_do_not_fit_the_signature_are_refused(adder):
    x, y = numbers(4)
    for args in (host_args(x, y), host_args(x, y, x, y), host_args(x, y, x, scalars=[1])):
        with pytest.raises(ChipError, match="takes 3 tensors and 0 scalars by its signature") as e:
            adder.run_args(0, args)
        assert e.value.code == ChipStatus.ARGS


def test_tensors_that_make_no_sense_are_refused(adder):
    good = ContinuousTensor.make(0x1000, (1,), DataType.FLOAT32)._wire
    for at, value in ((28, 6), (32, 12), (32, 255)):
        bad = good[:at] + bytes([value]) + good[at + 1 :]
        with pytest.raises(ChipError, match="dimensions and element type") as error:
            adder.run(0, struct.pack("<ii", 3, 0) + bad * 3, config=CallConfig().to_bytes())
        assert error.value.code == ChipStatus.ARGS
    big = struct.pack("<Q5IIBB6x", 0x1000, *[2**32 - 1] * 5, 5, 0, 0)
    with pytest.raises(ChipError, match="does not fit an address space"):
        adder.run(0, struct.pack("<ii", 3, 0) + big * 3, config=CallConfig().to_bytes())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"block_dim": 25}, "block_dim is 25; this chip has 24 cores"),
        ({"aicpu_thread_num": 0}, "aicpu_thread_num is 0; give 1 to 64"),
        ({"aicpu_thread_num": 65}, "aicpu_thread_num is 65"),
        ({"enable_pmu": 1, "output_prefix": "x"}, "no diagnostics"),
    ],
)
def test_knobs_out_of_range_are_refused(adder, fields, words):
    x, y = numbers(4)
    with pytest.raises(ChipError, match=words) as error:
        adder.run_args(0, host_args(x, y, x), CallConfig(**fields))
    assert error.value.code == ChipStatus.CONFIG


def test_a_negative_block_dim_and_a_missing_config_are_refused(adder):
    negative = struct.pack("<7i1024x", -1, 3, 0, 0, 0, 0, 0)
    for config, words in ((negative, "block_dim is -1"), (0, "configuration is missing")):
        with pytest.raises(ChipError, match=words):
            adder.run(0, bytes(8), config=config)


def test_slots_are_taken_and_given_back(adder):
    added = ChipCallable.from_kernel(K.add_core())
    x, y = numbers(4)
    for words, call in (
        ("local slot 0 holds simpler_launch_all", lambda: adder.prepare(0, added)),
        ("no local slot 4096", lambda: adder.prepare(4096, added)),
        ("no local slot -1", lambda: adder.run_args(-1, host_args())),
        ("no local slot -1", lambda: adder.run_args(2**32, host_args())),
        ("local slot 5 is empty", lambda: adder.run_args(5, host_args())),
        ("local slot 5 is empty", lambda: adder.unregister(5)),
    ):
        with pytest.raises(ChipError, match=words) as error:
            call()
        assert error.value.code == ChipStatus.SLOT
    for _ in range(50):
        adder.unregister(0)
        adder.prepare(0, added.to_bytes())
        adder.run_args(0, host_args(x, y, x))


@pytest.mark.parametrize("name", ["SIMPLER_SIM_CORES", "SIMPLER_SIM_DEVICE_MEMORY"])
@pytest.mark.parametrize("value", ["0", "-3", "many", "9" * 30])
def test_settings_that_cannot_be_are_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ChipError, match=f'{name} is "{value}"; give a number'):
        ChipWorker().init()


# ---------------------------------------------------------------- failures of what runs
@pytest.fixture
def bad(adder):
    adder.prepare(1, ChipCallable.from_kernel(K.bad_core()))
    yield adder
    x, y = numbers(10)  # after each failure the chip works as before
    adder.run_args(0, host_args(x, y, x))
    assert np.array_equal(x, np.arange(10) + 0.5)


@pytest.mark.parametrize("block_dim", [1, 8])
@pytest.mark.parametrize(
    ("what", "value", "words", "code"),
    [
        (K.RETURN_CODE, -5, "returned error -5", ChipStatus.KERNEL),
        (K.READ_AT, 0, "read a bad address 0x0 .SIGSEGV", ChipStatus.FAULT),
        (K.WRITE_AT, 0x18, "wrote to a bad address 0x18 .SIGSEGV", ChipStatus.FAULT),
        (K.READ_AT, 0xDEAD << 48, "accessed a bad address", ChipStatus.FAULT),
        (K.ILLEGAL, 0, "met an illegal instruction", ChipStatus.FAULT),
        pytest.param(
            *(K.DIVIDE, 0, "divided an integer by zero", ChipStatus.FAULT),
            marks=pytest.mark.skipif(
                platform.machine() != "x86_64", reason="it does not trap here"
            ),
        ),
    ],
)
def test_a_kernel_that_fails_is_named_with_its_block(bad, block_dim, what, value, words, code):
    block = rf"kernel func_id 0 \(block {block_dim - 1} of {block_dim}\) "
    for _ in range(3):
        with pytest.raises(ChipError, match=block + words) as error:
            bad.run_args(1, host_args(scalars=[what, value]), CallConfig(block_dim=block_dim))
        assert error.value.code == code


def test_a_stack_that_overflows_in_a_kernel_is_reported(bad):
    for _ in range(3):
        with pytest.raises(ChipError, match="bad address 0x"):
            bad.run_args(1, host_args(scalars=[K.OVERFLOW, 0]), CallConfig(block_dim=8))


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("returns_5", "orchestration function returns_5 returned error 5", "ORCHESTRATION"),
        ("fails", "fails: no luck today", "ORCHESTRATION"),
        ("crashes", "orchestration function crashes wrote to a bad address 0x10", "FAULT"),
        ("allocates_too_much", "no room for 1125899906842624", "MEMORY"),
    ],
)
def test_an_orchestration_function_that_fails_says_why(chip, name, words, code):
    chip.prepare(0, orchestration(name))
    for _ in range(2):
        with pytest.raises(ChipError, match=words) as error:
            chip.run_args(0, host_args())
        assert error.value.code == ChipStatus[code]


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("launches_unknown", "func_id 99 and has no such child", "ARGS"),
        ("launches_too_wide", "over 1048576 blocks; this chip has 24", "CONFIG"),
        ("launches_with_less", "with 2 tensors and 0 scalars; by its signature it takes 3", "ARGS"),
    ],
)
def test_a_launch_that_cannot_be_fails_the_run(chip, name, words, code):
    chip.prepare(0, orchestration(name, ADD, [(0, K.add_core())]))
    x, y = numbers(4)
    with pytest.raises(ChipError, match=words) as error:
        chip.run_args(0, host_args(x, y, x))
    assert error.value.code == ChipStatus[code]
    assert np.array_equal(x, numbers(4)[0])


def test_a_kernel_is_not_launched_on_host_memory(chip):
    chip.prepare(0, orchestration("launches_on_host", [*ADD, D.SCALAR], [(0, K.add_core())]))
    x, y = numbers(4)
    with pytest.raises(ChipError, match="as tensor 1, which are not device memory"):
        chip.run_args(0, host_args(x, y, x, scalars=[y.ctypes.data]))


# ---------------------------------------------------------------- loading, life
def test_all_missing_entry_points_are_named(tmp_path):
    path = tmp_path / "half.so"
    path.write_bytes(
        compile_kernel("int pto2_init(void) { return 0; } int pto2_free(void) { return 0; }")
    )
    with pytest.raises(ChipError, match=str(path)) as error:
        ChipWorker(runtime=path).init()
    names = str(error.value).split("missing: ")[1].split(", ")
    assert names == [
        f"pto2_{name}"
        for name in (
            *("finalize", "prepare_callable", "unregister_callable", "run_runtime", "malloc"),
            *("copy_to", "copy_from", "last_error", "device_wall_ns"),
        )
    ]


def test_a_runtime_that_cannot_be_loaded_is_named_with_the_reason(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("no library")
    cut = tmp_path / "cut.so"
    with open(default_runtime(), "rb") as file:
        cut.write_bytes(file.read()[:9000])
    for path, words in (
        (tmp_path / "none.so", "No such file"),
        (tmp_path, "not a file"),
        (text, "no ELF header"),
        (cut, "cut off"),
    ):
        with pytest.raises(ChipError, match=words) as error:
            ChipWorker(runtime=path).init()
        assert str(path) in str(error.value)


def test_a_missing_build_says_what_to_do(monkeypatch, tmp_path):
    from simpler_ref.native_chip import chip_worker

    monkeypatch.setattr(chip_worker, "_RUNTIME", tmp_path / "_runtime.so")
    with pytest.raises(RuntimeError, match=r"native part not built: .* `pip install .`"):
        ChipWorker()


def test_a_closed_chip_says_so_and_can_be_opened_again():
    worker = ChipWorker()
    for _ in range(3):
        for call in (
            lambda: worker.run(0, bytes(8), 8, bytes(1052)),
            lambda: worker.malloc(8),
            lambda: worker.device_wall_ns,
        ):
            with pytest.raises(ChipError, match="not open: call init") as error:
                call()
            assert error.value.code == ChipStatus.CLOSED
        worker.init()
        with pytest.raises(RuntimeError, match="already initialized"):
            worker.init()
        assert worker.malloc(8)
        worker.finalize()
        worker.finalize()


def test_two_chips_of_one_process_share_nothing():
    x, y = numbers(100)
    with ChipWorker(0) as one, ChipWorker(1) as other:
        at = one.malloc(64)
        one.prepare(0, ChipCallable.from_kernel(K.add_core()))
        with pytest.raises(ChipError, match=r"chip 1: .* not inside one live allocation"):
            other.copy_to(at, b"x")
        with pytest.raises(ChipError, match="no live allocation"):
            other.free(at)
        with pytest.raises(ChipError, match="local slot 0 is empty"):
            other.run_args(0, host_args(x, y, x))
        other.prepare(0, orchestration("fails"))
        one.run_args(0, host_args(x, y, x))
        with pytest.raises(ChipError, match="no luck"):
            other.run_args(0, host_args())


def test_chips_of_several_threads_run_at_the_same_time():
    def work(results, k):
        x, y = numbers(1000)
        out = np.zeros(1000, np.float32)
        with ChipWorker(k) as chip:
            chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
            chip.prepare(1, ChipCallable.from_kernel(K.bad_core()))
            for _ in range(30):
                chip.run_args(0, host_args(x, y, out))
                with pytest.raises(ChipError, match="bad address 0x0"):
                    chip.run_args(1, host_args(scalars=[K.READ_AT, 0]))
        results[k] = np.array_equal(out, x + y)

    results = {}
    threads = [threading.Thread(target=work, args=(results, k)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == dict.fromkeys(range(4), True)


def test_chips_closed_in_any_order_leave_the_handlers_as_they_were():
    def handlers():
        return [handler_of(number) for number in (signal.SIGSEGV, signal.SIGFPE)]

    before = handlers()
    one, other = ChipWorker(), ChipWorker()
    one.init()
    other.init()
    other.finalize()
    one.finalize()
    assert handlers() == before


def handler_of(number):
    raw = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).sigaction(int(number), None, raw) == 0
    return raw.raw[:8]  # the address; what is beside it is not all defined


def program(text, expected=0):
    """Run a program of its own; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=os.getcwd(),
    )
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


def test_a_fault_that_is_not_a_kernels_kills_the_process_as_it_should():
    for chips in (
        "one.init()",
        "one.init(); one.finalize()",
        "one.init(); other.init(); one.finalize()",
        "one.init(); other.init(); one.finalize(); other.finalize()",
    ):
        said = program(
            f"""
            import ctypes, faulthandler
            from simpler_ref.native_chip import ChipWorker
            faulthandler.enable()
            one, other = ChipWorker(), ChipWorker()
            {chips}
            ctypes.string_at(16)
            """,
            -signal.SIGSEGV,
        )
        assert "Fatal Python error: Segmentation fault" in said


def test_a_process_forked_before_has_a_chip_of_its_own_and_one_forked_after_is_told_so():
    with ChipWorker() as chip:
        chip.prepare(0, ChipCallable.from_kernel(K.add_core()))
        x, y = numbers(100)
        chip.run_args(0, host_args(x, y, x))  # its threads exist
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(ChipError, match="was forked from the one that opened the chip"):
                    chip.run_args(0, host_args(x, y, x))
                chip.finalize()
                with ChipWorker() as own:
                    own.prepare(0, ChipCallable.from_kernel(K.add_core()))
                    x, y = numbers(100)
                    own.run_args(0, host_args(x, y, x))
                    assert np.array_equal(x, np.arange(100) + 0.5)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        chip.run_args(0, host_args(x, y, x))


def test_a_chip_that_is_forgotten_is_closed():
    worker = ChipWorker()
    worker.init()
    worker.prepare(0, ChipCallable.from_kernel(K.mark_core()))
    worker.run_args(0, host_args(np.zeros(24, np.int32)))
    threads = len(os.listdir("/proc/self/task"))
    del worker
    assert len(os.listdir("/proc/self/task")) < threads or len(os.sched_getaffinity(0)) == 1
