"""Compiled code on disk: found again, checked before it is used, done without where it cannot be."""

import collections
import os
import pickle
import resource
import stat
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest

from simpler_ref.jit import compiler, kernel
from simpler_ref.jit.kernel import INTERPRETED

pytestmark = pytest.mark.skipif(INTERPRETED, reason="interpreted code is not compiled")

Version = collections.namedtuple("Version", "answer loaded")


def triple(x):
    return 3 * x


def kept(function=triple, stamp="sources"):
    """Return a function that is looked for on the disk before it is compiled."""
    return kernel.entry(kernel.INT, nogil=True, stamp=stamp)(function)


def is_cached(entry):
    """Say whether an entry is on disk, so that it need not be compiled."""
    return kernel.Compiled([entry]).read() is not None


def version(function=triple, stamp="sources"):
    """Do what a start does with a kernel: say what it answers, and whether it came from the disk."""
    entry = kept(function, stamp)
    with mock.patch.object(compiler, "compile_part", wraps=compiler.compile_part) as compiles:
        holds, (bound,) = is_cached(entry), kernel.bind([entry])
        answer = bound(14)
    assert holds is not compiles.called
    return Version(answer, not compiles.called)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Give the folder that kernels are kept in, which is not there yet."""
    monkeypatch.setattr(kernel, "_told", set())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "simpler_ref" / "kernels"


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "simpler_ref"]


def only_file(folder):
    (path,) = folder.iterdir()
    return path


# ---------------------------------------------------------------- what is found again
@pytest.mark.spec("SPEED-KEEP-1")
def test_what_one_start_compiles_the_next_one_finds(caplog):
    assert (version(), version()) == ((42, False), (42, True))
    assert not warnings(caplog)


@pytest.mark.spec("SPEED-KEEP-1")
def test_other_sources_another_function_or_processor_is_another_kernel(folder, monkeypatch):
    assert (version(), version(stamp="other sources")) == ((42, False), (42, False))
    assert version(lambda x: 5 * x) == (70, False)
    assert len(list(folder.iterdir())) == 3
    here = kernel.source_digest()
    monkeypatch.setattr("platform.machine", lambda: "another kind")
    assert kernel.source_digest() != here


# ---------------------------------------------------------------- damage
DAMAGES = {
    "emptied": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0",
    "a bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a bit of the code": lambda data: data[:-9] + bytes([data[-9] ^ 128]) + data[-8:],
}


@pytest.mark.spec("SPEED-KEEP-2")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_compiled_again_and_written_anew(damage, folder, caplog):
    version()
    path = only_file(folder)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert version() == (42, False)
    assert warnings(caplog) == [f"{path} is damaged; what is damaged is compiled again"]
    assert version() == (42, True)
    path.write_bytes(damage(whole))
    assert version() == (42, False)
    assert len(warnings(caplog)) == 1, "it says so once"


# ---------------------------------------------------------------- nowhere to write
@pytest.mark.spec("SPEED-KEEP-2")
def test_a_full_disk_costs_the_next_start_time_and_nothing_else(folder, caplog):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        assert (version(), version(stamp="another")) == ((42, False), (42, False))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (line,) = warnings(caplog)
    assert "cannot be kept" in line and "File too large" in line and "XDG_CACHE_HOME" in line
    assert not list(folder.iterdir()), "no part of a file is left"
    assert (version(), version()) == ((42, False), (42, True))


@pytest.mark.spec("SPEED-KEEP-2", "SPEED-KEEP-1")
@pytest.mark.parametrize("home", ["/nonexistent/home", "not/absolute", "/dev/null", None])
def test_who_has_no_home_gets_none(home, monkeypatch, caplog):
    monkeypatch.delenv("XDG_CACHE_HOME")
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for an unknown user
    else:
        monkeypatch.setenv("XDG_CACHE_HOME" if home == "/dev/null" else "HOME", home)
    assert version() == (42, False)
    (line,) = warnings(caplog)
    assert ("Not a directory" if home == "/dev/null" else "has no home") in line


# ---------------------------------------------------------------- where, and whose
@pytest.mark.spec("SPEED-KEEP-1")
def test_the_folder_is_the_users_and_nobody_else_can_write_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for named in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert kernel.cache_folder() == tmp_path / ".cache" / "simpler_ref" / "kernels"
    before = os.umask(0)
    try:
        version()
    finally:
        os.umask(before)
    assert stat.S_IMODE(kernel.cache_folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(only_file(kernel.cache_folder()).stat().st_mode) == 0o600
    assert version() == (42, True)


@pytest.mark.spec("SPEED-KEEP-2")
@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_not_used(mode, folder, caplog):
    version()
    before = only_file(folder).stat()
    folder.chmod(mode)
    assert version() == (42, False)
    (line,) = warnings(caplog)
    assert f"others can write {folder}: run chmod go-w {folder}" in line
    assert only_file(folder).stat().st_mtime_ns == before.st_mtime_ns
    folder.chmod(0o755)
    assert version() == (42, True)


@pytest.mark.spec("SPEED-KEEP-2")
def test_a_file_that_others_can_write_is_replaced_by_one_that_they_cannot(folder):
    version()
    path = only_file(folder)
    path.chmod(0o606)
    assert (version(), stat.S_IMODE(path.stat().st_mode)) == ((42, False), 0o600)
    assert version() == (42, True)


# ---------------------------------------------------------------- how much, and at once
@pytest.mark.spec("SPEED-KEEP-1")
def test_what_was_not_used_for_longest_makes_room(folder, monkeypatch):
    version(stamp="0")
    size = only_file(folder).stat().st_size
    monkeypatch.setattr(kernel, "ROOM", 3 * size + size // 2)
    for stamp, days in {"0": 30, "1": 20, "2": 10}.items():
        known = set(folder.iterdir()) if stamp != "0" else set()
        version(stamp=stamp)
        (path,) = set(folder.iterdir()) - known
        then = path.stat().st_mtime - days * 24 * 3600
        os.utime(path, (then, then))
    assert version(stamp="0").loaded, "so this one is used today"
    version(stamp="3")
    assert len(list(folder.iterdir())) == 3
    assert [stamp for stamp in "023" if version(stamp=stamp).loaded] == ["0", "2", "3"]
    assert not version(stamp="1").loaded


@pytest.mark.spec("SPEED-KEEP-7")
def test_those_who_write_and_read_a_file_at_the_same_time_see_a_whole_one(folder, caplog):
    name, whole = "file", [bytes([i]) * 100_000 for i in range(4)]
    kernel.write_cached(name, whole[0])
    stop = threading.Event()

    def write(mine):
        while not stop.is_set():
            kernel.write_cached(name, mine)

    with ThreadPoolExecutor(len(whole)) as threads:
        writers = [threads.submit(write, mine) for mine in whole]
        try:
            for _ in range(500):
                assert kernel.read_cached(name) in whole
        finally:
            stop.set()
        assert [writer.result() for writer in writers] == [None] * 4
    assert [path.name for path in folder.iterdir()] == [name]


# ---------------------------------------------------------------- the two parts of all kernels
PARTS = """
def shared(mem):
    return mem[0] + mem[1]

def first(mem):
    mem[1] += 1
    return shared(mem)

def second(mem):
    return 10 * shared(mem)
"""


@pytest.mark.spec("SPEED-KEEP-1")
def test_code_of_one_part_calls_code_of_another_by_its_symbol():
    made = {"__name__": "parts"}
    exec(compile(PARTS, "<parts>", "exec"), made)
    shared, first, second = entries = [
        kernel.Entry(made[name], (kernel.WORDS,), "", nogil=False)
        for name in ("shared", "first", "second")
    ]
    parts = [compiler.compile_part([second], [shared]), compiler.compile_part([shared, first])]
    mem = np.array([3, 4])
    _, first, second = kernel.Compiled(entries).bind(pickle.dumps(parts))
    assert (first(mem), second(mem)) == (8, 80)


@pytest.mark.spec("SPEED-KEEP-1")
@pytest.mark.parametrize("other", [["false"], ["sleep", "100"], ["nowhere"]])
def test_where_no_process_can_compile_a_part_there_is_no_code_of_it(other, monkeypatch):
    real = subprocess.Popen
    monkeypatch.setattr(kernel, "LONGEST_S", 0.1)
    monkeypatch.setattr(subprocess, "Popen", lambda argv, **how: real(other, **how))
    assert kernel.compile_apart() is None
