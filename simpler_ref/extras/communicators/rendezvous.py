"""How processes of one user that know a name come together, and exchange a few words each.

The first of them, the *leader*, listens at an abstract Unix socket, which the system removes with the
process. All others connect, say something, and get one answer, with a descriptor if there is one.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple

Words = dict[str, Any]
"""What is said: JSON."""

_LONGEST = 1 << 16
_CREDENTIALS = struct.Struct("iII")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02


class Answer(NamedTuple):
    """What all get."""

    words: Words
    fd: int = -1


class Rendezvous(NamedTuple):
    """Where and with whom: each member is there once, under its index in `members`."""

    name: str
    members: Sequence[int]
    """For messages: the ranks that meet."""
    timeout_s: float

    def lead(self, said: Words, decide: Callable[[list[Words]], Answer]) -> Answer:
        """Be the first member: hear all others, and give them the answer that `decide` finds.

        Raises
        ------
        RuntimeError
            Others have not come in time, or somebody else is the leader.
        """
        deadline = time.monotonic() + self.timeout_s
        heard = [said] + [{}] * (len(self.members) - 1)
        others: dict[int, socket.socket] = {}
        with (
            ExitStack() as stack,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        ):
            try:
                listening.bind(address_of(self.name))
            except OSError as error:
                raise RuntimeError(
                    f"another program is rank {self.members[0]} under the name {self.name!r} at the "
                    "moment: take another name"
                ) from error
            listening.listen(len(self.members))
            while len(others) < len(self.members) - 1:
                _wait_at_most(listening, deadline)
                try:
                    one = stack.enter_context(listening.accept()[0])
                except TimeoutError:
                    missing = [rank for i, rank in enumerate(self.members) if i and i not in others]
                    raise self._late(", ".join(f"rank {rank}" for rank in missing)) from None
                _wait_at_most(one, deadline)
                with suppress(OSError):  # it has gone
                    sent = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                    if _CREDENTIALS.unpack(sent)[1] != os.getuid() or not (
                        raw := one.recv(_LONGEST)
                    ):
                        continue
                    words = json.loads(raw)
                    i = words["index"]
                    if i >= len(self.members):
                        count = len(self.members)
                        why = f"there are {count} ranks, says rank {self.members[0]}"
                        _send(one, Answer({"error": why}))
                    elif i in others:
                        _send(one, Answer({"error": f"rank {self.members[i]} is there already"}))
                    else:
                        heard[i], others[i] = words, one
            answer = decide(heard)
            for one in others.values():
                with suppress(OSError):  # it has gone
                    _send(one, answer)
        return answer

    def join(self, index: int, said: Words) -> Answer:
        """Be another member: say something, and return the answer.

        Raises
        ------
        RuntimeError
            The leader has not come in time, or has gone.
        """
        deadline = time.monotonic() + self.timeout_s
        gone = RuntimeError(f"rank {self.members[0]} has gone: it says why")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            self._connect(one, deadline)
            _wait_at_most(one, deadline)
            try:
                one.send(json.dumps({**said, "index": index}).encode())
                answer, fds, _flags, _from = socket.recv_fds(one, _LONGEST, 1)
            except TimeoutError:
                raise self._late("another rank") from None
            except OSError as error:
                raise gone from error
        if not answer:
            raise gone
        return Answer(json.loads(answer), fds[0] if fds else -1)

    def _connect(self, one: socket.socket, deadline: float) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                one.connect(address_of(self.name))
                return
            except (ConnectionRefusedError, BlockingIOError):
                if time.monotonic() > deadline:
                    raise self._late(f"rank {self.members[0]}") from None
            time.sleep(pause)  # nothing tells when a name comes into being
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _late(self, who: str) -> RuntimeError:
        return RuntimeError(f"{who} has not come within {self.timeout_s:g} s; all must call this")


def _wait_at_most(one: socket.socket, deadline: float) -> None:
    one.settimeout(max(0.001, deadline - time.monotonic()))


def _send(one: socket.socket, answer: Answer) -> None:
    raw = json.dumps(answer.words).encode()
    socket.send_fds(one, [raw], [answer.fd] if answer.fd >= 0 else [])


def address_of(name: str) -> str:
    """Return the address of the socket for a name."""
    return "\0simpler_ref." + hashlib.sha256(f"{os.getuid()} {name}".encode()).hexdigest()
