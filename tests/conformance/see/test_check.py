"""SEE-CHECK: scheduler traces by the rules."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest

from simpler_ref import TaskError
from simpler_ref import TensorArgType as T
from simpler_ref.check import TraceError, check
from simpler_ref.check.checker import RULES, main
from simpler_ref.stepping import Stepper

from ...spec_rules import SPEC, read_rules
from ...support import make_args
from .conftest import main as program

VECTORS = SPEC / "vectors" / "scheduler.json"
WHOLE = json.loads(VECTORS.read_text())


@pytest.fixture
def judged(tmp_path):
    """Return a function that has a case checked."""

    def judge(case):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(run(case)))
        return check(path)

    return judge


def run(*cases):
    return {"format": 1, "cases": list(cases)}


def vector(name):
    return copy.deepcopy(next(case for case in WHOLE["cases"] if case["name"] == name))


def after(step, **changes):
    """Return a function that changes what a case says after a step."""

    def change(case):
        for key, value in changes.items():
            said = case["steps"][step]["then"]
            said[key] = {**said[key], **value} if key != "error" else value

    return change


def state(step, **states):
    return after(step, states=states)


def running(step, **rows):
    return after(step, running=rows)


def row(worker=0, mailbox="TASK_READY", member=None, skip=False):
    return {"member": member, "worker": worker, "mailbox": mailbox, "skip": skip}


def members(*mailboxes):
    """Return the rows of a group whose members have no told worker; None is a member without any."""
    return [row(None, mail, m) for m, mail in enumerate(mailboxes) if mail is not None]


def without(step, task):
    """Return a function that leaves a task READY that should have started in a step."""

    def change(case):
        then = case["steps"][step]["then"]
        then["states"][task] = "READY"
        del then["running"][task]

    return change


def exchanged(case):
    rows = case["steps"][1]["then"]["running"]["g"]
    rows[0]["worker"], rows[1]["worker"] = rows[1]["worker"], rows[0]["worker"]


def overtaken(case):
    """The task for one worker starts before an older one for any."""
    then = case["steps"][8]["then"]
    then["states"] |= {"any1": "READY", "mine1": "RUNNING"}
    then["running"] = {"mine1": [row()]}


READY, DONE = "TASK_READY", "TASK_DONE"
WRONG = [
    ("the life of a task", state(1, a="READY"), "ORCH-STATE-2", "a is READY, not PENDING"),
    ("the life of a task", state(2, a="PENDING"), "SCHED-DISPATCH-1", "a is PENDING"),
    ("the life of a task", state(3, a="PENDING"), "ORCH-STATE-1", "not RUNNING"),
    ("the life of a task", state(3, a="COMPLETED"), "SCHED-COMPLETE-1", "a is COMPLETED"),
    ("the life of a task", running(3, a=[row()]), "SCHED-MAIL-2", "TASK_READY, not TASK_DONE"),
    ("the life of a task", after(4, refs={"a": [1, 0]}), "ORCH-STATE-4", "[1, 0], not [1, 1]"),
    ("the life of a task", running(4, a=[row()]), "SCHED-DISPATCH-2", "a is with a worker"),
    ("the life of a task", state(5, a="CONSUMED"), "ORCH-SCOPE-7", "not FREE"),
    ("the scope ends first", state(5, a="FREE"), "ORCH-STATE-3", "not CONSUMED"),
    ("the scope ends first", state(6, a="CONSUMED"), "SCHED-CONSUME-2", "not FREE"),
    ("a chain on one worker", state(2, b="READY"), "SCHED-READY-1", "b is READY"),
    ("a chain on one worker", state(4, b="READY"), "SCHED-WIRE-2", "b is READY"),
    ("a chain on one worker", state(5, b="PENDING"), "SCHED-COMPLETE-2", "not READY"),
    ("a chain on one worker", without(6, "b"), "SCHED-DISPATCH-3", "b could start on sub worker 0"),
    ("a producer that was done before", state(9, a="COMPLETED"), "ORCH-STATE-3", "CONSUMED"),
    ("a buffer is kept by its reader", state(1, buffer="PENDING"), "ORCH-ALLOC-2", "buffer"),
    ("first in, first out", state(3, c="RUNNING"), "SCHED-READY-3", "c is RUNNING"),
    ("first in, first out", state(3, b="RUNNING"), "SCHED-DISPATCH-2", "b is RUNNING"),
    ("failure travels downstream", state(6, d="FAILED"), "SCHED-POISON-2", "d is FAILED"),
    ("failure travels downstream", state(6, c="PENDING"), "SCHED-POISON-1", "not FAILED"),
    ("two failures", after(4, error=None), "ORCH-FAIL-1", "error is none, not TASK_FAILURE of b"),
    ("a group starts as a whole", state(4, g="RUNNING"), "WM-PLACE-1", "g is RUNNING"),
    ("a group starts as a whole", state(4, later="RUNNING"), "WM-PLACE-3", "later is"),
    ("a group starts as a whole", without(6, "g"), "WM-PLACE-1", "g could start, all its members"),
    ("a group ends once", running(4, g=members(READY, DONE, READY)), "SCHED-DISPATCH-2", "1"),
    ("a group ends once", running(4, g=members(READY)), "WM-DONE-1", "member 2 of g"),
    ("a group ends once", state(4, g="COMPLETED"), "SCHED-COMPLETE-1", "g is COMPLETED"),
    ("a member fails", running(4, g=members(READY, None, READY)), "WM-DONE-3", "member 0"),
    ("a member fails", state(8, g="COMPLETED"), "WM-DONE-2", "not FAILED"),
    ("members for workers of their own", exchanged, "WM-PLACE-2", "is for another worker"),
    ("a task for one worker", state(4, mine="RUNNING"), "WM-AFF-1", "mine is RUNNING"),
    ("a task for one worker", running(1, busy=[row(0)]), "WM-AFF-1", "busy could start on"),
    ("tasks for one worker and for any take turns", overtaken, "SCHED-DISPATCH-3", "any1 could"),
    ("an idle worker dies", state(7, c="RUNNING"), "SCHED-DEATH-2", "not FAILED"),
    ("a group that cannot be placed any more", state(6, g="READY"), "WM-PLACE-5", "not FAILED"),
    ("the worker of a task dies before it starts", state(6, mine="READY"), "WM-AFF-5", "mine is"),
    ("a worker dies in a task", state(5, a="RUNNING"), "SCHED-DEATH-1", "a is RUNNING"),
    ("nobody is left", state(6, b="READY"), "SCHED-DEATH-2", "b is READY, not FAILED"),
    ("a cancel", state(6, ready="READY"), "SCHED-CANCEL-1", "ready is READY"),
]


@pytest.mark.spec("SEE-CHECK-1")
def test_every_trace_of_the_vectors_is_right(capsys):
    """The command says so."""
    steps = sum(len(case["steps"]) for case in WHOLE["cases"])
    assert program(["check", str(VECTORS)]) == 0
    said = f"{len(WHOLE['cases'])} traces, {steps} steps: all right\n"
    assert capsys.readouterr() == (said, "")


@pytest.mark.spec("SEE-CHECK-1")
@pytest.mark.parametrize(("name", "change", "rule", "text"), WRONG)
def test_a_finding_says_step_difference_and_rule(judged, name, change, rule, text):
    change(case := vector(name))
    found = judged(case)[0]
    assert (found.case, found.rule) == (name, rule)
    assert text in found.text
    assert (
        str(found)
        == f"{name!r} steps[{found.step}], {found.did}: {found.text}. {rule}: {RULES[rule]}"
    )


@pytest.mark.spec("SEE-CHECK-1")
def test_the_command_prints_a_line_for_each_finding(tmp_path, capsys):
    """And goes on with the next trace; the status is 1."""
    whole = copy.deepcopy(WHOLE)
    after(4, refs={"a": [1, 0]})(whole["cases"][0])
    after(6, states={"c": "PENDING", "d": "FAILED"})(whole["cases"][9])
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole))
    assert main([str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [
        "'the life of a task' steps[4], pass",
        "'failure travels downstream' steps[6], settle",
        "'failure travels downstream' steps[6], settle",
    ]
    assert lines[-1].endswith("steps: 2 traces are wrong")


@pytest.mark.spec("SEE-CHECK-1")
def test_rules_have_the_words_of_the_specification():
    rules = read_rules()
    assert {name: rules[name].text for name in RULES} == RULES


# ---------------------------------------------------------------- choices
def submit(task, *reads, writes=None, **more):
    tensors = [{"tag": "INPUT", "data": data, "nbytes": 8} for data in reads]
    if writes:
        tensors.append({"tag": "OUTPUT", "data": writes, "nbytes": 8})
    return {"do": "submit", "task": task, "pool": "SUB", "tensors": tensors, **more}


def trace(*steps, sub=1):
    """Return a case from steps, each with the states after it and what is running."""
    case = {"kind": "trace", "name": "made", "next_level": 0, "sub": sub, "steps": []}
    for step, states, running in steps:
        then = {"states": states, "running": running, "refs": None, "error": None}
        case["steps"].append({**step, "then": then})
    return case


def after_a_producer(*consumers, then, busy=False):
    """Return a case in which all these become ready together, and what runs after each pass then.

    There are two workers; one of them may be busy with another task all the time.
    """
    tasks = [submit("p", writes="0x7000"), *consumers]
    tasks += [submit("long")] if busy else []
    names = [one["task"] for one in tasks]
    steps = []
    for number, one in enumerate(tasks, 1):
        steps.append((one, dict.fromkeys(names[:number], "PENDING"), {}))
    runs = {"long": [row(1)]} if busy else {}
    told = dict.fromkeys(names, "PENDING") | dict.fromkeys(["p", *runs], "RUNNING")
    steps.append(({"do": "pass"}, told, {"p": [row()], **runs}))
    end = {"do": "end", "task": "p", "outcome": "SUCCESS"}
    steps.append((end, told, {"p": [row(mailbox=DONE)], **runs}))
    ready = told | dict.fromkeys([one["task"] for one in consumers], "READY") | {"p": "COMPLETED"}
    steps.append(({"do": "pass"}, ready, runs))
    for running in then:
        told = ready | dict.fromkeys(running, "RUNNING")
        steps.append(({"do": "pass"}, told, running | runs))
    return trace(*steps, sub=2)


GROUP = {"do": "submit", "task": "g", "pool": "SUB"}
GROUP["members"] = [{"tensors": submit("", "0x7000")["tensors"]}, {}]


@pytest.mark.spec("SEE-CHECK-1")
@pytest.mark.parametrize("order", [(GROUP, "x"), ("x", GROUP)])
def test_a_group_may_be_before_a_task_that_became_ready_with_it_or_after_it(judged, order):
    """But once that has waited although it could start, the group was before it."""
    consumers = [submit("x", "0x7000") if one == "x" else one for one in order]
    alone, both = {"x": [row()]}, {"g": [row(0, member=0), row(1, member=1)]}
    idle = {"right": [[alone], [both]], "wrong": [[{}]]}
    busy = {"right": [[alone], [{}], [{}, {}]], "wrong": [[{}, alone]]}
    for cases in (idle, busy):
        for judgement, several in cases.items():
            for then in several:
                case = after_a_producer(*consumers, then=then, busy=cases is busy)
                assert bool(judged(case)) == (judgement == "wrong"), then


# ---------------------------------------------------------------- what a Stepper writes
def fails(args):
    raise ValueError("no")


@pytest.fixture
def stepper(tmp_path):
    """Return a Stepper with a pool of sub workers that records its steps."""
    with Stepper(record=tmp_path / "steps.json", num_sub_workers=3) as made:
        yield made


def recorded(stepper):
    stepper.close()
    path = stepper._steps_taken._path
    return path, json.loads(path.read_text())["cases"]


@pytest.mark.kernels
@pytest.mark.spec("SEE-CHECK-1")
def test_what_a_stepper_does_is_recorded_and_right(stepper):
    """Each part of a pass, scopes, buffers, groups with a member that fails, a death; a run each."""
    idle, bad = stepper.register(lambda args: None), stepper.register(fails)
    orch = stepper.orch
    with orch.scope():
        buffer = orch.alloc((300,), np.float32)
        orch.submit_sub(idle, make_args((buffer, T.INOUT)))
    orch.submit_sub_group(bad, [make_args((buffer, T.INPUT)), make_args()])
    assert [stepper.wire(), stepper.wire(), stepper.wire()] == [1, 2, None]
    stepper.dispatch()
    stepper.workers[0].serve()
    stepper.collect()
    assert len(stepper.finish_tasks()) == 2
    with pytest.raises(TaskError, match=r"sub_worker 0, task 2 .*, member 0: ValueError: no"):
        orch.submit_sub(idle)
    stepper.reclaim()
    stepper.finish_run()
    stepper.begin_run()
    for _ in range(5):
        stepper.orch.submit_sub(idle)
    stepper.run_pass()
    stepper.kill(1)
    stepper.finish_run(cancel=True)
    stepper.run_pass()
    path, (first, second) = recorded(stepper)
    assert check(path) == []
    assert [one["do"] for one in first["steps"][-4:]] == ["pass", "submit", "reclaim", "finish"]
    assert first["steps"][-3]["then"]["refused"] == "FAILED"
    outcomes = {step.get("outcome") for step in first["steps"]}
    assert outcomes == {None, "SUCCESS", "TASK_FAILURE", "SKIPPED"}
    assert [step["do"] for step in second["steps"][5:]] == ["pass", "die", "finish", "pass"]
    assert second["steps"][-1]["then"]["error"]["outcome"] == "ENDPOINT_FAILURE"


@pytest.mark.spec("SEE-CHECK-1")
@pytest.mark.kernels
def test_a_task_that_waits_for_readers_is_right_where_reads_are_tracked(tmp_path):
    for track_reads in (False, True):
        path = tmp_path / f"{track_reads}.json"
        with Stepper(record=path, track_reads=track_reads) as stepper:
            x, idle = stepper.worker.zeros(4), stepper.register(lambda args: None)
            for tag in (T.INPUT, T.OUTPUT_EXISTING):
                stepper.orch.submit_sub(idle, make_args((x, tag)))
            stepper.run_pass()
            assert stepper.state(1).name == ("PENDING" if track_reads else "RUNNING")
        assert check(path) == []
        path.write_text(path.read_text().replace('"track_reads": true', '"track_reads": false'))
        assert [one.rule for one in check(path)][:1] == (["ORCH-STATE-4"] if track_reads else [])


@pytest.mark.spec("SEE-CHECK-1")
@pytest.mark.kernels
def test_what_a_trace_of_steps_cannot_have_is_refused(stepper, tmp_path):
    idle = stepper.register(lambda args: None)
    with pytest.raises(RuntimeError, match="takes tasks one by one"):
        stepper.orch.submit_sub_many(idle, [], [], count=3)
    assert stepper.live_tasks() == []
    with pytest.raises(ValueError, match="mailbox_depth=2: a trace of steps has one frame each"):
        Stepper(record=tmp_path / "more.json", mailbox_depth=2)
    with pytest.raises(TypeError, match="record=3 is no path"):
        Stepper(record=3)
    with pytest.raises(FileNotFoundError):
        Stepper(record=tmp_path / "no" / "folder.json")


# ---------------------------------------------------------------- what is no trace
JUNK = [None, True, -1, 1 << 70, 1.5, "", "0x7000", "ring9+0x0", [], {}, [[[]]], {"a": 1}, "SUB"]


def places(value, path=()):
    """Yield the way to every value in a file."""
    yield path
    pairs = value.items() if isinstance(value, dict) else ()
    for name, one in enumerate(value) if isinstance(value, list) else pairs:
        yield from places(one, (*path, name))


@pytest.mark.spec("SEE-CHECK-1")
def test_a_file_in_which_anything_is_something_else_is_judged_or_refused(tmp_path):
    rng, path, refused = random.Random(3), tmp_path / "trace.json", 0
    for _ in range(600):
        whole = run(copy.deepcopy(rng.choice(WHOLE["cases"])))
        *way, last = rng.choice([*places(whole)][1:])
        at = whole
        for name in way:
            at = at[name]
        if rng.random() < 0.8:
            at[last] = rng.choice(JUNK)
        else:
            del at[last]
        path.write_text(json.dumps(whole))
        try:
            assert all(str(finding) for finding in check(path))
        except TraceError:
            refused += 1
    assert refused > 400


@pytest.mark.spec("SEE-CHECK-1")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (VECTORS.read_bytes()[:5000], "it is not JSON: "),
        (b"\xff", "it is not JSON: "),
        (b"simpler_ref trace\n{}", r"the trace of a Worker.*Stepper\(record=FILE\)"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b"1" * 5000, "file is 1111|it is not JSON: Exceeds the limit"),
        (b'{"format": 2, "cases": []}', r"file.format is 2, not a number from 1 to 1"),
        ({"kind": "ring"}, r"file.cases\[0\] has no 'name'"),
        (trace(({"do": "sing"}, {}, {})), r"steps\[0\].do is 'sing', not one"),
        (trace(({"do": "pass"}, {"q": "READY"}, {})), "no task 'q' was"),
        (trace((submit("t", worker=7), {}, {})), "there is no worker 7, only 1"),
        (trace(({"do": "close_scope"}, {}, {})), "no scope is open but that"),
        (trace(({"do": "pass", "x": 1}, {}, {})), r"steps\[0\] has 'x'; its keys"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_place(tmp_path, capsys, raw, text):
    path = tmp_path / "trace.json"
    path.write_bytes(raw if isinstance(raw, bytes) else json.dumps(run(raw)).encode())
    with pytest.raises(TraceError, match=text):
        check(path)
    assert main([str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"python -m simpler_ref check: {path}: ")
    assert main([str(tmp_path)]) == main([str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
