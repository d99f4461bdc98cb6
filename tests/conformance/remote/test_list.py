"""REMOTE-LIST: lists of tasks in messages, and how a session runs them."""

import hashlib
import struct
from dataclasses import replace

import pytest

from simpler_ref.callables.identity import CallableKind
from simpler_ref.errors import CallableError
from simpler_ref.jit import layout as L
from simpler_ref.remote.callables import LIST_VERSION, RegisterCallableCommand, RemoteRegistryTarget
from simpler_ref.remote.controls import Dispatcher
from simpler_ref.remote.lists import (
    LIST,
    REPLAY,
    ListGet,
    ListPart,
    ListScalar,
    ListTask,
    ListUse,
    PlayedList,
    Replay,
    Replaying,
    TaskList,
)
from simpler_ref.task_interface import ContinuousTensor, DataType, TensorArgType

from .test_frame import blob

DIGEST = bytes(range(32))
FORM = ContinuousTensor.make(0, (2, 3), DataType.INT32)
FORM_RAW = struct.pack("<Q5IIIB7x", 0, 2, 3, 0, 0, 0, 2, 2, 0)
USE = ListUse(0, TensorArgType.INOUT, FORM, "[1]")
USE_RAW = struct.pack("<II", 0, TensorArgType.INOUT) + FORM_RAW + blob(b"[1]")
GET = ListGet(1, 0, 1)
TASK = ListTask(0, (USE,), (ListScalar(9, L.RAW, 2),), (GET,))
TASK_RAW = struct.pack("<II", 0, 1) + USE_RAW + struct.pack("<IQII", 1, 9, L.RAW, 2)
TASK_RAW += struct.pack("<4I", 1, 1, 0, 1)
PART = ListPart((1,), (TASK,))
PART_RAW = struct.pack("<3I", 1, 1, 1) + TASK_RAW
WHOLE = TaskList((DIGEST,), (24, 8), (PART,))
WHOLE_RAW = struct.pack("<I", 1) + DIGEST + struct.pack("<IQQI", 2, 24, 8, 1) + PART_RAW


@pytest.mark.spec("REMOTE-LIST-1")
def test_a_list_is_a_callable_whose_payload_has_version_two():
    dispatcher = Dispatcher((), False, None, None)
    digest = hashlib.sha256(WHOLE_RAW).digest()
    kind = RemoteRegistryTarget.REMOTE_TASK_DISPATCHER, CallableKind.PYTHON_IMPORT
    other = LIST.encode(WHOLE._replace(parts=()))
    command = RegisterCallableCommand(*kind, digest, LIST_VERSION, other)
    with pytest.raises(CallableError, match="not the callable its digest"):
        dispatcher.prepare(command)
    empty = LIST.encode(TaskList((), (), ()))
    dispatcher.prepare(replace(command, payload=empty, digest=hashlib.sha256(empty).digest()))
    with pytest.raises(CallableError, match="payload version 3"):
        dispatcher.prepare(replace(command, payload_version=3))
    (found,) = dispatcher._prepared.values()
    assert isinstance(found, PlayedList)


@pytest.mark.spec("REMOTE-LIST-2")
def test_a_list_in_a_message():
    assert LIST.encode(WHOLE) == WHOLE_RAW and LIST.decode(WHOLE_RAW) == WHOLE


def of_task(**wrong):
    """Return a part whose task has other fields."""
    return PART._replace(tasks=(TASK._replace(**wrong),))


@pytest.mark.spec("REMOTE-LIST-2")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (of_task(callable=1), "callable: 1 is not one of 1"),
        (of_task(uses=(USE._replace(tensor=2),)), "2 is not one of 2"),
        (of_task(gets=(GET._replace(part=1),)), "1 is not one of 1"),
        (of_task(gets=(GET._replace(tensor=2),)), "2 is not one of 2"),
        (of_task(gets=(GET._replace(after=2),)), "after: 2 is not one of 2"),
        (PART._replace(tensors=(2,)), "tensors: 2 is not one of 2"),
        (of_task(uses=(USE._replace(tensor=1),)), "a tensor of 24 bytes is said to have 8"),
    ],
)
def test_a_list_that_contradicts_itself_is_refused(wrong, text):
    with pytest.raises(ValueError, match=rf"remote_wire: LIST.*{text}"):
        LIST.encode(WHOLE._replace(parts=(wrong,)))


@pytest.mark.spec("REMOTE-LIST-1")
def test_a_replay_in_a_message():
    told = Replay(DIGEST, 1, 5, ("tcp://a", ""), bytes(16))
    raw = DIGEST + struct.pack("<IQI", 1, 5, 2) + blob(b"tcp://a") + blob(b"") + blob(bytes(16))
    assert REPLAY.encode(told) == raw and REPLAY.decode(raw) == told


@pytest.mark.spec("REMOTE-LIST-1")
@pytest.mark.parametrize(
    ("part", "text"),
    [(1, "part 1 is not one of the 1"), (0, "1 tensors and 2 scalars, its task 1 and 0")],
)
def test_a_replay_that_does_not_fit_its_part_is_refused(part, text):
    played = PlayedList(WHOLE._replace(parts=(of_task(uses=(USE._replace(layout=""),)),)), None)
    with pytest.raises(ValueError, match=text):
        one = played.part(part, None)
        Replaying(one, Replay(DIGEST, part, 5, (), b""), None, None, [0], bool)
