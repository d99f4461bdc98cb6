"""COMPAT-NAMES: modules under their own names."""

import importlib
import logging
import os
import re
import socket
import sys
import types

import numpy as np
import pytest

import simpler_ref
from simpler_ref import compat
from simpler_ref.extras.scenes import ports
from simpler_ref.remote_l3_protocol import Frame, FrameHeader, FrameType
from simpler_ref.task_interface import DataType
from tests.spec_rules import tables

F32 = DataType.FLOAT32

NAMES = [
    (original, "" if " " in here else here.strip("`"))
    for names, here in tables("COMPAT-NAMES")[0]
    for original in re.findall(r"[\w.]+", names)
]


@pytest.fixture
def installed():
    compat.install()
    yield
    compat.uninstall()
    assert not any(name.split(".")[0] in ("simpler", "_task_interface") for name in sys.modules)


@pytest.mark.spec("COMPAT-NAMES-1")
def test_programs_import_modules_and_names_of_the_table_in_every_way(installed):
    for original, here in NAMES:
        found = importlib.import_module(original)
        assert not here or found is importlib.import_module(f"simpler_ref.{here}")
    assert {*compat._modules(), "simpler"} == {name for name, _ in NAMES}
    compat.install()
    scope = {}
    exec(
        "import simpler, simpler.worker, simpler.task_interface as ti\n"
        "from simpler import env_manager, TaskArgs\n"
        "from simpler.worker import Worker\n"
        "from simpler.task_interface import *\n"
        "from _task_interface import DataType as D\n",
        scope,
    )
    assert scope["Worker"] is scope["simpler"].worker.Worker is scope["simpler"].Worker
    assert issubclass(scope["Worker"], simpler_ref.Worker)
    assert scope["TaskArgs"] is scope["ti"].TaskArgs is simpler_ref.TaskArgs
    assert scope["D"] is scope["DataType"] and scope["env_manager"].ensure is ports.ensure
    with pytest.raises(ImportError):
        exec("from simpler import nothing_of_this_name", scope)
    with pytest.raises(ModuleNotFoundError):
        exec("import simpler.nothing_of_this_name", scope)


@pytest.mark.spec("COMPAT-NAMES-1")
@pytest.mark.parametrize("name", ["simpler", "_task_interface", "simpler.worker"])
def test_another_module_of_such_a_name_is_left_alone(monkeypatch, name):
    other = types.ModuleType(name)
    other.__file__ = "/its/place.py"
    monkeypatch.setitem(sys.modules, name, other)
    before = dict(sys.modules)
    with pytest.raises(RuntimeError, match=f"'{name}' is imported already, from /its/place.py"):
        compat.install()
    assert sys.modules == before and sys.modules[name] is other
    compat.uninstall()
    assert sys.modules[name] is other


@pytest.mark.spec("COMPAT-NAMES-2")
def test_log_levels_have_names_in_logging_and_the_root_logger_shows_one_by_its_name(monkeypatch):
    log_levels = ports.modules()["simpler.log_levels"]
    levels = [getattr(log_levels, f"V{i}") for i in range(10)]
    assert levels == list(range(levels[0], levels[0] + 10))
    assert log_levels.V5 == logging.INFO and logging.getLevelName(logging.INFO) == "INFO"
    assert levels[0] > logging.DEBUG and levels[9] < logging.WARNING
    assert log_levels.NUL > logging.CRITICAL
    logger, root = logging.Logger("some"), logging.getLogger()
    for name, level in log_levels.LEVELS.items():
        logger.setLevel(name)
        assert logger.level == level
    monkeypatch.setenv("PTO_LOG_LEVEL", "")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    for name, level in (("warn", logging.WARNING), ("V3", levels[3]), ("nul", log_levels.NUL)):
        ports.configure_logging(name)
        assert (root.level, os.environ["PTO_LOG_LEVEL"]) == (level, name.lower())
    with pytest.raises(ValueError, match="log_level='loud': it is one of debug, v0"):
        ports.configure_logging("loud")


@pytest.mark.spec("COMPAT-NAMES-2")
def test_a_variable_that_is_missing_is_named(monkeypatch):
    monkeypatch.setenv("SIMPLER_TEST_HERE", "value")
    monkeypatch.setenv("SIMPLER_TEST_EMPTY", "")
    assert ports.get("SIMPLER_TEST_HERE") == ports.ensure("SIMPLER_TEST_HERE") == "value"
    for name in ("SIMPLER_TEST_EMPTY", "SIMPLER_TEST_MISSING"):
        assert ports.get(name) is None and ports.get(name, "other") == "other"
        with pytest.raises(OSError, match=name):
            ports.ensure(name)


@pytest.mark.spec("COMPAT-NAMES-3")
def test_a_keyword_that_a_worker_does_not_have_is_left_out_with_a_warning(caplog):
    with ports.Worker(3, num_sub_workers=1, build=True, child_mode="thread") as w:
        assert (w.level, w.num_sub_workers, w.child_mode) == (3, 1, "thread")
    assert [one.getMessage() for one in caplog.records] == [
        "Worker(build=True): there is no such keyword here, it is left out"
    ]
    with pytest.raises(TypeError, match="build"):
        simpler_ref.Worker(3, build=True)
    with pytest.raises(ValueError, match="level 1 not supported"):
        ports.Worker(1)


KERNEL = """
#include "simpler_kernel.h"
#include "more.h"
extern "C" int32_t simpler_kernel(const SimplerCoreArgs *) { return more<int32_t>(); }
"""


@pytest.mark.spec("COMPAT-NAMES-3")
def test_kernels_are_compiled_with_the_headers_that_the_program_names(tmp_path, monkeypatch):
    source, isa = tmp_path / "one.cpp", tmp_path / "isa"
    source.write_text(KERNEL)
    (isa / "include").mkdir(parents=True)
    (isa / "include" / "more.h").write_text("template <typename T> T more() { return 0; }")
    compiler = ports.KernelCompiler("a5sim")
    with pytest.raises(RuntimeError, match=r"more\.h"):
        compiler.compile_incore(source)
    made = [
        compiler.compile_incore(source, "aic", extra_include_dirs=[isa / "include"]),
        compiler.compile_incore(source, "aiv", isa, build_dir=tmp_path),
        compiler.compile_orchestration("host_build_graph", source, [isa / "include"]),
    ]
    assert all(one[:4] == b"\x7fELF" for one in made)
    assert ports.extract_text_section(tmp_path / "one.so") == made[1]
    assert ports.extract_text_section(made[1]) == made[1]
    for refused, call in {
        "needs hardware": lambda: ports.KernelCompiler("a2a3"),
        "'aic' or 'aiv'": lambda: compiler.compile_incore(source, "cube"),
        "no runtime 'other'": lambda: compiler.compile_orchestration("other", source),
        "no runtime 'that'": lambda: ports.RuntimeBuilder().get_binaries("that"),
    }.items():
        with pytest.raises(ValueError, match=refused):
            call()
    with pytest.raises(FileNotFoundError):
        compiler.compile_incore(tmp_path / "none.cpp")
    monkeypatch.setenv("PTO_ISA_ROOT", str(isa))
    assert ports.ensure_pto_isa_root(verbose=True, commit="0") == str(isa)
    monkeypatch.delenv("PTO_ISA_ROOT")
    with pytest.raises(OSError, match="PTO_ISA_ROOT='' has no folder include"):
        ports.ensure_pto_isa_root()


@pytest.mark.spec("COMPAT-NAMES-1")
def test_contiguous_tensors_of_a_datatype_are_described_and_frames_go_through_a_socket():
    with simpler_ref.Worker(3, num_sub_workers=1, child_mode="thread") as w:
        x = w.zeros((2, 3), np.float32)
        made = ports.make_tensor_arg(x)
        assert (made.data, tuple(made.shapes), made.dtype) == (x.ctypes.data, (2, 3), F32)
        for wrong in (x[:, :2], w.zeros(3, np.float64)):
            with pytest.raises(ValueError, match="not a contiguous tensor of a DataType"):
                ports.make_tensor_arg(wrong)
    assert ports.torch_dtype_to_datatype("torch.float32") == F32
    with pytest.raises(KeyError):
        ports.torch_dtype_to_datatype("torch.float64")
    one, other = socket.socketpair()
    with one, other:
        header = FrameHeader(FrameType.HEALTH, 1, 2, 3, payload_bytes=4)
        ports.send_frame(one, header, b"abcd")
        assert ports.read_frame(other) == Frame(header, b"abcd")
        one.sendall(b"SLR3")
        one.close()
        with pytest.raises(EOFError, match="after 4 of 40 bytes"):
            ports.read_frame(other)
