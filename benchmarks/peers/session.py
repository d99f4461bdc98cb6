"""Talks to a runner: asks, waits for the answer no longer than agreed, and ends all its processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

END_S = 15.0
"""How long a runner may take to end by itself."""


class LateError(Exception):
    """A runner did not answer in time."""


class BrokenError(Exception):
    """A runner ended without an answer, or reported an error."""


class UnsupportedError(Exception):
    """A runner has no such notion."""


class Session:
    """A runner, from its start to its end.

    Raises
    ------
    LateError, BrokenError
        It did not become ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        log: Path,
        timeout_s: float,
    ) -> None:
        begin = time.perf_counter()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(variables),
                cwd=log.parent,
                start_new_session=True,
            )
        self._unread = b""
        self._log = log
        try:
            ready = self._answer(timeout_s)
        except BaseException:
            self.close(patience_s=0.0)
            raise
        self.start_s = time.perf_counter() - begin
        self.started_bytes = sum(one.memory_full_info().pss for one in self._family())
        """Memory of the processes that the runner has started; what several share is divided."""
        self.versions: dict[str, str] = ready["versions"]
        self.seconds_per_spin: float = ready["seconds_per_spin"]

    def ask(self, request: str, timeout_s: float) -> tuple[list[float], int]:
        """Return the seconds of each run, and how many tasks a run has.

        Raises
        ------
        LateError, BrokenError, UnsupportedError
            There is no such figure; the text says why.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise BrokenError(f"it has ended; see {self._log.name}") from None
        answer = self._answer(timeout_s)
        if "unsupported" in answer:
            raise UnsupportedError(answer["unsupported"])
        if "error" in answer:
            raise BrokenError(answer["error"])
        return answer["seconds"], answer["tasks"]

    def _answer(self, timeout_s: float) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise LateError(f"no answer within {timeout_s:g} s")
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise BrokenError(f"it has ended; see {self._log.name}")
            self._unread += part
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)

    def close(self, patience_s: float = END_S) -> None:
        """Let the runner end, and after some patience end it, with all it started."""
        if self._process.stdout is None or self._process.stdout.closed:
            return
        family = self._family()
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()  # type: ignore[union-attr]
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        finally:
            self._end(family)
            self._process.stdout.close()

    def _family(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def _end(self, family: list[psutil.Process]) -> None:
        """End the runner's process group, and processes below it that have left the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for one in family:
            try:
                one.kill()  # psutil makes sure that the number has not passed to another process
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=END_S)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
