"""What a `Stepper` does, as a scheduler trace: each step, and the state of every task after it.

The file is one that ``python -m simpler_ref check`` judges, and that another implementation can follow.

Rule     SEE-CHECK-1
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine.view import slots
from .errors import TaskError
from .jit import layout as L
from .model.arguments import TaskArgs
from .model.enums import WorkerType
from .model.tensor import ContinuousTensor
from .system.values import file_path

if TYPE_CHECKING:
    from .engine.view import View
    from .engine.view.mailbox import MailboxView
    from .stepping import Stepper, Steps
    from .workers.options import Settings

_ERRORS = {L.TASK_FAILURE: "TASK_FAILURE", L.ENDPOINT_FAILURE: "ENDPOINT_FAILURE"}
Step = dict[str, Any]


def trace_file(path: Any, options: Settings) -> Path:
    """Return an empty file for the steps of a Stepper with these options."""
    if options.mailbox_depth != 1:
        raise ValueError(
            f"mailbox_depth={options.mailbox_depth}: a trace of steps has one frame each"
        )
    file = Path(file_path("record", path))
    file.write_bytes(b"")
    return file


class StepTrace:
    """Writes down what a Stepper does: it takes the place of its methods, and calls them.

    Each run is a case, whose tasks have the names of their callables and their ids.
    """

    def __init__(self, stepper: Stepper, path: Path) -> None:
        self._path = path
        self._stepper, self._view = stepper, stepper._engine.view
        self._cases: list[Step] = []
        self._tasks: dict[int, str] = {}
        self._follow(stepper, "wire", lambda task: None if task is None else {"do": "wire"})
        for name, do in (("run_pass", "pass"), ("reclaim", "reclaim"), ("collect", "collect")):
            self._follow(stepper, name, lambda _, do=do: {"do": do})
        self._follow(stepper, "dispatch", self._dispatched)
        self._follow(stepper, "kill", self._died)
        self._follow(
            stepper, "finish_run", lambda _, cancel=False: {"do": "finish", "cancel": cancel}
        )
        for thread in stepper.workers:
            ended = partial(self._ended, thread._words)
            self._follow(thread, "poll", lambda _: {"do": "collect"})
            self._follow(thread, "answer", ended)
            self._follow(
                thread, "skip", lambda done, ended=ended: ended(done) | {"outcome": "SKIPPED"}
            )

    def begin_run(self) -> None:
        """Begin the case of a run that was just opened."""
        self._tasks = {}
        kinds = [len(self._view.pool(kind)) for kind in WorkerType]
        heap = self._stepper.ring
        self._cases.append(
            {
                "kind": "trace",
                "name": f"run {len(self._cases)}",
                "next_level": kinds[0],
                "sub": kinds[1],
                "track_reads": bool(self._stepper.worker._life.options.track_reads),
                "rings": heap.ring_count(),
                "ring_bytes": heap.heap_size(0),
                "steps": [],
            }
        )
        orch = self._stepper.orch
        for name in ("_open_scope", "_close_scope", "_claim", "_send"):
            vars(orch).pop(name, None)  # it is a copy of that of the run before
        orch._quick_subs = {}  # so that all submits take the same way
        self._follow(orch, "_open_scope", lambda _: {"do": "open_scope"})
        self._follow(orch, "_close_scope", lambda _: {"do": "close_scope"})
        self._follow(orch, "_claim", self._allocated)
        orch._send = self._submitting(orch._send)  # type: ignore[method-assign]
        orch._play = self._refuse_many  # type: ignore[method-assign]

    def save(self) -> None:
        """Write all cases."""
        whole = {"format": 1, "about": "The steps of a Stepper.", "cases": self._cases}
        self._path.write_text(json.dumps(whole, indent=1), encoding="utf-8")

    # ------------------------------------------------------------ steps
    def _follow(self, owner: Any, name: str, told: Callable[..., Step | None]) -> None:
        """Have a method note its step: `told` makes it of its result and arguments."""
        method = getattr(owner, name)

        def noting(*args: Any, **more: Any) -> Any:
            result = method(*args, **more)
            step = told(result, *args, **more)
            if step is not None:
                self._note(step)
            return result

        setattr(owner, name, noting)

    def _note(self, step: Step, **refused: str) -> None:
        then = look(self._stepper, self._tasks) | refused
        self._cases[-1]["steps"].append({**step, "then": then})

    def _submitting(self, send: Callable[..., None]) -> Callable[..., None]:
        def noting(word: int, members: list[TaskArgs], workers: list[int] | None) -> None:
            kind = WorkerType(word >> L.WORD_KIND & 0xF)
            step: Step = {"do": "submit", "task": "", "pool": kind.name}
            if workers is None:
                affinity = word >> L.WORD_WORKER & L.WORKER_MASK
                step |= self._member(members[0] if members else TaskArgs(), affinity, kind)
            else:
                several = zip(members, workers, strict=True)
                step["members"] = [self._member(one, worker, kind) for one, worker in several]
            try:
                send(word, members, workers)
            except TaskError:
                step["task"] = f"refused {len(self._cases[-1]['steps'])}"
                self._note(step, refused="FAILED")
                raise
            step["task"] = self._new_task()
            self._note(step)

        return noting

    def _member(self, args: TaskArgs, worker: int, kind: WorkerType) -> Step:
        tensors = []
        for i in range(args.tensor_count()):
            tensor = args.tensor(i)
            tensors.append(
                {
                    "tag": args.tag(i).name,
                    "data": self._place(tensor.data),
                    "nbytes": tensor.nbytes(),
                    "child_memory": bool(tensor.child_memory),
                }
            )
        own = {"worker": worker - 1 - self._view.pool(kind).start} if worker else {}
        return {"tensors": tensors, **own}

    def _place(self, address: int) -> str:
        found = self._stepper._in_ring(address)
        return f"0x{address:x}" if found is None else f"ring{found[0]}+0x{found[1]:x}"

    def _new_task(self) -> str:
        task = max(self._stepper.live_tasks())
        name = self._stepper.slot_state(task).callable or "alloc"
        self._tasks[task] = f"{name} {task}"
        return self._tasks[task]

    def _allocated(self, result: ContinuousTensor, tensor: ContinuousTensor) -> Step:
        return {"do": "alloc", "task": self._new_task(), "nbytes": tensor.nbytes()}

    def _refuse_many(self, program: Any, variables: Any) -> None:
        raise RuntimeError(
            "a Stepper that records its steps takes tasks one by one: no many, no graphs"
        )

    @staticmethod
    def _dispatched(_: int, worker_type: int = WorkerType.SUB) -> Step:
        return {"do": "dispatch", "pool": WorkerType(worker_type).name}

    def _died(self, _: None, worker: int, code: int = -9) -> Step:
        kind, number = _in_pool(self._view, worker)
        return {"do": "die", "pool": kind.name, "worker": number}

    def _ended(self, words: MailboxView, _: None, error: BaseException | None = None) -> Step:
        task = self._tasks[self._view.task_of(words.given_slots()[0])[0]]
        member = {"member": words.member - 1} if words.member else {}
        outcome = "SUCCESS" if error is None else "TASK_FAILURE"
        return {"do": "end", "task": task, "outcome": outcome, **member}


# ---------------------------------------------------------------- what is so after a step
def look(steps: Steps, tasks: Mapping[int, str]) -> Step:
    """Return what a trace says of tasks, which have names by their ids, after a step."""
    states, refs, mem = {}, {}, steps._mem
    for task, name in tasks.items():
        slot = slots.find(mem, task)
        states[name] = "FREE"
        if slot is not None:
            found = slots.read_slot(mem, slot)
            states[name] = found.state.name
            refs[name] = [found.fanout_total, found.fanout_released]
    running, error = _running(steps, tasks), _error(steps._view, tasks)
    return {"states": states, "refs": refs, "running": running, "error": error}


def _in_pool(view: View, worker: int) -> tuple[WorkerType, int]:
    kind = next(kind for kind in WorkerType if worker in view.pool(kind))
    return kind, worker - view.pool(kind).start


def _running(steps: Steps, tasks: Mapping[int, str]) -> dict[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for thread in steps.workers:
        words = thread._words
        for slot in words.given_slots():
            row = {
                "member": words.member - 1 if words.member else None,
                "worker": _in_pool(steps._view, thread.index)[1],
                "mailbox": thread.mailbox.read_state().name,
                "skip": words.is_skipped,
            }
            found.setdefault(tasks[steps._view.task_of(slot)[0]], []).append(row)
    return {name: sorted(rows, key=lambda row: row["member"] or 0) for name, rows in found.items()}


def _error(view: View, tasks: Mapping[int, str]) -> Step | None:
    if not view.has_failed:
        return None
    first = view.first_failure()
    return {
        "outcome": _ERRORS[first.outcome],
        "task": tasks[first.task],
        "worker": -1 if first.worker < 0 else _in_pool(view, first.worker)[1],
        "member": None if first.member < 0 else first.member,
    }
