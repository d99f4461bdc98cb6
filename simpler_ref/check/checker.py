"""Takes the steps of scheduler traces by the rules, and tells what is not as they demand.

The model has to follow the choices that the rules leave open; it learns them from what the trace says is
running after a step. With the first step that is wrong a trace is left, since what comes after it began
from another state.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .model import SUB, Asked, Assignment, Forbidden, Model, ModelTask, ModelTensor, Refused

POOLS = ("NEXT_LEVEL", "SUB")
TAGS = ("INPUT", "OUTPUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
ANSWERS = {"SUCCESS": "OK", "TASK_FAILURE": "ERROR", "SKIPPED": "SKIPPED"}
ERRORS = {"RAISED": "TASK_FAILURE", "LOST": "ENDPOINT_FAILURE"}
RULES = dict(
    line.split(" ", 1) for line in Path(__file__).with_name("rules.txt").read_text().splitlines()
)
"""Those that a finding can name, in the words of spec/."""
FIRST_BASE = 1 << 64
"""Where the rings of the model are, which is nowhere: no address of a user is in one of them."""


@dataclass(frozen=True)
class Finding:
    """What is wrong after a step of a case, and the id of the rule that it breaks."""

    case: str
    step: int
    did: str
    text: str
    rule: str

    def __str__(self) -> str:
        where = f"{self.case!r} steps[{self.step}], {self.did}"
        return f"{where}: {self.text}. {self.rule}: {RULES[self.rule]}"


def check(path: str | Path) -> list[Finding]:
    """Return what is wrong in a file of scheduler traces; a TraceError says that it is none."""
    return [finding for case in read(path) for finding in _findings(case)]


def main(arguments: Sequence[str]) -> int:
    """Print what is wrong; return 0 if all is right, 1 if not, 2 if the file is no trace."""
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref check",
        description="Say which steps of a scheduler trace break which rules. The page about vectors has "
        "the format; traces of any implementation can be judged.",
    )
    parser.add_argument("file", help="the trace, such as spec/vectors/scheduler.json")
    file = parser.parse_args(arguments).file
    try:
        cases = read(file)
        found = [finding for case in cases for finding in _findings(case)]
    except (OSError, TraceError) as error:
        print(f"{parser.prog}: {file}: {error}", file=sys.stderr)
        return 2
    for finding in found:
        print(finding)
    wrong = len({finding.case for finding in found})
    steps = sum(len(case["steps"]) for case in cases)
    print(
        f"{len(cases)} traces, {steps} steps: {f'{wrong} traces are wrong' if wrong else 'all right'}"
    )
    return int(bool(found))


def _findings(case: dict[str, Any]) -> list[Finding]:
    """Return what is wrong after the first step of a case that is wrong."""
    player = _Player(case)
    for number, step in enumerate(case["steps"]):
        did = " ".join([step["do"], *(str(step[key]) for key in ("task", "pool") if key in step)])
        try:
            found = [*player.take(step)]
        except Forbidden as forbidden:
            found = [(forbidden.text, forbidden.rule)]
        except Refused as refused:
            raise TraceError(
                f"case {case['name']!r} steps[{number}]: {REFUSALS[str(refused)]}"
            ) from None
        if found:
            return [Finding(case["name"], number, did, text, rule) for text, rule in found]
    return []


REFUSALS = {
    "BLOCK": "the ring of this scope has no room for the task; is ring_bytes right?",
    "LARGE": "the task needs more than ring_bytes",
    "ARGS": "a mailbox has no room for so many tensors",
    "DEEP": "64 scopes can be open within that of the run",
    "OVER": "the orchestration function has ended, with all scopes",
    "CLOSED": "no scope is open but that of the run",
}
"""What a step cannot be that is no trace of anything."""


class _Told:
    """The choices that can be seen in what a trace says of the tasks after a step."""

    def __init__(self, player: _Player, then: Mapping[str, Any]) -> None:
        self._model, self._first = player.model, player.first
        self._states, self._running = then["states"], then["running"]

    def starts(self, task: ModelTask) -> bool:
        return self._states.get(task.name) not in ("PENDING", "READY")

    def rows(self, task: ModelTask) -> list[tuple[int, int | None]]:
        """Return which member is on which worker, None if the trace leaves that open."""
        rows = self._running.get(task.name, [])
        first = self._first[task.kind]
        return [
            (row["member"] or 0, None if row["worker"] is None else first + row["worker"])
            for row in rows
        ]

    def worker(self, task: ModelTask, workers: Sequence[int]) -> int | None:
        rows = self.rows(task)
        if not rows:
            return None
        named = self._named(task)
        return (
            next((w for w in workers if w not in named), None) if rows[0][1] is None else rows[0][1]
        )

    def places(self, group: ModelTask, idle: Sequence[int]) -> Mapping[int, int]:
        """Return member by worker; one that is left open is on a worker that nothing else is on."""
        rows = self.rows(group)
        wanted = {m: w for m, w in rows if w is not None}
        wanted |= {
            m: group.members[m].worker for m, w in rows if w is None and m < len(group.members)
        }
        named = {*self._named(group), *wanted.values()}
        free = [w for w in idle if w not in named]
        if len(free) < sum(w < 0 for w in wanted.values()):
            return {}
        return {(free.pop(0) if w < 0 else w): m for m, w in wanted.items()}

    def _named(self, task: ModelTask) -> set[int]:
        """Return the workers that other tasks are said to be on."""
        others = {t.name: t for t in self._model.live if t is not task and t.name in self._running}
        return {w for other in others.values() for _, w in self.rows(other) if w is not None}


class _Player:
    """The model of a case, and its tasks by their names."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        size = case.get("ring_bytes", RING_BYTES)
        self.first = {0: 0, SUB: case["next_level"]}
        self.bases = [FIRST_BASE + number * size for number in range(case.get("rings", RINGS))]
        self.tasks: dict[str, ModelTask] = {}
        self.before: dict[str, str] = {}
        self.model = Model(
            bases=self.bases,
            ring_bytes=size,
            window=1 << 53,
            next_level=case["next_level"],
            sub=case["sub"],
            track_reads=case.get("track_reads", False),
        )

    def take(self, step: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Take a step; yield what the trace says otherwise after it, and the rule that it breaks."""
        model, then = self.model, step["then"]
        model.moves = {}
        self.before = {name: task.state for name, task in self.tasks.items()}
        had_failed = model.error is not None
        refused = None
        try:
            self._carry_out(step, _Told(self, then))
        except Refused as refusal:
            refused = str(refusal)
            if refused != "FAILED":
                raise
        if refused != then.get("refused"):
            yield f"{step['task']} is {'accepted' if refused else 'refused'}", "ORCH-FAIL-2"
        elif not had_failed:
            self._agree_on_error(then["error"])
        for name, task in self.tasks.items():
            yield from self._compare(name, task, then)
        yield from self._compare_error(then["error"])

    # ------------------------------------------------------------ steps
    def _carry_out(self, step: Mapping[str, Any], told: _Told) -> None:
        model, do = self.model, step["do"]
        pool = POOLS.index(step["pool"]) if "pool" in step else 0
        if not model.scopes and do in ("submit", "alloc", "open_scope", "finish"):
            raise Refused("OVER")
        match do:
            case "submit":
                asked = [self._asked(one, self.first[pool]) for one in members(step)]
                task = model.submit(asked, "members" in step, pool, step["task"])
                self.tasks[step["task"]] = task
            case "alloc":
                self.tasks[step["task"]] = model.alloc(step["nbytes"], step["task"])
            case "open_scope":
                if not model.open_scope():
                    raise Refused("DEEP")
            case "close_scope":
                if len(model.scopes) <= 1:
                    raise Refused("CLOSED")
                model.close_scope()
            case "finish":
                if step.get("cancel"):
                    model.cancel()
                while model.scopes:
                    model.close_scope()
            case "pass":
                model.one_pass(told)
            case "settle":
                while model.would_move():
                    model.one_pass(told)
            case "wire":
                if model.wiring:
                    model.batch(model.wire_one)
            case "dispatch":
                model.dispatch(pool, told)
            case "end":
                self._end(step["task"], step.get("member"), ANSWERS[step["outcome"]])
            case "die":
                model.die(self.first[pool] + step["worker"])
            case "collect" | "cancel" | "reclaim":
                getattr(model, do)()

    def _asked(self, one: Mapping[str, Any], first: int) -> Asked:
        tensors = []
        for tensor in one.get("tensors", []):
            ring, place = address(tensor["data"])
            data = place if ring is None else self.bases[ring] + place
            child = tensor.get("child_memory", False)
            made = ModelTensor(TAGS.index(tensor["tag"]), data, tensor["nbytes"], child)
            tensors.append(made)
        worker = one.get("worker")
        return tensors, (), -1 if worker is None else first + worker

    def _end(self, name: str, member: int | None, answer: str) -> None:
        for worker in range(len(self.model.kinds)):
            at = self.model.at(worker)
            if at is not None and (at.task.name, at.part) == (name, member):
                self.model.answer(worker, answer)
                return
        raise Forbidden("SCHED-MAIL-2", f"{_whose(name, member)} has no worker that could answer")

    # ------------------------------------------------------------ what is expected after one
    def _compare(
        self, name: str, task: ModelTask, then: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Yield the first thing that a trace says of a task and that is not so."""
        found = then["states"].get(name)
        if found != task.state:
            yield f"{name} is {found or 'missing'}, not {task.state}", self._why(task, found)
            return
        counts = None if task.state == "FREE" else [task.total, task.released]
        refs = counts if then["refs"] is None else then["refs"].get(name)
        if refs != counts:
            yield (
                f"fanout_total and fanout_released of {name} are {refs}, not {counts}",
                "ORCH-STATE-4",
            )
        rows = {row["member"]: row for row in then["running"].get(name, [])}
        for worker, assignments in enumerate(self.model.assignments):
            for one in assignments:
                if one.task is task:
                    yield from self._compare_row(rows.pop(one.part, None), worker, one)
        for member in rows:
            text = f"{_whose(name, member)} is with a worker, and should not be"
            yield text, "SCHED-DISPATCH-2"

    def _why(self, task: ModelTask, found: str | None) -> str:
        """Return the rule against which a task is in another state than it should be."""
        if task.name in self.before and found not in REACHABLE[self.before[task.name]]:
            return "ORCH-STATE-1"
        if task.state == "READY" and found == "RUNNING":
            return self.model.why_waiting(task)
        if task in self.model.moves:
            return self.model.moves[task]
        if found in ("READY", "RUNNING") and task in self.model.wiring:
            return "SCHED-READY-1"
        return UNFOUNDED[str(found)]

    def _compare_row(
        self, row: Mapping[str, Any] | None, worker: int, one: Assignment
    ) -> Iterator[tuple[str, str]]:
        whose = _whose(one.task.name, one.part)
        if row is None:
            rule = "WM-DONE-1" if one.task.group else "SCHED-DISPATCH-2"
            yield f"{whose} is with no worker, not with {self.model.worker_name(worker)}", rule
            return
        number = worker - self.first[one.task.kind]
        if row["worker"] not in (None, number):
            yield f"{whose} is with worker {row['worker']}, not {number}", "SCHED-DISPATCH-2"
        mail = "TASK_READY" if one.mail == "TASK_READY" else "TASK_DONE"
        if row["mailbox"] != mail:
            yield f"the mailbox of {whose} is {row['mailbox']}, not {mail}", "SCHED-MAIL-2"
        if row["skip"] != one.skip:
            told = "is not told" if one.skip else "is told"
            yield f"{whose} {told} to skip", "WM-DONE-3" if one.skip else "WM-DONE-5"

    def _expected_error(self, error: tuple[str, ModelTask, int, int]) -> dict[str, Any]:
        what, task, worker, member = error
        return {
            "outcome": ERRORS[what],
            "task": task.name,
            "worker": -1 if worker < 0 else worker - self.first[task.kind],
            "member": None if member < 0 else member,
        }

    def _agree_on_error(self, found: Mapping[str, Any] | None) -> None:
        """Of failures that one step has collected, let the one be first that the trace has."""
        for error in self.model.errors:
            expected = self._expected_error(error)
            if found and all(found[key] in (expected[key], None) for key in ("task", "member")):
                self.model.errors.remove(error)
                self.model.errors.insert(0, error)
                return

    def _compare_error(self, found: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
        expected = self.model.error and self._expected_error(self.model.error)
        if found and expected and found["worker"] is None:
            expected["worker"] = None
        if found != expected:
            poisoned = found and self.model.moves.get(self.tasks[found["task"]]) == "SCHED-POISON-1"
            yield (
                f"the run's error is {_spelled(found)}, not {_spelled(expected)}",
                "SCHED-POISON-4" if poisoned else "ORCH-FAIL-1",
            )


REACHABLE = {
    "PENDING": ("PENDING", "READY", "RUNNING", "COMPLETED", "FAILED", "CONSUMED", "FREE"),
    "READY": ("READY", "RUNNING", "COMPLETED", "FAILED", "CONSUMED", "FREE"),
    "RUNNING": ("RUNNING", "COMPLETED", "FAILED", "CONSUMED", "FREE"),
    "COMPLETED": ("COMPLETED", "CONSUMED", "FREE"),
    "FAILED": ("FAILED", "CONSUMED", "FREE"),
    "CONSUMED": ("CONSUMED", "FREE"),
    "FREE": ("FREE",),
}
"""The states to which the rows of the table of ORCH-STATE lead, maybe several in one step."""
UNFOUNDED = {
    "READY": "SCHED-WIRE-2",
    "RUNNING": "SCHED-WIRE-2",
    "COMPLETED": "SCHED-COMPLETE-1",
    "FAILED": "SCHED-POISON-2",
    "CONSUMED": "ORCH-STATE-3",
    "FREE": "SCHED-CONSUME-2",
}
"""By the state that a task is in without having a reason: the rule that has the reasons."""


def _whose(name: str, member: int | None) -> str:
    return name if member is None else f"member {member} of {name}"


def _spelled(error: Mapping[str, Any] | None) -> str:
    if error is None:
        return "none"
    member = "" if error["member"] is None else f", member {error['member']}"
    worker = "" if error["worker"] is None else f", worker {error['worker']}"
    return f"{error['outcome']} of {error['task']}{worker}{member}"


# ---------------------------------------------------------------- what there is in a file
FORMAT = 1
RINGS, RING_BYTES = 4, 1 << 16
"""What a case has that does not say."""
_ADDRESS = re.compile(r"(?:ring(\d{1,2})\+)?0x([0-9a-fA-F]{1,16})", re.ASCII)


class TraceError(ValueError):
    """A file is no scheduler trace; the text says where it differs from one."""


class _Or(NamedTuple):
    """Null, or this."""

    form: Any


# A tuple has the words that can be there, a range the numbers, a list the form of each element. An
# object may lack the keys with a question mark; with the key * it has names of tasks as keys.
_NUMBER = range(1 << 53)
_WORKER = range(4096)
_MEMBER = {
    "tensors?": [{"tag": TAGS, "data": _ADDRESS, "nbytes": _NUMBER, "child_memory?": bool}],
    "worker?": _Or(_WORKER),
}
_STATE = ("FREE", "PENDING", "READY", "RUNNING", "COMPLETED", "CONSUMED", "FAILED")
_RUNNING = {
    "member": _Or(_WORKER),
    "worker": _Or(_WORKER),
    "mailbox": ("TASK_READY", "TASK_DONE"),
    "skip": bool,
}
_ERROR = {
    "outcome": tuple(ERRORS.values()),
    "task": str,
    "worker": _Or(range(-1, len(_WORKER))),
    "member": _Or(_WORKER),
}
_THEN = {
    "states": {"*": _STATE},
    "refs": _Or({"*": [_NUMBER]}),
    "running": {"*": [_RUNNING]},
    "error": _Or(_ERROR),
    "refused?": ("FAILED",),
}
_STEPS: dict[str, dict[str, Any]] = {
    "submit": {"task": str, "pool": POOLS, "members?": [_MEMBER], **_MEMBER},
    "alloc": {"task": str, "nbytes": _NUMBER},
    "end": {"task": str, "outcome": tuple(ANSWERS), "member?": _Or(_WORKER)},
    "die": {"pool": POOLS, "worker": _WORKER},
    "dispatch": {"pool": POOLS},
    "finish": {"cancel?": bool},
    **{do: {} for do in ("open_scope", "close_scope", "cancel", "reclaim")},
    **{do: {} for do in ("pass", "settle", "wire", "collect")},
}
_CASE = {
    "kind": ("trace",),
    "name": str,
    "why?": str,
    "rules?": [str],
    "next_level": _WORKER,
    "sub": _WORKER,
    "track_reads?": bool,
    "rings?": range(1, 65),
    "ring_bytes?": range(1024, 1 << 47, 1024),
    "steps": [{"do": tuple(_STEPS), "then": _THEN, "*": object}],
}
_FILE = {"format": range(FORMAT, FORMAT + 1), "about?": str, "cases": [_CASE]}


def _require(value: Any, form: Any, where: str) -> None:
    """Refuse a value that has not this form."""
    if isinstance(form, _Or):
        if value is not None:
            _require(value, form.form, where)
    elif isinstance(form, dict):
        _require_keys(value, form, where)
    elif isinstance(form, list):
        if type(value) is not list:
            raise _refusal(value, "a list", where)
        for number, one in enumerate(value):
            _require(one, form[0], f"{where}[{number}]")
    elif isinstance(form, tuple):
        if type(value) is not str or value not in form:
            raise _refusal(value, f"one of {', '.join(form)}", where)
    elif isinstance(form, range):
        if type(value) is not int or value not in form:
            steps = f" in steps of {form.step}" if form.step > 1 else ""
            raise _refusal(value, f"a number from {form[0]} to {form[-1]}{steps}", where)
    elif isinstance(form, re.Pattern):
        if type(value) is not str or not form.fullmatch(value):
            raise _refusal(value, 'an address such as "0x7000" or "ring1+0x400"', where)
    elif not isinstance(value, form):
        raise _refusal(value, "true or false" if form is bool else "a text", where)


def _require_keys(value: Any, form: dict[str, Any], where: str) -> None:
    if type(value) is not dict:
        raise _refusal(value, "an object", where)
    for name in form:
        if name.isidentifier() and name not in value:
            raise TraceError(f"{where} has no {name!r}")
    for name, one in value.items():
        key = next((key for key in (name, f"{name}?", "*") if key in form), None)
        if key is None:
            known = ", ".join(known.rstrip("?") for known in form)
            raise TraceError(f"{where} has {name[:60]!r}; its keys are {known}")
        _require(one, form[key], f"{where}.{name}")


def _refusal(value: object, form: str, where: str) -> TraceError:
    text = repr(value)
    return TraceError(f"{where} is {text[:60] + ' …' * (len(text) > 60)}, not {form}")


# ---------------------------------------------------------------- reading it
def read(path: str | Path) -> list[dict[str, Any]]:
    """Return the cases of a file; they have the keys and types of scheduler traces."""
    octets = Path(path).read_bytes()
    if octets.startswith(b"simpler_ref trace"):
        raise TraceError(
            "it is the trace of a Worker, which says when tasks ran, and not what each pass did: have a "
            "Stepper(record=FILE) take the steps, and look at this one with python -m simpler_ref trace"
        )
    try:
        whole = json.loads(octets.decode())
    except RecursionError:
        raise TraceError("it is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"it is not JSON: {error}") from None
    _require(whole, _FILE, "file")
    for number, case in enumerate(whole["cases"]):
        pools: dict[str, int] = {}
        for at, step in enumerate(case["steps"]):
            where = f"file.cases[{number}].steps[{at}]"
            words = {key: one for key, one in step.items() if key not in ("do", "then")}
            _require(words, _STEPS[step["do"]], where)
            _require_known(step, pools, case, where)
    return [*whole["cases"]]


def address(spelled: str) -> tuple[int | None, int]:
    """Return the ring, None for memory of users, and the address or offset there."""
    match = _ADDRESS.fullmatch(spelled)
    assert match is not None
    return None if match[1] is None else int(match[1]), int(match[2], 16)


def members(step: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is submitted for each worker."""
    yield from step.get("members", [step])


def _require_known(
    step: dict[str, Any], pools: dict[str, int], case: dict[str, Any], where: str
) -> None:
    """Refuse tasks, workers and rings that there are not; `pools` has how many workers are for a task."""
    workers = case[step["pool"].lower()] if "pool" in step else 0
    if step["do"] in ("submit", "alloc"):
        if step["task"] in pools:
            raise TraceError(f"{where}: there is a task {step['task']!r} before")
        pools[step["task"]] = workers
    then = step["then"]
    named = [(task, row) for task, rows in then["running"].items() for row in rows]
    named += [(then["error"]["task"], then["error"])] if then["error"] else []
    refs = then["refs"] or {}
    unknown = {step.get("task"), *then["states"], *refs, *(task for task, _ in named)}
    unknown -= {None, *pools}
    if unknown:
        raise TraceError(f"{where}: no task {min(unknown)!r} was submitted")
    for task, one in [*named, *((None, one) for one in members(step))]:
        most = workers if task is None else pools[task]
        if one.get("worker") is not None and one["worker"] >= most:
            raise TraceError(f"{where}: there is no worker {one['worker']}, only {most}")
    if any(len(pair) != 2 for pair in refs.values()):
        raise TraceError(f"{where}.then.refs: each task has two numbers, total and released")
    if "members" in step and (not step["members"] or {"tensors", "worker"} & set(step)):
        raise TraceError(f"{where}: a group has members, which have the tensors and workers")
    for one in members(step):
        for tensor in one.get("tensors", []):
            if (address(tensor["data"])[0] or 0) >= case.get("rings", RINGS):
                raise TraceError(f"{where}: there is no ring for {tensor['data']}")
