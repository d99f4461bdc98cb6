"""REMOTE-LIST: lists of tasks in messages, and how a session runs them."""

import hashlib
import pickle
import struct
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from simpler_ref import TaskError
from simpler_ref.callables.identity import CallableHandle, CallableKind, TargetNamespace
from simpler_ref.errors import CallableError
from simpler_ref.jit import layout as L
from simpler_ref.remote.callables import (
    RegisterCallableCommand,
    Registration,
    RemoteRegistryTarget,
    encode_register_callable_command,
)
from simpler_ref.remote.dispatcher import Dispatcher
from simpler_ref.remote.lists import (
    LIST,
    LIST_VERSION,
    ListPart,
    ListScalar,
    ListTask,
    ListUse,
    PlayedList,
    TaskList,
)
from simpler_ref.task_interface import ContinuousTensor, DataType, TensorArgType
from tests import list_programs
from tests.endpoints import INOUT, INPUT
from tests.list_programs import COUNT, at, endpoints
from tests.support import make_args

from .test_frame import blob

DIGEST = bytes(range(32))
FORM = ContinuousTensor.make(0, (2, 3), DataType.INT32)
FORM_RAW = struct.pack("<Q5IIIB7x", 0, 2, 3, 0, 0, 0, 2, 2, 0)
USE = ListUse(1, TensorArgType.INOUT, FORM, "[1]")
USE_RAW = struct.pack("<II", 1, TensorArgType.INOUT) + FORM_RAW + blob(b"[1]")
TASK = ListTask(0, (USE,), (ListScalar(9, L.RAW, 2),))
TASK_RAW = struct.pack("<II", 0, 1) + USE_RAW + struct.pack("<IQII", 1, 9, L.RAW, 2)
PART = ListPart((1,), (0,), (TASK,))
PART_RAW = struct.pack("<5I", 1, 1, 1, 0, 1) + TASK_RAW
WHOLE = TaskList((DIGEST,), (24, 8), (PART,))
WHOLE_RAW = struct.pack("<I", 1) + DIGEST + struct.pack("<IQQI", 2, 24, 8, 1) + PART_RAW


@pytest.mark.spec("REMOTE-LIST-1")
def test_a_list_is_a_callable_whose_payload_has_version_two():
    dispatcher = Dispatcher((), False, None, None, None)
    digest = hashlib.sha256(WHOLE_RAW).digest()
    command = RegisterCallableCommand(
        RemoteRegistryTarget.REMOTE_TASK_DISPATCHER,
        CallableKind.PYTHON_IMPORT,
        digest,
        LIST_VERSION,
        LIST.encode(replace(WHOLE, parts=())),
    )
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


@pytest.mark.spec("REMOTE-LIST-2")
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (replace(PART, tasks=(replace(TASK, callable=1),)), r"callable: 1 is not one of 1"),
        (replace(PART, tensors=()), r"uses.tensor: 1 is not one of 1"),
        (replace(PART, left=(2,)), r"tensors: 2 is not one of 2"),
        (replace(PART, tensors=(0,), left=(1,)), r"a tensor of 24 bytes is said to have 8"),
    ],
)
def test_a_list_that_contradicts_itself_is_refused(wrong, text):
    with pytest.raises(ValueError, match=rf"remote_wire: LIST.*{text}"):
        LIST.encode(replace(WHOLE, parts=(wrong,)))


@pytest.mark.spec("REMOTE-LIST-1")
def test_a_task_that_does_not_fit_its_part_is_refused_and_the_next_runs():
    with endpoints(1) as worker:
        copy = at(worker, list_programs.copy_to, 0)
        form = ContinuousTensor.make(0, (COUNT,), DataType.FLOAT32)
        uses = [ListUse(i, tag, form) for i, tag in enumerate((INPUT, INOUT))]
        parts = (
            ListPart((0, 1), (), (ListTask(0, uses),)),
            ListPart((0,), (2,), (ListTask(0, uses),)),
        )
        raw = LIST.encode(TaskList((copy.digest,), (4 * COUNT,) * 3, parts))
        digest = hashlib.sha256(raw)
        handle = CallableHandle(
            f"sha256:{digest.hexdigest()}",
            CallableKind.PYTHON_IMPORT,
            TargetNamespace.REMOTE_TASK_DISPATCHER,
            "list",
        )
        command = encode_register_callable_command(
            RemoteRegistryTarget.REMOTE_TASK_DISPATCHER,
            CallableKind.PYTHON_IMPORT,
            digest.digest(),
            LIST_VERSION,
            raw,
        )
        target = Registration((0,), command)
        worker._add_callable(handle, target, pickle.dumps(target))
        x, y = (worker.share(np.full(COUNT, i, np.float32)) for i in (1, 2))

        def run(*tensors, number=0):
            args = make_args(*tensors, scalars=[number])
            worker.run(lambda orch, *_: orch.submit_next_level(handle, args))

        for wrong in (
            partial(run, (x, INPUT)),
            partial(run, (x, INPUT), number=1),
            partial(run, (x, INPUT), (y, INOUT), number=2),
        ):
            with pytest.raises(TaskError, match="part"):
                wrong()
        run((x, INPUT), (y, INOUT))
        assert y.tolist() == x.tolist()
