"""The native part of the package: its build, its settings, and what the compiler says."""

import subprocess
import tempfile

import pytest

from simpler_ref.native_chip import ChipError, ChipWorker, KernelCompileError, compile_kernel
from simpler_ref.native_chip.abi import INCLUDE_DIR


@pytest.mark.parametrize("name", ["SIMPLER_SIM_CORES", "SIMPLER_SIM_DEVICE_MEMORY"])
@pytest.mark.parametrize("value", ["0", "-3", "many", "9" * 30])
def test_settings_that_cannot_be_are_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(ChipError, match=f'{name} is "{value}"; give a number'):
        ChipWorker().init()


def test_a_missing_build_says_what_to_do(monkeypatch, tmp_path):
    from simpler_ref.native_chip import chip_worker

    monkeypatch.setattr(chip_worker, "_RUNTIME", tmp_path / "_runtime.so")
    with pytest.raises(RuntimeError, match=r"native part not built: .* `pip install .`"):
        ChipWorker()


def test_a_compiler_without_a_folder_for_its_files_is_an_error_with_the_remedy(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    with pytest.raises(KernelCompileError, match=r"/nonexistent.* variable TMPDIR"):
        compile_kernel("int here;")


def test_the_compilers_complaint_is_passed_on(monkeypatch):
    with pytest.raises(KernelCompileError, match="nonsense"):
        compile_kernel("int nonsense nonsense;")
    with pytest.raises(KernelCompileError, match=r"undefined reference to .*not_here"):
        compile_kernel("int not_here(void); int here(void) { return not_here(); }")
    with pytest.raises(TypeError, match="must be a str"):
        compile_kernel(b"")
    monkeypatch.setenv("CC", "no-such-compiler -O3")
    with pytest.raises(KernelCompileError, match=r"'no-such-compiler' cannot be run .* CC"):
        compile_kernel("")


def test_the_sources_compile_without_a_warning():
    package = INCLUDE_DIR.parent.parent
    sources = sorted(map(str, package.glob("*/src/*.c")))
    assert {"quick.c", "shim.c"} <= {source.rpartition("/")[2] for source in sources}
    strict = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    folders = f"-I{INCLUDE_DIR}", f"-I{package / 'jit' / 'src'}"
    command = ["cc", *strict, *folders, *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
