"""CHIP-LOAD: runtimes and binaries that are loaded."""

import numpy as np
import pytest

from simpler_ref import Worker
from simpler_ref.native_chip import (
    ChipCallable,
    ChipError,
    ChipStatus,
    ChipWorker,
    CoreCallable,
    compile_kernel,
    default_runtime,
)
from tests import chip_kernels as K
from tests.chip_kernels import add_core, host_args, numbers, orchestration

from .conftest import refused


@pytest.mark.spec("CHIP-LOAD-1")
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


@pytest.mark.spec("CHIP-LOAD-1")
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


@pytest.mark.spec("CHIP-LOAD-5")
@pytest.mark.parametrize("name", ["tensormap_and_ringbuffer", "host_build_graph"])
def test_names_of_runtimes_are_the_simulated_chip(name, tmp_path, monkeypatch):
    (tmp_path / name).write_text("no library")
    monkeypatch.chdir(tmp_path)
    assert ChipWorker(runtime=name).runtime == default_runtime()
    x, y = numbers(10)
    out = np.zeros(10, np.float32)
    with Worker(2, platform="a2a3sim", runtime=name, child_mode="thread") as w:
        assert w.runtime == name
        w.run(w.register(ChipCallable.from_kernel(add_core())), host_args(x, y, out))
    assert np.array_equal(out, x + y)
    with pytest.raises(ChipError, match="no ELF header"):
        ChipWorker(runtime=f"./{name}").init()


@pytest.mark.spec("CHIP-LOAD-3")
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


@pytest.mark.spec("CHIP-LOAD-1")
def test_a_callable_that_is_cut_off_or_lacks_a_symbol_is_refused(chip):
    for size in (63, 100, 1000, 5000, -1):
        broken = ChipCallable.from_kernel(CoreCallable.build([], add_core().binary[:size]))
        with refused(ChipStatus.LOAD, r"func_id 0 .* cannot be loaded"):
            chip.prepare(0, broken)
    binary = orchestration("x").binary
    no_name = ChipCallable.build([], "not_there", binary, [])
    no_kernel = ChipCallable.from_kernel(CoreCallable.build([], binary))
    for made, words in ((no_name, "not_there"), (no_kernel, "simpler_kernel")):
        with pytest.raises(ChipError, match=f"does not export {words}"):
            chip.prepare(0, made)
