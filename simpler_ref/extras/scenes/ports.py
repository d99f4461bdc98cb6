"""What programs of the original import that is there for them only; `compat` gives it its names.

Kernels are compiled by the system's compiler, for the simulated chip and with the folders of headers that
the program names. What belongs to devices, such as the headers of their instructions, is not here.

Rule     COMPAT-NAMES-2, COMPAT-NAMES-3
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import socket
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ... import worker
from ...model.enums import DataType
from ...model.tensor import ContinuousTensor, DescribedTensor
from ...model.visibility import make_tensor
from ...native_chip import chip_worker
from ...native_chip.abi import INCLUDE_DIR, ChipStorageTaskArgs
from ...remote.frames import Frame, FrameHeader, decode_frame, decode_frame_header, encode_frame
from ...remote.limits import FRAME_HEADER_BYTES
from .. import scenes
from .case import Callables, compile_file, task_args_by
from .plugin import require_simulated

log = logging.getLogger("simpler_ref")


# ---------------------------------------------------------------- simpler.worker
class Worker(worker.Worker):
    """A Worker with the original's names of parameters; those that mean nothing here it leaves out."""

    __signature__ = inspect.signature(worker.Worker)

    def __init__(self, *args: Any, **config: Any) -> None:
        known = self.__signature__.parameters
        for name in config.keys() - known:
            log.warning(
                "Worker(%s=%r): there is no such keyword here, it is left out", name, config[name]
            )
        super().__init__(*args, **{name: one for name, one in config.items() if name in known})

    def run(self, callable: Any, args: Any = None, config: Any = None) -> worker.RunTiming:
        """Run an orchestration function, or at level 2 a chip's callable; see `Worker.run`."""
        return super().run(callable, args, config)


# ---------------------------------------------------------------- simpler.env_manager
def get(name: str, default: str | None = None) -> str | None:
    """Return the value of an environment variable, or `default` if it is not set or empty."""
    return os.environ.get(name) or default


def ensure(name: str) -> str:
    """Return the value of an environment variable; OSError if it is not set, or empty."""
    value = os.environ.get(name)
    if not value:
        raise OSError(f"the environment variable {name} is not set: export {name}=…")
    return value


# ---------------------------------------------------------------- simpler.log_levels
LEVELS = {f"V{i}": logging.INFO - 5 + i for i in range(10)} | {"NUL": logging.CRITICAL + 10}
"""From most to least around INFO; with NUL nothing is logged. `logging` knows these names, too."""
for _name, _level in (LEVELS | {"INFO": logging.INFO}).items():  # V5 is another name of INFO
    logging.addLevelName(_level, _name)


# ---------------------------------------------------------------- simpler.task_interface
class ChipWorker(chip_worker.ChipWorker):
    """A chip whose number may be given when it is opened; what a `RuntimeBuilder` returns may be, too."""

    def init(self, device_id: int | None = None, bins: RuntimeBinaries | None = None) -> None:
        """Load the runtime and open the device; see `native_chip.ChipWorker.init`."""
        if device_id is not None and not self.initialized:
            self.__init__(device_id, None if bins is None else bins.host_path)  # type: ignore[misc]
        super().init()


# ---------------------------------------------------------------- simpler.remote_l3_protocol
def read_exact(sock: socket.socket, n: int) -> bytes:
    """Return the next bytes of a connection; EOFError if it ends before."""
    found = bytearray()
    while len(found) < n:
        part = sock.recv(n - len(found))
        if not part:
            raise EOFError(f"the connection has ended after {len(found)} of {n} bytes")
        found += part
    return bytes(found)


def read_frame(sock: socket.socket) -> Frame:
    """Return the next frame of a connection."""
    head = read_exact(sock, FRAME_HEADER_BYTES)
    return decode_frame(head + read_exact(sock, decode_frame_header(head).payload_bytes))


def send_frame(sock: socket.socket, header: FrameHeader, payload: bytes = b"") -> None:
    """Send a frame."""
    sock.sendall(encode_frame(header, payload))


# ---------------------------------------------------------------- simpler_setup.torch_interop
def torch_dtype_to_datatype(dt: Any) -> DataType:
    """Return the DataType of an element type of torch; KeyError if there is none."""
    return DataType[str(dt).removeprefix("torch.").upper()]


def make_tensor_arg(tensor: Any) -> ContinuousTensor:
    """Describe a tensor of torch, or an array, whose elements follow each other.

    Raises
    ------
    TypeError, ValueError
        It is none; it is a view with gaps, or has elements of no DataType; workers cannot see its memory.
    """
    made = make_tensor(tensor)
    if isinstance(made, DescribedTensor):
        raise ValueError(
            f"{made!r} is not a contiguous tensor of a DataType: give a copy, tensor.contiguous(); "
            "TaskArgs.add_tensor also takes views"
        )
    return made


# ---------------------------------------------------------------- simpler_setup.scene_test
def _build_chip_task_args(
    test_args: Any, orch_signature: Sequence[Any]
) -> tuple[ChipStorageTaskArgs, list[str]]:
    """Return the arguments of a run of a chip, and the names of what it writes."""
    made, names = task_args_by(test_args, orch_signature)
    storage = ChipStorageTaskArgs()
    for i in range(made.tensor_count()):
        storage.add_tensor(made.tensor(i))
    for i in range(made.scalar_count()):
        storage.add_scalar(made.scalar(i))
    return storage, names


# ---------------------------------------------------------------- simpler_setup.kernel_compiler
class KernelCompiler:
    """Compiles sources in C or C++ for the simulated chip, to what `CoreCallable.build` takes.

    Attributes
    ----------
    project_root : Path
        Where the program says its sources are: the environment variable SIMPLER_ROOT, or the current
        folder.
    """

    def __init__(self, platform: str = "a2a3sim") -> None:
        require_simulated(platform)
        self.platform = platform
        self.project_root = Path(os.environ.get("SIMPLER_ROOT") or os.curdir).resolve()

    def get_platform_include_dirs(self) -> list[str]:
        """Return the folder of this package's headers."""
        return [str(INCLUDE_DIR)]

    get_incore_include_dirs = get_platform_include_dirs

    def get_orchestration_include_dirs(self, runtime_name: str) -> list[str]:
        """Return the folder of this package's headers, if there is such a runtime."""
        _require_runtime(runtime_name)
        return self.get_platform_include_dirs()

    def compile_incore(
        self,
        source_path: str | os.PathLike[str],
        core_type: str = "aiv",
        pto_isa_root: str | os.PathLike[str] | None = None,
        extra_include_dirs: Sequence[str | os.PathLike[str]] | None = None,
        build_dir: str | os.PathLike[str] | None = None,
    ) -> bytes:
        """Compile a kernel, which exports ``simpler_kernel``; see `simpler_kernel.h`.

        Parameters
        ----------
        source_path
            A file in C (``.c``) or C++.
        core_type
            "aic" or "aiv": cores of the simulated chip are all alike.
        pto_isa_root
            A folder whose ``include`` has more headers.
        extra_include_dirs
            Folders of headers.
        build_dir
            Where the shared object is left as well.

        Raises
        ------
        FileNotFoundError, ValueError
            There is no such file or type of core.
        KernelCompileError
            The compiler's complaints, a RuntimeError.
        """
        if core_type not in ("aic", "aiv"):
            raise ValueError(f"core_type={core_type!r}: it is 'aic' or 'aiv'")
        isa = [] if pto_isa_root is None else [Path(pto_isa_root, "include")]
        return _compiled(source_path, [*isa, *(extra_include_dirs or ())], build_dir)

    def compile_orchestration(
        self,
        runtime_name: str,
        source_path: str | os.PathLike[str],
        extra_include_dirs: Sequence[str | os.PathLike[str]] | None = None,
        build_dir: str | os.PathLike[str] | None = None,
    ) -> bytes:
        """Compile an orchestration function; see `compile_incore`."""
        _require_runtime(runtime_name)
        return _compiled(source_path, extra_include_dirs or (), build_dir)


def _compiled(source: Any, folders: Sequence[Any], build_dir: Any) -> bytes:
    made = compile_file(source, folders)
    if build_dir is not None:
        Path(build_dir, Path(source).name).with_suffix(".so").write_bytes(made)
    return made


def _require_runtime(name: str) -> None:
    if name not in chip_worker.SIMULATED:
        raise ValueError(
            f"there is no runtime {name!r}; there are {', '.join(chip_worker.SIMULATED)}"
        )


# ---------------------------------------------------------------- simpler_setup.pto_isa, .elf_parser
def ensure_pto_isa_root(**_how: Any) -> str:
    """Return the folder of the instructions' headers, which the variable PTO_ISA_ROOT names.

    Nothing is fetched: what the original wants to know for that is ignored.

    Raises
    ------
    OSError
        The variable is not set, or names no folder with an ``include``.
    """
    root = os.environ.get("PTO_ISA_ROOT", "")
    if not Path(root, "include").is_dir():
        raise OSError(
            f"PTO_ISA_ROOT={root!r} has no folder include: set the variable to a checkout of the "
            "instructions' headers, which are not part of this package; a kernel that does without them "
            "needs no root"
        )
    return root


def extract_text_section(obj_input: str | os.PathLike[str] | bytes) -> bytes:
    """Return a binary as it is, or that of a file: the simulated chip loads all of it."""
    return obj_input if isinstance(obj_input, bytes) else Path(obj_input).read_bytes()


# ---------------------------------------------------------------- simpler_setup.runtime_builder
class RuntimeBinaries(NamedTuple):
    """The files of a runtime: one, in each of its parts."""

    host_path: Path
    aicpu_path: Path
    aicore_path: Path
    sim_context_path: Path | None = None


class RuntimeBuilder:
    """Finds the runtime of the simulated chip, which is compiled when the package is installed."""

    def __init__(self, platform: str = "a2a3sim") -> None:
        require_simulated(platform)
        self.platform = platform

    def list_runtimes(self) -> list[str]:
        """Return the names under which it is known."""
        return list(chip_worker.SIMULATED)

    def get_binaries(self, name: str, build: bool = False) -> RuntimeBinaries:
        """Return its files; ValueError if there is no such runtime."""
        _require_runtime(name)
        return RuntimeBinaries(*[Path(chip_worker.default_runtime())] * 3)


# ---------------------------------------------------------------- simpler_setup.log_config
LOG_LEVEL_CHOICES = ["debug", *(name.lower() for name in LEVELS), "info", "warn", "error"]
DEFAULT_LOG_LEVEL = "info"


def configure_logging(log_level: str = DEFAULT_LOG_LEVEL) -> None:
    """Have the root logger show a level and those above, in this process and those that it starts.

    Raises
    ------
    ValueError
        There is no such level; capital letters do not matter.
    """
    if log_level.lower() not in LOG_LEVEL_CHOICES:
        raise ValueError(f"log_level={log_level!r}: it is one of {', '.join(LOG_LEVEL_CHOICES)}")
    name = log_level.upper()
    level = LEVELS.get(name, logging.getLevelName("WARNING" if name == "WARN" else name))
    logging.basicConfig(level=level, format="[%(levelname)s] %(message)s", force=True)
    os.environ["PTO_LOG_LEVEL"] = log_level.lower()


# ---------------------------------------------------------------- the original's names
def _named(*found: Callable[..., Any]) -> dict[str, Any]:
    return {one.__name__: one for one in found}


SETUP: Mapping[str, Mapping[str, Any]] = {
    "torch_interop": _named(make_tensor_arg, torch_dtype_to_datatype),
    "kernel_compiler": _named(KernelCompiler),
    "pto_isa": _named(ensure_pto_isa_root),
    "elf_parser": _named(extract_text_section),
    "runtime_builder": _named(RuntimeBuilder, RuntimeBinaries),
    "scene_test": {
        **{name: getattr(scenes, name) for name in scenes.__all__},
        "CallableNamespace": Callables,
        "_build_chip_task_args": _build_chip_task_args,
        "_build_l3_task_args": task_args_by,
    },
    "log_config": {"LOG_LEVEL_CHOICES": LOG_LEVEL_CHOICES, "DEFAULT_LOG_LEVEL": DEFAULT_LOG_LEVEL}
    | _named(configure_logging),
    "goldens": {},
}
"""The modules of the package `simpler_setup`, which has all their names as well."""
MORE: Mapping[str, Mapping[str, Any]] = {
    "simpler.worker": _named(Worker),
    "simpler.task_interface": _named(ChipWorker),
    "_task_interface": _named(ChipWorker),
    "simpler.remote_l3_protocol": _named(read_exact, read_frame, send_frame),
}
"""What modules of `simpler` have beside that of the modules that they are."""


@functools.cache
def modules() -> dict[str, types.ModuleType]:
    """Return the modules by their names.

    Those in `goldens` are the original's files, or others, in the folders that SIMPLER_GOLDENS names.
    """
    setup = _module("simpler_setup", {k: v for names in SETUP.values() for k, v in names.items()})
    made = {
        "simpler_setup": setup,
        "simpler.env_manager": _module("simpler.env_manager", _named(get, ensure)),
        "simpler.log_levels": _module("simpler.log_levels", {"LEVELS": LEVELS, **LEVELS}),
    }
    for name, names in SETUP.items():
        made[f"simpler_setup.{name}"] = _module(f"simpler_setup.{name}", names)
        if name not in vars(setup):  # the decorator, in place of the module of its name
            setattr(setup, name, made[f"simpler_setup.{name}"])
    folders = os.environ.get("SIMPLER_GOLDENS", "goldens").split(os.pathsep)
    setup.__path__, made["simpler_setup.goldens"].__path__ = [], folders
    return made


def _module(name: str, names: Mapping[str, Any]) -> types.ModuleType:
    made = types.ModuleType(name, __doc__)
    vars(made).update(names)
    return made
