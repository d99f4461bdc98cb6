"""Makes what each peer needs: a Python environment of its own, or a compiled program.

Everything lies in one folder (``.peers``), which may be deleted at any time. What cannot be made raises
`SkippedError`, whose text says why.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from .catalogue import Peer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RUNNERS = HERE / "runners"
NATIVE = HERE / "native"
INSTALL_TIMEOUT_S = 900
COMPILE_TIMEOUT_S = 300
FLAGS = ("-O3", "-march=native", "-std=c++17", "-pthread")
LINK = {"openmp": ("-fopenmp",), "onetbb": ("-ltbb",), "taskflow": ()}
BLAS = ("-DWITH_BLAS", "-lopenblas")
TASKFLOW_SOURCE = "rapidfuzz==3.9.7"
"""A source archive on PyPI that contains Taskflow's headers; Debian and PyPI have no package of them."""


class SkippedError(Exception):
    """A peer cannot be had here; the text says why."""


class Environments:
    """A folder with everything the peers need.

    Parameters
    ----------
    folder : Path
        Where it lies.
    install : bool
        Whether packages may be installed; otherwise only what is there already is used.
    """

    def __init__(self, folder: Path, install: bool) -> None:
        self.folder = folder.resolve()
        self.install = install
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = self.folder / "home"
        self.home.mkdir(exist_ok=True)

    def command(self, peer: Peer) -> list[str]:
        """Return the command that starts a peer's runner; make what it needs first.

        Raises
        ------
        SkippedError
            Something cannot be installed or compiled.
        """
        if sys.version_info < peer.oldest:
            raise SkippedError(f"only Python {peer.oldest[0]}.{peer.oldest[1]} and later have it")
        if peer.runner.endswith(".cpp"):
            return [str(self._program(peer)), *peer.arguments]
        return [str(self._python(peer)), str(RUNNERS / peer.runner), *peer.arguments]

    def variables(self, peer: Peer, command: Sequence[str]) -> dict[str, str]:
        """Return the environment variables of a runner: one thread for numpy, a home of its own."""
        paths = [str(RUNNERS), str(ROOT)] if peer.own else [str(RUNNERS)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        return {
            **kept,
            "PATH": os.pathsep.join([str(Path(command[0]).parent), kept.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(paths),
            "HOME": str(self.home),
            "OPENBLAS_NUM_THREADS": "1",
            "STARPU_SILENT": "1",
            **dict(peer.environment),
        }

    def log(self, peer: Peer) -> Path:
        """Return where the output of a peer's installation goes."""
        return self.folder / f"{Path(peer.runner).stem}.log"

    # ------------------------------------------------------------ Python
    def _python(self, peer: Peer) -> Path:
        if not peer.packages:
            return Path(sys.executable)
        place = self.folder / Path(peer.runner).stem.removeprefix("run_")
        python, stamp = place / "bin" / "python", place / "installed"
        wanted = f"{sys.version}\n{' '.join(peer.packages)}\n"
        if stamp.exists() and stamp.read_text() == wanted:
            return python
        if not self.install:
            raise SkippedError(f"{peer.packages[0]} is not installed in {place.name}/")
        shutil.rmtree(place, ignore_errors=True)
        log = self.log(peer)
        self._run([sys.executable, "-m", "venv", str(place)], log, "no environment can be made")
        pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
        self._run([*pip, *peer.packages], log, f"pip cannot install {peer.packages[0]}")
        stamp.write_text(wanted)
        return python

    # ------------------------------------------------------------ C++
    def _program(self, peer: Peer) -> Path:
        name = Path(peer.runner).stem
        compiler = shutil.which("g++")
        if compiler is None:
            raise SkippedError("there is no g++")
        sources = [NATIVE / peer.runner, *sorted(NATIVE.glob("*.hpp"))]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
        program = self.folder / f"{name}-{digest}"
        if program.exists():
            return program
        build = [compiler, *FLAGS, str(sources[0]), "-o", str(program)]
        log = self.log(peer)
        if self.install:
            self._install_system(peer.system, log)
        found = self._where(name, log)
        why = ""
        for blas in (BLAS, ()):
            try:
                self._run([*build, *found, *blas], log, "it does not compile", COMPILE_TIMEOUT_S)
                return program
            except SkippedError as error:
                why = why or str(error)
        raise SkippedError(why)

    def _where(self, name: str, log: Path) -> tuple[str, ...]:
        """Return the compiler's options to find a library."""
        if name == "starpu":
            tool = shutil.which("pkg-config")
            asked = [str(tool), "--cflags", "--libs", "starpu-1.3"]
            done = subprocess.run(asked, capture_output=True, text=True) if tool else None
            if done is None or done.returncode:
                raise SkippedError("libstarpu-dev is not installed")
            return tuple(done.stdout.split())
        if name == "taskflow" and not Path("/usr/include/taskflow/taskflow.hpp").exists():
            return ("-I", str(self._taskflow_headers(log)))
        return LINK[name]

    def _taskflow_headers(self, log: Path) -> Path:
        place = self.folder / "taskflow"
        if not (place / "taskflow" / "taskflow.hpp").exists():
            if not self.install:
                raise SkippedError("taskflow/taskflow.hpp is not installed")
            package = TASKFLOW_SOURCE.split("==")[0]
            fetched = self.folder / "fetched"
            options = ["--no-deps", "--no-binary", package, "--dest", str(fetched)]
            self._run(
                [sys.executable, "-m", "pip", "download", *options, TASKFLOW_SOURCE],
                log,
                f"pip cannot download {TASKFLOW_SOURCE}",
            )
            unpack_headers(next(fetched.glob(f"{package}-*.tar.gz")), place)
        return place

    def _install_system(self, packages: Sequence[str], log: Path) -> None:
        """Install packages of the system if that is possible; the compiler says what is missing."""
        query = shutil.which("dpkg-query")
        missing = [
            package
            for package in packages
            if query is None
            or subprocess.run([query, "-s", package], capture_output=True).returncode
        ]
        tool = shutil.which("apt-get")
        if not missing or tool is None or os.geteuid():
            return
        command = [tool, "install", "--yes", "--no-install-recommends", *missing]
        for step in (command, [tool, "update"], command):
            try:
                self._run(step, log, "")
            except SkippedError:
                continue
            if step is command:
                return

    def _run(
        self, command: Sequence[str], log: Path, why: str, timeout_s: float = INSTALL_TIMEOUT_S
    ) -> None:
        """Run a command, its output into the log; raise SkippedError if it fails."""
        variables = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with log.open("a") as out:
            out.write(f"$ {' '.join(command)}\n")
            out.flush()
            begin = out.tell()
            try:
                code = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    timeout=timeout_s,
                ).returncode
            except subprocess.TimeoutExpired:
                raise SkippedError(f"{why}: no end within {timeout_s:g} s") from None
        if code:
            with log.open() as written:
                written.seek(begin)
                raise SkippedError(f"{why}: {first_complaint(written.read())}")


def first_complaint(output: str) -> str:
    """Return the first line that speaks of an error, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["it said nothing"])[0][:200]


def unpack_headers(archive: Path, place: Path) -> None:
    """Take Taskflow's headers out of a source archive: its ``extern/taskflow/taskflow``."""
    inside = re.compile(r"[^/]+/extern/taskflow/(taskflow/.+\.hpp)")
    with tarfile.open(archive) as contents:
        for member in contents.getmembers():
            match = inside.fullmatch(member.name)
            source = contents.extractfile(member) if match and member.isfile() else None
            if match and source is not None and ".." not in match[1]:
                target = place / match[1]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read())
