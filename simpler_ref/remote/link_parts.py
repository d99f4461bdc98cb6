"""Parts of recorded graphs in the link of an endpoint: to its session, with what a replay names.

Rule     SPEED-PARTS-1, -6, -10
"""

from __future__ import annotations

import ctypes
from hashlib import sha256
from typing import TYPE_CHECKING

from ..callables.identity import CallableHandle, CallableKind, TargetNamespace
from ..engine.view.mailbox import ReceivedArgs, call_words
from ..errors import TransferError
from .copies import ComingCopy, CopiedTensor
from .counters import TASKS
from .fail_points import fail_point
from .frames import CompletionPayload, OwnFrameType, decode_completion
from .home import Coming, Homing, opened, question
from .lines import LOOK_MS
from .link_tasks import require_done
from .parts import PART_REQUEST, PART_RUN, PartRequest, PartRun
from .requests import PickledRegistration
from .task_messages import RUN, Run
from .windows import bytes_at

if TYPE_CHECKING:
    from .link import Link

HANDLE = CallableHandle(
    f"sha256:{sha256(b'the parts of graphs').hexdigest()}",
    CallableKind.PYTHON_IMPORT,
    TargetNamespace.REMOTE_TASK_DISPATCHER,
    "replay",
)
"""Of the tasks that are parts."""


class OfParts(PickledRegistration):
    """The one callable of the parts of all graphs: links find the part of each task."""

    def runner_for(self, link: Link) -> LinkParts:
        """Return what a link runs parts with."""
        return LinkParts(link)


class LinkParts:
    """The parts of graphs, as one link has its session run them."""

    def __init__(self, link: Link) -> None:
        self._link, self._home = link, link.home
        self._view = link.mailbox.engine.view
        self._is_stopped = False
        """Whether the session was told to end the part that runs."""

    def run(self, args: ReceivedArgs) -> None:
        """Have the session run a part, of which the scalars say where the request is."""
        link, home = self._link, self._home
        _, (address, size, *_), _ = call_words(args)
        asked = PART_REQUEST.decode(ctypes.string_at(address, size))
        link.tasks.settle_all()
        home.begin(asked.run)
        coming = {
            one.key: (ComingCopy(one.key, one.reads, one.nbytes), one.address)
            for one in asked.tensors
            if one.reads and not home.has(one.key, one.reads)
        }
        asking = 0
        if coming:
            asking = link.post(OwnFrameType.OPEN_COPIES, question(asked.run, coming))
        copied = [CopiedTensor(one.key, one.reads, one.makes) for one in asked.tensors]
        sequence = link.post(OwnFrameType.RUN_PART, self._payload(asked, copied))
        fail_point("part_sent")
        self._is_stopped = False
        partly = bytes_at(address + size, len(asked.made))
        failure = self._exchange(asked, coming, asking, partly)
        done = self._await(sequence)
        fail_point("part_ended")
        home.note(copied, not done.error_code)
        link.words[TASKS] += asked.tasks
        if failure is not None and not (isinstance(failure, TransferError) and failure.refused):
            raise failure
        require_done(link, done)
        if failure is not None:
            raise failure

    def _exchange(
        self, asked: PartRequest, coming: Coming, asking: int, partly: bytearray | memoryview
    ) -> TransferError | MemoryError | None:
        """Store what the part reads, and bring home what it makes; return what went wrong.

        `asking` is the number of the frame that has told the session what comes, 0 if nothing does.
        """
        made = [asked.tensors[i] for i in asked.made]
        homings = [Homing(one.key, one.makes, one.makes, one.address, one.nbytes) for one in made]
        try:
            if asking:
                several = opened(coming, self._link.receive(asking).payload)
                self._home.store_opened(several)
                self._home.note_stored(one for one, _ in several)
            if not self._home.bring_made(asked.token, homings, self._look, partly):
                return TransferError("the endpoint has not made all that it should", refused=True)
        except (TransferError, MemoryError) as error:
            self._stop()
            return error
        return None

    def _payload(self, asked: PartRequest, copied: list[CopiedTensor]) -> bytes:
        peers = [self._link.mover_of(one + 1) for one in asked.peers]
        more = PART_RUN.encode(
            PartRun(asked.number, asked.part, asked.token, peers, asked.scalars, asked.forgotten)
        )
        return RUN.encode(Run(more, run=asked.run, tensors=copied, dropped=asked.dropped))

    def _await(self, sequence: int) -> CompletionPayload:
        """Wait for the end of a part; stop it if the run has failed elsewhere."""
        link = self._link
        while not link.has_answer(sequence):
            if not link.wait_for_answer(LOOK_MS):
                self._look()
        return decode_completion(link.receive(sequence, link.mailbox.task_number).payload)

    def _look(self) -> None:
        """Stop the part if the run has failed elsewhere, or was cancelled."""
        if self._view.has_failed or self._view.is_cancelled:
            self._stop()

    def _stop(self) -> None:
        if not self._is_stopped:
            self._link.post(OwnFrameType.STOP_PART, b"")
            self._is_stopped = True


__all__ = ["HANDLE", "LinkParts", "OfParts"]
