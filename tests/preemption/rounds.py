"""One round: a random program runs while tracers get in the way of its threads; what becomes of it.

A round fails if the program ends by a signal, says that something was wrong, or hangs: when the tracers
have let go of it, nobody is slower than others, and it has HANG_S to come to its end.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..system.programs import ROOT, _end_of_file
from .shapes import KILL, MAIN, SLOW, Victim, shape_of

SOURCE = Path(__file__).with_name("tracer.c")
START_S = 120.0
"""How long a program may take until its workers are there; kernels may have to be compiled."""
HANG_S = 60.0
"""How long a program may take to end once nobody is in its way any more."""
AFTER_S = 0.5
"""How long the tracers stay when a program should have begun to close."""
ANSWER_S = 2.0
"""How long a program that hangs may take to say what state it is in."""
NOT_PERMITTED, GONE = 4, 3


SUBJECT = """
import time
from tests.preemption.permission import allow_tracing
allow_tracing()
print(flush=True)
time.sleep(60)
"""
"""A program that may be traced, if any may."""


class Outcome(NamedTuple):
    """What became of a round."""

    seed: int
    failure: str
    """Nothing if all was well."""
    report: str
    tracers: dict[Victim, Counter]
    """What was done to whom, and how often."""
    acts: int
    tasks: int
    lost: int
    """Acts that the death of a worker has ended."""

    def __str__(self) -> str:
        tracers = [
            f"{who} {how}: " + ", ".join(f"{times} {what}" for what, times in done.items())
            for (who, how), done in self.tracers.items()
        ]
        did = f"{self.acts} acts, {self.tasks} tasks, {self.lost} acts lost; {'; '.join(tracers)}"
        if not self.failure:
            return f"seed {self.seed}: {did}"
        return (
            f"seed {self.seed}: {self.failure}\n{shape_of(self.seed)}\n{did}\n{self.report}\n"
            f"repeat it with: python -m tests.preemption 300 {self.seed}"
        )


# ---------------------------------------------------------------- the tracer
class NoTracer(Exception):
    """Nothing can be traced here; the text says why."""


def build(folder: Path) -> Path:
    """Compile the tracer into a folder, and try it.

    Raises
    ------
    NoTracer
    """
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
        raise NoTracer(
            f"the tracer knows Linux on x86-64 and aarch64, this is {sys.platform} on {machine}"
        )
    if machine == "aarch64" and " atomics" not in Path("/proc/cpuinfo").read_text():
        raise NoTracer("single steps break the exclusive loads of a processor without LSE atomics")
    if shutil.which("cc") is None:
        raise NoTracer("there is no C compiler: cc")
    made, strict = folder / "tracer", ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *strict, "-o", made, SOURCE, "-lm"], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", SUBJECT], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        tracer = Tracer(made, Victim(MAIN, SLOW), other.pid, 0)
        status = tracer.stop()
        other.kill()
    if status != 0:
        raise NoTracer(f"ptrace is not permitted: {tracer.said}")
    return made


class Tracer:
    """A tracer at work."""

    def __init__(self, program: Path, victim: Victim, thread: int, seed: int):
        self.victim, self.said = victim, ""
        self.process = subprocess.Popen(
            [program, victim.how, str(thread), str(seed)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()  # that it is at work, or why it is not

    def stop(self) -> int:
        """Have it let go of its thread; return its exit status."""
        self.process.terminate()
        out, _ = self.process.communicate()
        self.said = f"{self.first}{out}".strip()
        return self.process.returncode

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def done(self) -> Counter:
        """Return what it has done, once it has stopped."""
        pairs = re.findall(r"(\d+) (steps|stops|in compiled code|kills)", self.said)
        return Counter({what: int(times) for times, what in pairs})


# ---------------------------------------------------------------- a round
class Round:
    """A program, and those who get in its way."""

    def __init__(self, tracer: Path, seed: int, seconds: float):
        self.tracer, self.seconds = tracer, seconds
        self.shape = shape_of(seed)
        self.rng = random.Random(f"{seed} tracers")
        self.at_work: dict[Victim, Tracer] = {}
        self.done: dict[Victim, Counter] = {victim: Counter() for victim in self.shape.victims}
        self.heard: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.said: dict[str, Any] = {}
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.lifeline, theirs = os.pipe()
        self.program = subprocess.Popen(
            [sys.executable, *self.command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            pass_fds=[theirs],
            cwd=ROOT,
            start_new_session=True,
        )
        os.close(theirs)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def command(self) -> list[str]:
        return ["-m", f"{__package__}.program", str(self.shape.seed), str(self.seconds)]

    def run(self) -> Outcome:
        try:
            failure = self.play()
        finally:
            outlived = self.end()
        self.errors.seek(0)
        with self.errors:
            report = self.errors.read().decode(errors="replace")
        if not failure and outlived:
            failure = "processes outlive the program"
        done = self.said.get("done", {"acts": 0, "tasks": 0, "lost": 0})
        return Outcome(self.shape.seed, failure, report, self.done, **done)

    def play(self) -> str:
        """Get in the program's way; return what went wrong."""
        if not self.hears("parties", START_S):
            return self.how_it_ended() if "end" in self.said else "it did not start"
        end = time.monotonic() + self.seconds + AFTER_S
        while time.monotonic() < end and "end" not in self.said:
            self.trace_who_is_there()
            self.hears("end", 0.01)
        for victim in list(self.at_work):
            self.let_go(victim)
        if not self.hears("end", HANG_S):
            self.ask_for_state()
            return f"it hangs: it did not end within {HANG_S:g} s without a tracer"
        return self.how_it_ended()

    def how_it_ended(self) -> str:
        code = self.program.wait()
        if "wrong" in self.said:
            return f"wrong: {self.said['wrong']}"
        if code < 0:
            return f"it crashed: {signal.Signals(-code).name}"
        return f"it ended with status {code}" if code else ""

    def end(self) -> bool:
        """End everything; say whether processes have outlived the program."""
        for victim in list(self.at_work):
            self.let_go(victim)
        self.program.kill()
        self.program.wait()
        outlived = not _end_of_file(self.lifeline)
        os.close(self.lifeline)
        assert self.program.stdin is not None
        with suppress(BrokenPipeError):
            self.program.stdin.close()
        self.reader.join()
        return outlived

    # ------------------------------------------------------------ tracers
    def trace_who_is_there(self) -> None:
        """Give each victim a tracer; another one when it has died of the last."""
        for victim in self.shape.victims:
            if victim in self.at_work:
                if victim.how != KILL or not self.at_work[victim].has_ended():
                    continue
                self.let_go(victim)
            threads = [t for t in self.said["parties"].get(victim.who, []) if self.is_ours(t)]
            if threads:
                thread, seed = self.rng.choice(threads), self.rng.getrandbits(48)
                self.at_work[victim] = Tracer(self.tracer, victim, thread, seed)

    def is_ours(self, thread: int) -> bool:
        """Say whether a thread is still one of the program, and not somebody else with its number."""
        try:
            return os.getsid(thread) == self.program.pid
        except ProcessLookupError:
            return False

    def let_go(self, victim: Victim) -> None:
        tracer = self.at_work.pop(victim)
        assert tracer.stop() in (0, GONE, NOT_PERMITTED), tracer.said  # not of a process that ends
        self.done[victim] += tracer.done()

    # ------------------------------------------------------------ what the program says
    def read(self) -> None:
        assert self.program.stdout is not None
        with self.program.stdout as lines:
            for line in lines:
                word, _, what = line.decode().partition(" ")
                self.heard.put((word, json.loads(what)))
        self.heard.put(("end", None))

    def hears(self, wanted: str, seconds: float) -> bool:
        """Take note of what the program says until it says a certain word; say whether it did."""
        deadline = time.monotonic() + seconds
        while wanted not in self.said and "end" not in self.said:
            try:
                word, what = self.heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return False
            self.said[word] = what
        return wanted in self.said

    def ask_for_state(self) -> None:
        """Have a program that hangs say what state it is in, and all its processes where they are."""
        self.program.send_signal(signal.SIGQUIT)
        time.sleep(ANSWER_S)
        for thread in [self.program.pid, *self.said["parties"]["worker"]]:
            if self.is_ours(thread):
                os.kill(thread, signal.SIGUSR1)
                time.sleep(0.3)
