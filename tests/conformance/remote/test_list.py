"""REMOTE-LIST: task lists in frames, and how they are carried out."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from simpler_ref.jit import layout as L
from simpler_ref.remote.frames import TASK_FRAMES, UNANSWERED, OwnFrameType
from simpler_ref.remote.list_runs import Lists, LoadedList
from simpler_ref.remote.lists import (
    LIST,
    LIST_OPENED,
    OPEN_LIST,
    PARENT,
    RUN_LIST,
    Get,
    ListOpened,
    ListOpening,
    ListRun,
    ListScalar,
    ListStep,
    ListTask,
    ListUse,
    Show,
    TaskList,
)
from simpler_ref.task_interface import ContinuousTensor, DataType, TensorArgType

from .test_frame import blob, written_as

DIGEST = bytes(range(32))
FORM = ContinuousTensor.make(0, (2, 3), DataType.INT32)
FORM_RAW = struct.pack("<Q5IIIB7x", 0, 2, 3, 0, 0, 0, 2, 2, 0)
USE = ListUse(1, TensorArgType.INOUT, FORM, "[1]")
USE_RAW = struct.pack("<II", 1, TensorArgType.INOUT) + FORM_RAW + blob(b"[1]")
TASK = ListTask(0, (USE,), (ListScalar(9, L.RAW, 2),))
TASK_RAW = struct.pack("<II", 0, 1) + USE_RAW + struct.pack("<IQII", 1, 9, L.RAW, 2)
SHOW = Show(0, 1, 7, 2, True)
SHOW_RAW = struct.pack("<IIQII", 0, 1, 7, 2, 1)
GET = Get(1, 3, 8, (0,))
GET_RAW = struct.pack("<IIQII", 1, 3, 8, 1, 0)
COMES = Get(0, PARENT, 5)
COMES_RAW = struct.pack("<IIQI", 0, (1 << 32) - 1, 5, 0)
FIRST, SECOND = ListStep((COMES,), (), (TASK,), (SHOW,)), ListStep((GET,), (0,), (), ())
WHOLE = TaskList((DIGEST,), (8, 24), (FIRST, SECOND))
WHOLE_RAW = struct.pack("<I", 1) + DIGEST + struct.pack("<IQQ", 2, 8, 24)
WHOLE_RAW += struct.pack("<II", 2, 1) + COMES_RAW + struct.pack("<II", 0, 1) + TASK_RAW
WHOLE_RAW += struct.pack("<I", 1) + SHOW_RAW
WHOLE_RAW += struct.pack("<I", 1) + GET_RAW + struct.pack("<IIII", 1, 0, 0, 0)


@pytest.mark.spec("REMOTE-LIST-1")
def test_the_frames_of_lists():
    assert [OwnFrameType[f"{one}_LIST"] for one in ("OPEN", "RUN", "STOP")] == [73, 74, 75]
    assert OwnFrameType.RUN_LIST in TASK_FRAMES and OwnFrameType.STOP_LIST in UNANSWERED
    opening = ListOpening(5, b"list", 77, (4,))
    written_as(
        OPEN_LIST, opening, struct.pack("<Q", 5) + blob(b"list") + struct.pack("<QIQ", 77, 1, 4)
    )
    written_as(LIST_OPENED, ListOpened(3, "why"), struct.pack("<Q", 3) + blob(b"why"))
    raw = struct.pack("<QI", 77, 2) + blob(b"tcp://a:1") + blob(b"") + struct.pack("<I2Q", 2, 1, 2)
    written_as(RUN_LIST, ListRun(77, ("tcp://a:1", ""), (1, 2)), raw)
    for wrong in (replace(opening, number=0), replace(opening, token=0)):
        with pytest.raises(ValueError, match="OPEN_LIST"):
            OPEN_LIST.encode(wrong)


@pytest.mark.spec("REMOTE-LIST-2")
def test_a_list():
    written_as(LIST, WHOLE, WHOLE_RAW)


def first(**changed):
    return replace(WHOLE, steps=(replace(FIRST, **changed), SECOND))


def second(**changed):
    return replace(WHOLE, steps=(FIRST, replace(SECOND, **changed)))


WRONG = {
    "tasks.callable: 1": first(tasks=(replace(TASK, callable=1),)),
    "tasks.uses.slot: 2": first(tasks=(replace(TASK, uses=(replace(USE, slot=2),)),)),
    "24 bytes is in a slot of 8": first(tasks=(replace(TASK, uses=(replace(USE, slot=0),)),)),
    "tag": first(tasks=(replace(TASK, uses=(replace(USE, tag=TensorArgType.NO_DEP),)),)),
    "steps[0].gets.slot: 2": first(gets=(replace(COMES, slot=2),)),
    "steps[0].gets.users: 0": first(gets=(replace(COMES, users=(0,)),)),
    "steps[0].shown: 0": first(shown=(0,)),
    "steps[1].shown: 1": second(shown=(1,)),
    "shows.slot: 2": first(shows=(replace(SHOW, slot=2),)),
    "shows.task: 1": first(shows=(replace(SHOW, task=1),)),
    "LIST.slots": replace(WHOLE, slots=(0, 24)),
    "digest|bytes are not 32": replace(WHOLE, callables=(b"short",)),
}


@pytest.mark.spec("REMOTE-LIST-2")
@pytest.mark.parametrize("why", WRONG)
def test_a_list_that_is_not_consistent_is_refused(why):
    with pytest.raises(ValueError, match="remote_wire: LIST") as caught:
        LIST.encode(WRONG[why])
    assert any(word in str(caught.value) for word in why.split("|"))


class Nothing:
    """Stands for what a session has, and must not be asked."""

    def __getattr__(self, name):
        raise AssertionError(name)


class Movers:
    """Notes which windows are offered."""

    def __init__(self):
        self.offered = []

    def offer(self, window):
        self.offered.append(window)

    def withdraw(self, key):
        pass

    def end_replay(self, token):
        pass


@pytest.mark.spec("REMOTE-LIST-1", "REMOTE-LIST-3")
def test_a_replay_that_says_too_little_is_refused_before_anything_happens():
    movers = Movers()
    lists = Lists(movers, lambda nbytes: np.zeros(nbytes, np.uint8), *[Nothing()] * 5, 0.0)
    with pytest.raises(Exception, match="list 5 is not known"):
        lists.open(ListOpening(5, b"", 77))
    tasks = (replace(TASK, uses=(replace(USE, layout=""),)),)
    raw = LIST.encode(first(tasks=tasks))
    for token, run, why in (
        (77, ListRun(78), "no list was opened"),
        (78, ListRun(78, ("a",) * 4, (1, 2)), "names 4 scalars, its replay 2"),
        (79, ListRun(79, ("a", "b"), (1, 2, 3, 4)), "names 4 endpoints, its replay 2"),
    ):
        lists.open(ListOpening(5, raw, token))
        (window,) = movers.offered  # what the program gives can be stored
        assert (window.nbytes, window.access) == (8, 2)
        movers.offered.clear()
        with pytest.raises(Exception, match=why):
            lists.run(run)
        with pytest.raises(Exception, match="no list was opened"):
            lists.run(run)
    with pytest.raises(Exception, match="list 5 is not known"):
        lists.open(ListOpening(5, b"", 80, (5,)))


@pytest.mark.spec("REMOTE-LIST-3")
def test_what_steps_need():
    plain = (replace(TASK, uses=(replace(USE, layout=""),)),)
    loaded = LoadedList(first(tasks=plain))
    assert loaded.gets == [COMES, GET] and loaded.most_peer == 3
    assert [one.count for one in loaded.programs] == [1, 0]
    assert loaded.addresses(1 << 20) == [1 << 20, (1 << 20) + L.HEAP_ALIGN]
    assert loaded.nbytes == 2 * L.HEAP_ALIGN
