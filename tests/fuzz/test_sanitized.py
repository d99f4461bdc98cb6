"""The tests of the C parts again, with C parts that report every use of memory that is not theirs.

AddressSanitizer and UndefinedBehaviorSanitizer are parts of the compiler. What they have built runs in a
process of its own, under a Python that is not built so: their library has to be loaded before all else.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ..mutation import mutants
from ..mutation.faults import Fault, Patch
from ..mutation.mutants import copy_sources
from ..spec_rules import ROOT
from .decoders import TIMES

CHECKS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
MORE_FLAGS = (*CHECKS, "-O1", "-g1", "-fPIC", "-shared")
"""Come after those of setup.py, and so win over them."""
ADDRESS_OPTIONS = {
    "detect_leaks": 0,  # Python keeps what it has to the end
    "allocator_may_return_null": 1,  # as the system's does
    "use_sigaltstack": 0,  # the runtime's threads have one of their own, for faults of kernels
    **{f"handle_{fault}": 0 for fault in ("segv", "sigbus", "sigfpe", "sigill")},  # it handles them
    "malloc_context_size": 5,  # frames; more would take most of the time
    "quarantine_size_mb": 16,
    "abort_on_error": 0,
    "exitcode": 86,
}
SUPPRESSED = "interceptor_via_fun:copy_step\n"
"""What goes wherever it is told, and answers with the fault (CHIP-MEM-5)."""
DEADLINE_S = 300 * TIMES
"""A guard against hangs."""
REPORT = re.compile(r"AddressSanitizer|runtime error:")


class NoSanitizers(Exception):
    """There are none on this machine; the text says why."""


def read_recipe() -> dict[str, Any]:
    """Return what setup.py says about the C parts of chips.

    It is read, not run, as it needs a setuptools of today.
    """
    wanted = {"HERE", "SOURCES", "LINKED_WITH", "FLAGS", "LINK_FLAGS", "LIBRARIES"}
    return {
        name: ast.literal_eval(line.value)
        for line in ast.parse((ROOT / "setup.py").read_text()).body
        if isinstance(line, ast.Assign) and (name := ast.unparse(line.targets[0])) in wanted
    }


def build(copy: Path, *only: str) -> None:
    """Compile the C parts of a copy of the package, or only some of them, in place.

    Raises
    ------
    NoSanitizers
        The compiler has none; or there is no compiler.
    """
    recipe = read_recipe()
    folder, links = copy / recipe["HERE"], [f"-l{name}" for name in recipe["LIBRARIES"]]
    for name in only or recipe["SOURCES"]:
        files = [f"{folder}/src/{source}.c" for source in recipe["SOURCES"][name]]
        if name in recipe["LINKED_WITH"]:
            files.append(f"{folder}/{recipe['LINKED_WITH'][name]}.so")
        target = [f"-I{folder}/include", *files, "-o", f"{folder}/{name}.so"]
        flags = [*recipe["FLAGS"], *MORE_FLAGS, f"-Wl,-soname,{name}.so"]
        _compile([*flags, *target, *recipe["LINK_FLAGS"], *links])


def _compile(arguments: Sequence[str]) -> None:
    command = [*shlex.split(os.environ.get("CC") or "cc"), *arguments]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except OSError as error:
        raise NoSanitizers(f"{command[0]} cannot be run: {error.strerror}") from None
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"{shlex.join(command)}\n{error.stderr}") from None


def find_library() -> str:
    """Return the path of AddressSanitizer's library, once a Python is found to run with it.

    Raises
    ------
    NoSanitizers
    """
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "empty.c"), Path(folder, "empty.so")
        source.write_text("int nothing;")
        try:
            _compile([*MORE_FLAGS, str(source), "-o", str(made)])
        except AssertionError as error:
            raise NoSanitizers(f"the compiler has no sanitizers: {error}") from None
        needs = subprocess.run(["ldd", made], capture_output=True, text=True).stdout
    found = re.search(r"lib\S*asan\S* => (/\S+)", needs)
    if found is None:
        raise NoSanitizers("the compiler's sanitizers are no library that could be loaded first")
    tried = subprocess.run(
        [sys.executable, "-c", ""], env=environment(found[1]), capture_output=True, text=True
    )
    if tried.returncode != 0:
        raise NoSanitizers(f"no program runs with {found[1]} here: {tried.stderr[-500:]}")
    return found[1]


def environment(library: str) -> dict[str, str]:
    """Return the environment in which Python can load what the sanitizers have built."""
    return os.environ | {
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": ":".join(f"{name}={value}" for name, value in ADDRESS_OPTIONS.items()),
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # so that what is beside a bytes object is nobody's
        "NUMBA_DISABLE_JIT": "1",
        "SIMPLER_SIM_DEVICE_MEMORY": str(1 << 26),
        "FUZZ_CFLAGS": " ".join(CHECKS),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Sanitized:
    """A copy of package and tests whose C parts are built with the sanitizers."""

    def __init__(self, folder: Path) -> None:
        self._environment = environment(find_library())
        self.copy = copy_sources(folder)
        suppressed = folder / "suppressed"
        suppressed.write_text(SUPPRESSED)
        self._environment["ASAN_OPTIONS"] += f":suppressions={suppressed}:print_suppressions=0"
        build(self.copy)

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests in the copy; return pytest's exit status and what was printed."""
        command = [sys.executable, "-m", "pytest", "-q", "-s", "--no-header", "-p", "no:xdist"]
        done = subprocess.run(
            [*command, *tests],
            cwd=self.copy,
            env=self._environment | {"PYTHONPATH": str(self.copy)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout.decode(errors="replace")


# ---------------------------------------------------------------- the tests
pytestmark = [pytest.mark.long, pytest.mark.timeout(2 * DEADLINE_S)]

UNCHECKED = Fault(
    "unchecked length",
    "A length in a callable's bytes is believed.",
    (Patch("native_chip/src/callable.c", "size > in->size - in->at)", "in->at > in->size)"),),
    ("tests/fuzz/test_chips.py::test_bytes_are_refused_or_do_what_they_say",),
)


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory):
    """Give a copy of package and tests with C parts that are built so."""
    try:
        return Sanitized(tmp_path_factory.mktemp("sanitized") / "copy")
    except NoSanitizers as why:
        pytest.skip(str(why))


CHIP_ABI = "tests/conformance/chip_abi"
SLOW = "kills_the_process"
"""A test that starts one Python after the other, of which each loads the sanitizers."""


@pytest.mark.parametrize(
    "tests",
    [("tests/fuzz/test_chips.py",), (CHIP_ABI, "-k", f"not {SLOW}"), (CHIP_ABI, "-k", SLOW)],
    ids=["fuzz", "conformance", "slow"],
)
def test_nothing_is_reported_whatever_the_c_parts_are_given(sanitized, tests):
    status, output = sanitized.run(*tests)
    assert status == 0, output[-20_000:]
    assert not REPORT.search(output)


def test_a_length_that_is_believed_is_reported(sanitized):
    runtime = sanitized.copy / "simpler_ref/native_chip/_runtime.so"
    before = runtime.read_bytes()
    with mutants.put_in(UNCHECKED, sanitized.copy):
        build(sanitized.copy, "_runtime")
    status, output = sanitized.run("tests/fuzz/test_chips.py", "-k", "prepared")
    runtime.write_bytes(before)
    assert status != 0
    assert "AddressSanitizer" in output, output[-20_000:]
