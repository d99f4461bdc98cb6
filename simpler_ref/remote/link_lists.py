"""Task lists in the link of an endpoint: to its session, with what they read of the program's memory.

Rule     SPEED-LIST-1, SPEED-LIST-5
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from ..callables.identity import CallableHandle, CallableKind, TargetNamespace
from ..engine.view.mailbox import ReceivedArgs, call_words
from ..errors import RemoteError, TransferError
from .channels import LOOK_MS
from .copies import window_key
from .fail_points import fail_point
from .frames import CompletionPayload, OwnFrameType, decode_completion
from .limits import TASKS
from .link_tasks import require_done
from .lists import (
    LIST_OPENED,
    LIST_REQUEST,
    OPEN_LIST,
    RUN_LIST,
    ListOpening,
    ListRequest,
    ListRun,
    ProgramTensor,
)
from .mover import Span
from .requests import PickledRegistration
from .windows import bytes_at

if TYPE_CHECKING:
    from .link import Link

HANDLE = CallableHandle(
    f"sha256:{sha256(b'the task lists of graphs').hexdigest()}",
    CallableKind.PYTHON_IMPORT,
    TargetNamespace.REMOTE_TASK_DISPATCHER,
    "replay",
)
"""Of the tasks that are lists."""


class OfLists(PickledRegistration):
    """The one callable of the lists of all graphs: links find the list of each task."""

    def runner_for(self, link: Link) -> Callable[[ReceivedArgs], None]:
        """Return what a link runs lists with."""
        return LinkLists(link).run


class LinkLists:
    """Task lists, as one link has its session carry them out."""

    def __init__(self, link: Link) -> None:
        self._link, self._memory = link, link.memory
        self._view = link.mailbox.engine.view
        self._is_stopped = False
        """Whether the session was told to end the list that it carries out."""

    def run(self, args: ReceivedArgs) -> None:
        """Have the session carry a list out, of which the scalars say where the request is."""
        link = self._link
        _, (address, size, *_), _ = call_words(args)
        asked = LIST_REQUEST.decode(ctypes.string_at(address, size))
        link.tasks.settle_all()
        opening = ListOpening(asked.number, asked.raw, asked.token, asked.forgotten)
        opened = link.receive(link.post(OwnFrameType.OPEN_LIST, OPEN_LIST.encode(opening)))
        if error := LIST_OPENED.decode(opened.payload).error:
            raise RemoteError(f"{link.place.name}: {error}")
        peers = [link.mover_of(one + 1) for one in asked.peers]
        told = RUN_LIST.encode(ListRun(asked.token, peers, asked.scalars))
        sequence = link.post(OwnFrameType.RUN_LIST, told)
        fail_point("list_sent")
        self._is_stopped = False
        failure = self._exchange(asked, bytes_at(address + size, len(asked.goes)))
        done = self._await(sequence)
        fail_point("list_ended")
        link.words[TASKS] += asked.tasks
        if failure is not None and not failure.refused:
            raise failure
        require_done(link, done)
        if failure is not None:
            raise failure

    def _exchange(self, asked: ListRequest, partly: memoryview) -> TransferError | None:
        """Give what the list reads, and take what it makes as it does; return what went wrong.

        `partly` has a byte for each tensor that comes home, which is 1 while a part of it is here.
        """
        try:
            if asked.comes:
                comes = _spans(asked.token, asked.comes)
                self._memory.mover.store_all(self._memory.address, comes)
            goes = _spans(asked.token, asked.goes)
            if not self._memory.bring_made(asked.token, goes, self._look, partly):
                return TransferError("the endpoint has not made all that it should", refused=True)
        except TransferError as error:
            self._stop()
            return error
        return None

    def _await(self, sequence: int) -> CompletionPayload:
        link = self._link
        while not link.has_answer(sequence):
            if not link.wait_for_answer(LOOK_MS):
                self._look()
        return decode_completion(link.receive(sequence, link.mailbox.task_number).payload)

    def _look(self) -> None:
        """Stop the list if the run has failed elsewhere, or was cancelled."""
        if self._view.has_failed or self._view.is_cancelled:
            self._stop()

    def _stop(self) -> None:
        if not self._is_stopped:
            self._link.post(OwnFrameType.STOP_LIST, b"")
            self._is_stopped = True


def _spans(token: int, tensors: Sequence[ProgramTensor]) -> list[Span]:
    return [Span(window_key(token, one.number), one.address, one.nbytes) for one in tensors]


__all__ = ["HANDLE", "LinkLists", "OfLists"]
