"""REMOTE-PART: parts of recorded graphs in frames."""

import struct
from dataclasses import replace

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.remote import copies, task_messages
from simpler_ref.remote.frames import TASK_FRAMES, UNANSWERED, OwnFrameType
from simpler_ref.remote.part_programs import NOBODY, LoadedPart, Pause, Sending
from simpler_ref.remote.part_runs import Parts
from simpler_ref.remote.parts import (
    PARENT,
    PART,
    PART_RUN,
    Action,
    Operation,
    Part,
    PartRun,
    PartScalar,
    PartTensor,
    PartUse,
)
from simpler_ref.task_interface import ContinuousTensor, DataType, TensorArgType

from .test_frame import blob, written_as

DIGEST = bytes(range(32))
FORM = ContinuousTensor.make(0, (2, 3), DataType.INT32)
FORM_RAW = struct.pack("<Q5IIIB7x", 0, 2, 3, 0, 0, 0, 2, 2, 0)
USE = PartUse(1, TensorArgType.INOUT, FORM, "[1]")
USE_RAW = struct.pack("<II", 1, TensorArgType.INOUT) + FORM_RAW + blob(b"[1]")
RUN = Operation(Action.RUN, 0, (USE,), (PartScalar(9, L.RAW, 2),))
RUN_RAW = struct.pack("<III", 1, 0, 1) + USE_RAW + struct.pack("<IQII", 1, 9, L.RAW, 2)
RUN_RAW += struct.pack("<IIQ", 0, 0, 0)
SEND = Operation(Action.SEND, tensor=1, peer=3, number=7)
SEND_RAW = struct.pack("<IIIIIIQ", 2, 0, 0, 0, 1, 3, 7)
WHOLE = Part((DIGEST,), (PartTensor(8, 1), PartTensor(24)), (RUN, SEND), (0,))
WHOLE_RAW = struct.pack("<I", 1) + DIGEST + struct.pack("<IQIQI", 2, 8, 1, 24, 0)
WHOLE_RAW += struct.pack("<I", 2) + RUN_RAW + SEND_RAW + struct.pack("<II", 1, 0)
ASKED = PartRun(5, b"part", 77, ("tcp://a:1", ""), (1, 2), (4,))
ASKED_RAW = struct.pack("<Q", 5) + blob(b"part") + struct.pack("<QI", 77, 2)
ASKED_RAW += blob(b"tcp://a:1") + blob(b"") + struct.pack("<I2QIQ", 2, 1, 2, 1, 4)


@pytest.mark.spec("REMOTE-PART-1")
def test_the_frames_of_parts():
    assert (OwnFrameType.RUN_PART, OwnFrameType.STOP_PART) == (73, 74)
    assert OwnFrameType.RUN_PART in TASK_FRAMES and OwnFrameType.STOP_PART in UNANSWERED
    told = task_messages.Run(PART_RUN.encode(ASKED), run=3, tensors=(copies.CopiedTensor(7, 2, 3),))
    assert PART_RUN.decode(task_messages.RUN.decode(task_messages.RUN.encode(told)).task) == ASKED


@pytest.mark.spec("REMOTE-PART-2")
def test_a_replay_of_a_part():
    written_as(PART_RUN, ASKED, ASKED_RAW)
    for wrong in (
        replace(ASKED, number=0),
        replace(ASKED, token=0),
        replace(ASKED, forgotten=(0,)),
    ):
        with pytest.raises(ValueError, match="PART_RUN"):
            PART_RUN.encode(wrong)


@pytest.mark.spec("REMOTE-PART-3", "REMOTE-PART-4")
def test_a_part():
    written_as(PART, WHOLE, WHOLE_RAW)
    at = WHOLE_RAW.index(SEND_RAW)
    for action in (0, 5):
        with pytest.raises(ValueError, match="action"):
            PART.decode(WHOLE_RAW[:at] + struct.pack("<I", action) + WHOLE_RAW[at + 4 :])


WRONG = {
    "operations[0].callable: 1": replace(WHOLE, operations=(replace(RUN, callable=1),)),
    "uses.tensor: 2": replace(WHOLE, operations=(replace(RUN, uses=(replace(USE, tensor=2),)),)),
    "24 bytes is in memory of 8": replace(
        WHOLE, operations=(replace(RUN, uses=(replace(USE, tensor=0),)),)
    ),
    "operations[0].tensor: 2": replace(WHOLE, operations=(replace(SEND, tensor=2),)),
    "operations[1].tensor: 3": replace(
        WHOLE, operations=(RUN, Operation(Action.WAIT, tensor=3), SEND)
    ),
    "tag": replace(
        WHOLE, operations=(replace(RUN, uses=(replace(USE, tag=TensorArgType.NO_DEP),)),)
    ),
    "spoiled: 1 is not one of 1": replace(WHOLE, spoiled=(1,)),
    "nbytes": replace(WHOLE, tensors=(PartTensor(0),)),
    "digest|bytes are not 32": replace(WHOLE, callables=(b"short",)),
}


@pytest.mark.spec("REMOTE-PART-3")
@pytest.mark.parametrize("why", WRONG)
def test_a_part_that_is_not_consistent_is_refused(why):
    with pytest.raises(ValueError, match="remote_wire: PART") as caught:
        PART.encode(WRONG[why])
    assert any(word in str(caught.value) for word in why.split("|"))


class Nothing:
    """Stands for what a session has, and must not be asked."""

    def __getattr__(self, name):
        raise AssertionError(name)


@pytest.mark.spec("REMOTE-PART-2")
@pytest.mark.parametrize(
    ("asked", "told", "why"),
    [
        (replace(ASKED, part=b""), 1, "part 5 of a graph is not known"),
        (replace(ASKED, part=WHOLE_RAW), 0, "names 1 tensors, its replay 0"),
        (replace(ASKED, part=WHOLE_RAW), 1, "names 4 scalars, its replay 2"),
        (
            replace(ASKED, part=WHOLE_RAW, scalars=(1, 2, 3, 4)),
            1,
            "names 4 endpoints, its replay 2",
        ),
    ],
)
def test_a_replay_that_says_too_little_is_refused_before_anything_happens(asked, told, why):
    whole = replace(WHOLE, operations=(replace(RUN, uses=(replace(USE, layout=""),)), SEND))
    if asked.part:
        asked = replace(asked, part=PART.encode(whole))
    parts = Parts(*[Nothing()] * 7, 0.0)
    copied = [copies.CopiedTensor(7, 2, 3)] * told
    with pytest.raises(Exception, match=why):
        parts.run(task_messages.Run(b"", run=1, tensors=copied), asked)


COMES = Operation(Action.RECEIVE, tensor=0, peer=PARENT)
GOES = Operation(Action.SEND, tensor=0, peer=PARENT)


@pytest.mark.spec("REMOTE-PART-6")
def test_what_comes_from_the_parent_or_goes_there_has_a_place_among_the_named():
    part = Part((), (PartTensor(8, 1), PartTensor(8)), (COMES, GOES))
    raw = PART.encode(part)
    assert raw.endswith(struct.pack("<IIIIIIQI", 2, 0, 0, 0, 0, (1 << 32) - 1, 0, 0))
    assert PART.decode(raw) == part
    loaded = LoadedPart(part)
    assert (loaded.come, loaded.go, loaded.most_peer, loaded.pushes) == ([0], [0], -1, {})
    for one in COMES, GOES:
        with pytest.raises(ValueError, match=r"operations\[0\].peer.*does not name"):
            PART.encode(replace(part, operations=(replace(one, tensor=1),)))


def uses(*tensors, tag=TensorArgType.INPUT):
    return [PartUse(one, tag, FORM, "") for one in tensors]


@pytest.mark.spec("REMOTE-PART-5")
def test_what_operations_wait_for():
    makes = TensorArgType.OUTPUT_EXISTING
    again = Operation(Action.SEND, tensor=0, peer=3, number=8)
    early = Operation(Action.SEND, tensor=2, peer=3, number=9)
    wait = Operation(Action.WAIT, tensor=0)
    take = Operation(Action.RECEIVE, tensor=1, peer=3, number=10)
    new = Operation(Action.RECEIVE, tensor=3, peer=3, number=11)
    operations = [
        early,
        Operation(Action.RUN, 0, uses(0, tag=makes)),
        Operation(Action.RUN, 0, [*uses(0), *uses(1, tag=makes)]),
        SEND,
        again,
        wait,
        Operation(Action.RUN, 0, uses(0, 1)),
        take,
        Operation(Action.RUN, 0, uses(1)),
        wait,
        new,
    ]
    part = LoadedPart(Part((DIGEST,), [PartTensor(24)] * 4, operations, ()))
    pauses = [one for one in part.steps if isinstance(one, Pause)]
    assert pauses[:2] == [Pause(wait, [0, 1], True), Pause(take, [1, 2], True)]
    assert pauses[2:] == [Pause(wait, [2], True), Pause(new, (), False)]
    first, *others = (one for one in part.steps if not isinstance(one, Pause))
    assert first.sendings == [Sending(NOBODY, early), Sending(1, SEND), Sending(0, again)]
    assert [one.tasks for one in (first, *others)] == [2, 1, 1, 0, 0]
    assert not any(one.sendings for one in others)
