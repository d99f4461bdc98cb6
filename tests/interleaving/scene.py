"""A Worker in small: Orch thread, Scheduler thread, monitor and workers, and what must hold for them.

All of them run the real kernels. What is made up here is what stands around these: the loop of a worker,
the run of the Orch thread, the replacement of the dead. A task's function reads what its producers wrote
and writes a number of its own; a *service* never ends.
"""

from __future__ import annotations

import re
import struct
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from simpler_ref.jit import entries, schedule, submit
from simpler_ref.jit import layout as L

from .actors import World, played
from .memory import DATA, Memory, Recorder, WeakMemory
from .schedules import Drawn, InTurn

NAMES = "abcdefgh"
THREAD = 7
"""What a new worker says which thread it is."""
RESULT = L.MAILBOX_OFF_CONTROL_RESULT // L.WORD
KEY = 0x1000
"""Address of the first tensor."""
MOST_MEMBERS = 8
TIMER_NS = 500_000
STUCK_NS = 5_000_000_000
PARK_NS = 100_000_000
FAILED_FUNCTION = 1
WARM_UP = 12
"""So many plays find out which words are shared, and before which a schedule has to choose."""
AFTERWARDS = "a b<a c<a d<bc"
"""What the run after a death has to do."""


class Task(NamedTuple):
    """What is submitted."""

    producers: list[int]
    """The tasks that it reads from."""
    owner: int = -1
    members: int = 0
    """Of a group, 0 for a task of its own."""


def parse(program: str) -> list[Task]:
    """Read a program: ``a@0 b<a c*2<ab`` is a task for worker 0, one behind it, a group behind both."""
    tasks = []
    for word in program.split():
        members, at, producers = re.fullmatch(r"\w(?:\*(\d))?(?:@(\d))?(?:<(\w+))?", word).groups(
            ""
        )
        numbers = [NAMES.index(name) for name in producers]
        tasks.append(Task(numbers, int(at or -1), int(members or 0)))
    return tasks


def draw_program(rng, size: int, workers: int, groups: float, edges: float) -> str:
    """Return a program; how likely a task is a group, and reads from each earlier one, is given."""
    words = []
    for number, name in enumerate(NAMES[:size]):
        where = rng.choice(["", "", *(f"@{worker}" for worker in range(workers))])
        if workers > 1 and rng.random() < groups:
            where = f"*{rng.randint(2, workers)}"
        before = "".join(one for one in NAMES[:number] if rng.random() < edges)
        words.append(name + where + "<" * bool(before) + before)
    return " ".join(words)


def as_bytes(words: list[int]) -> bytes:
    """Return words as an entry takes them."""
    return struct.pack(f"<{len(words)}q", *words)


@dataclass(eq=False)
class Scene:
    """A program, in the words of `parse`, and how it is played."""

    text: str
    _: KW_ONLY
    workers: int = 2
    depth: int = 2
    services: str = ""
    """Names of tasks that never end."""
    fails: str = ""
    """Names of tasks that fail."""
    bulk: bool = False
    """Its tasks are some of a bulk that has not come to its end."""
    away: bool = False
    """After its submits the Orch thread never comes back."""
    drains: bool = False
    cancel: bool = False
    """It is cancelled after its submits."""
    runs: int = 1
    """All but the first have AFTERWARDS to do."""
    requests: int = 0
    """So many threads make control requests."""
    spin_ns: int = 300
    yield_ns: int = 0
    window: int = 16
    """So many tasks may be alive."""

    def __post_init__(self):
        self.program, self.after = self.read(), parse(AFTERWARDS)
        self.image = self.started()
        self.cells: set[int] = set()
        self.points: set[int] = set()
        for seed in range(WARM_UP):
            recorder = Recorder(self.image)
            play = self.new_play(recorder, Drawn(f"warm {seed}"))
            if seed % 3 == 2:
                play.to_die = {seed % self.workers: 3 + 2 * seed}
            play.run()
            self.cells |= recorder.shared()
            self.points |= recorder.racy()
        self.points &= self.cells

    def read(self):
        return parse(self.text)

    def new_play(self, memory, schedule, traced=False):
        return Play(self, memory, schedule, traced)

    def started(self):
        """Return the words of an engine whose workers are ready."""
        memory, pools = Memory({}), {"next_level": 0, "sub": self.workers}
        _, geometry = L.plan(window=self.window, rings=1, depth=self.depth, **pools)
        L.initialise(
            memory,
            geometry,
            heap_bases=[1 << 30],
            heap_size=1 << 20,
            spin_ns=self.spin_ns,
            yield_ns=self.yield_ns,
            defer_ns=2 * self.spin_ns,
            cores=2,
            beside=False,
            track_reads=False,
            park_ns=PARK_NS,
            stuck_ns=STUCK_NS,
        )
        for function in range(len(NAMES)):
            for k in range(L.DIGEST_WORDS):
                memory[memory[L.A_CALLABLES] + function * L.DIGEST_WORDS + k] = function + 1
        with played(World(memory, InTurn())):
            for worker in range(self.workers):
                entries.report_ready(memory, worker)
                entries.set_usable(memory, worker, 1)
        return dict(memory)

    def play(self, schedule, **how):
        """Play it once; return the play, of which everything that must hold has been checked."""
        play = self.begin(schedule, **how)
        play.run()
        play.check()
        return play

    def begin(self, schedule, *, deaths=None, weak=False, traced=False):
        """Return what is played then; `deaths`: after how many stores a worker dies."""
        memory = WeakMemory if weak else Memory
        play = self.new_play(memory(self.image, self.cells, self.points), schedule, traced)
        play.to_die = deaths or {}
        return play


class Play:
    """One time that a scene is played."""

    def __init__(self, scene, memory, schedule, traced=False):
        self.scene, self.mem = scene, memory
        self.world = World(memory, schedule, no_timers=("orch",), traced=traced)
        self.world.exchanged = self.exchanged
        self.to_die: dict[int, int] = {}
        """Worker → after so many stores it dies, counted from its start."""
        self.serving: dict[int, object] = {}
        """Worker → the actor that is it now."""
        self.calls: dict[int, tuple[int, int, int]] = {}
        """Worker → the task and member that it has called, and whether that fails."""
        self.program = scene.program
        self.run_number = 0
        self.slots: list[int] = []
        self.begun: set[tuple[int, int]] = set()
        self.stood: set[tuple[int, int]] = set()
        """Tasks and members of which an answer that says SUCCESS stood in a mailbox."""
        self.reported: set[int] = set()
        self.was_dead: set[int] = set()
        """Workers that were dead at any time in this run."""
        self.told = 0
        """How often somebody was told of a group that waits."""
        self.claimed: set[int] = set()
        """Workers to which a request is being made, or which are being replaced."""
        self.closing = False
        self.replaced: list[tuple[object, str, object]] = []
        """What stands elsewhere in a module while this is played, and its value before."""

    def replace(self, module, name, value):
        """Give a name of a module another value until the play ends, whoever is in the midst of it."""
        self.replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def run(self, before=None, actors=None):
        """Let all actors go on until none can.

        A part of a scene: `before` adds those who come first, `actors` others than all of them.
        """
        with played(self.world) as world:
            try:
                if before is not None:
                    before(self)
                    world.run()
                (actors or Play.add_all)(self)
                world.run()
            finally:
                while self.replaced:
                    setattr(*self.replaced.pop())
            self.asleep = [actor.name for actor in world.actors if not actor.ended]

    def add_all(self):
        self.world.add("orch", self.orch)
        self.add_others()

    def add_others(self):
        """Add everybody but the Orch thread."""
        world = self.world
        world.add("scheduler", self.scheduler)
        world.add("monitor", self.monitor)
        for worker in range(self.scene.workers):
            self.hire(worker)
        for number in range(self.scene.requests):
            world.add(f"requester {number}", lambda number=number: self.request(number))

    # ------------------------------------------------------------ the user's process
    def orch(self):
        mem, scene = self.mem, self.scene
        for number in range(scene.runs):
            if number > 0:
                self.program = scene.after
            self.begin(number)
            self.make_run()
            if scene.away:
                return
            self.replace_dead()
        self.claim(range(scene.workers))
        self.closing = True
        self.claimed.clear()
        for worker in range(scene.workers):
            entries.request_stop(mem, worker)
        entries.stop_scheduler(mem)

    def make_run(self):
        mem, scene = self.mem, self.scene
        entries.begin_run(mem)
        for task in range(len(self.program)):
            if not self.submit(task):
                break
        if scene.away:
            return
        if scene.drains:
            self.drain()
        entries.finish_run(mem, int(scene.cancel and self.run_number == 0))
        while entries.help_scheduler(mem, 0, -1, -1, L.NONE, PARK_NS) != L.OK:
            pass
        self.check_run()
        entries.end_run(mem)

    def drain(self):
        """Wait, in the middle of the run, for what was submitted: then all of it has its outcome."""
        while entries.help_scheduler(self.mem, -1, len(self.slots), -1, L.NONE, PARK_NS) != L.OK:
            pass
        states = [self.mem[slot + L.S_STATE] for slot in self.slots]
        ended = (L.COMPLETED, L.CONSUMED, L.FAILED)
        assert all(state in ended for state in states), f"drained, and left are {states}"

    def begin(self, number):
        self.run_number = number
        self.slots, self.begun, self.stood = [], set(), set()
        self.was_dead = {worker for worker, actor in self.serving.items() if actor.died}
        self.world.history.clear()

    def submit(self, number):
        """Submit a task; say whether it was taken."""
        mem, task = self.mem, self.program[number]
        parts = max(1, task.members)
        tensors, scalars, members = [], [], []
        for part in range(parts):
            reads = [
                tensor(L.INPUT, producer, member)
                for producer in task.producers
                for member in range(max(1, self.program[producer].members))
            ]
            tensors += [*reads, tensor(L.OUTPUT_EXISTING, number, part)]
            scalars += [(number, L.RAW), (part, L.RAW)]
            members += [1 + len(reads) | 2 << 32, 0]
        wire = [word for words in (*tensors, *scalars) for word in words]
        counts = len(tensors) | len(scalars) << 32
        word = number | L.SUB << L.WORD_KIND | task.owner + 1 << L.WORD_WORKER
        while True:
            taken = mem[L.WIRING_TAKEN]
            if self.scene.bulk:
                rest = members if task.members else []
                code = submit.submit_task(mem, word, counts, task.members, wire + rest)
                if code >= 0:
                    schedule.pass_in_bulk(mem, code)
            else:
                whole = as_bytes(wire + members if task.members else wire)
                code = entries.submit_and_pass(mem, word, counts, task.members, whole)
            if code != L.WOULD_BLOCK:
                break
            entries.help_scheduler(mem, -1, -1, taken, L.NONE, PARK_NS)
        if code >= 0:
            self.slots.append(code & ~L.AUTO_OUTPUT)
        assert code >= 0 or code == L.RUN_FAILED, code
        if code == L.RUN_FAILED:
            failed = mem[L.ERROR_TASK]
            assert not self.went_well(failed), f"{NAMES[failed]} was done, and is blamed"
            message = mem[L.ERROR_MSG]
            assert mem[L.RUN_ERROR] != L.TASK_FAILURE or message == failed + 1, message
        return code >= 0

    def scheduler(self):
        while entries.scheduler_loop(self.mem, TIMER_NS) == L.STUCK:
            self.told += 1

    def monitor(self):
        while True:
            self.world.wait(self.unheard)
            for worker in self.unheard():
                self.was_dead.add(worker)
                if not self.closing:
                    entries.report_death(self.mem, worker, -9)
                self.reported.add(worker)

    def unheard(self):
        return [
            worker
            for worker, actor in self.serving.items()
            if actor.died and worker not in self.reported
        ]

    def replace_dead(self):
        self.hire_successors(sorted(self.reported))

    def hire_successors(self, dead):
        mem = self.mem
        self.claim(dead)
        for worker in dead:
            entries.set_usable(mem, worker, 0)
            self.reported.discard(worker)
            self.calls.pop(worker, None)
            self.hire(worker, fresh=True)
        for worker in dead:
            answer = entries.wait_ready(mem, worker, PARK_NS)
            assert answer == L.OK, f"worker {worker} does not get ready: {answer}"
            thread = mem[schedule.worker_at(mem, worker) + L.W_THREAD]
            assert thread == THREAD, f"worker {worker} is ready, and says it is thread {thread}"
            entries.set_usable(mem, worker, 1)
        self.claimed -= set(dead)

    def claim(self, workers):
        """Wait until nobody makes a request to some workers, and keep others from it."""
        for worker in workers:
            self.world.wait(lambda worker=worker: worker not in self.claimed)
            self.claimed.add(worker)

    def request(self, number):
        """Make a control request, as a thread of the user's process."""
        worker = number % self.scene.workers
        self.claim([worker])
        if not self.closing:
            self.request_of(worker)
        self.claimed.discard(worker)

    def request_of(self, worker):
        mem = self.mem
        if entries.claim_mailbox(mem, worker, PARK_NS) != L.OK:
            return
        w = schedule.worker_at(mem, worker)
        box = w + mem[w + L.W_TAIL] + L.W_MAILBOX
        mem[box + L.MAIL_COMMAND] = L.CTRL_COPY_TO
        mem[box + L.MAIL_CONFIG] = 41
        answer = entries.request_control(mem, worker, PARK_NS)
        assert answer in (0, L.ILLEGAL), f"a request to worker {worker} is answered {answer}"
        assert answer != 0 or mem[box + RESULT] == 42, f"the answer is {mem[box + RESULT]}"
        entries.release_mailbox(mem, worker)

    # ------------------------------------------------------------ workers
    def hire(self, worker, fresh=False):
        name = f"worker {worker}" + (" again" if fresh else "")
        actor = self.world.add(name, lambda: self.serve(worker, fresh), process=True)
        self.serving[worker] = actor
        if not fresh:
            actor.dies_after = self.to_die.get(worker)

    def serve(self, worker, fresh):
        mem = self.mem
        if fresh:
            w = schedule.worker_at(mem, worker)
            mem[w + L.W_THREAD] = THREAD
            entries.report_ready(mem, worker)
        local = L.PARK
        while local != L.STOP:
            if local == L.PARK:
                local = entries.park_and_receive(mem, worker)
            elif local == L.CONTROL:
                self.obey(worker)
                local = entries.finish_control_and_receive(mem, worker, 0)
            elif local == L.RESOLVE:
                w = schedule.worker_at(mem, worker)
                digest = mem[w + mem[w + L.W_AT] + L.W_MAILBOX + L.MAIL_DIGEST]
                local = entries.remember(mem, worker, digest - 1, 0)
            else:
                error = self.call(worker, local >> 32, local & 0xFFFFFFFF)
                local = entries.finish_and_receive(mem, worker, error)
        assert self.closing, f"worker {worker} stops, and nobody has asked it to"

    def obey(self, worker):
        """Do what a control request says: here that is to add one to a number."""
        mem, w = self.mem, schedule.worker_at(self.mem, worker)
        box = w + mem[w + L.W_AT] + L.W_MAILBOX
        seen = mem[box + L.MAIL_COMMAND]
        assert seen == L.CTRL_COPY_TO, f"worker {worker} reads the request {seen}"
        mem[box + RESULT] = mem[box + L.MAIL_CONFIG] + 1
        mem[box + L.MAIL_ERROR_MSG] = 0

    def call(self, worker, frame, function):
        """Run a task's function: read what its producers wrote, and write a number."""
        mem, world = self.mem, self.world
        args = (
            schedule.worker_at(mem, worker) + frame * L.WORKER_WORDS + L.W_MAILBOX + L.MAIL_COUNTS
        )
        tensors = mem[args] & 0xFFFFFFFF
        scalars = args + 1 + tensors * L.TENSOR_WORDS
        number, part = mem[scalars], mem[scalars + 1]
        task = NAMES[number]
        assert function == number, f"{task} comes with the function of {NAMES[function]}"
        assert (number, part) not in self.begun, f"{task} starts twice"
        self.begun.add((number, part))
        world.note(f"calls {task}")
        world.progress()
        for i in range(tensors - 1):
            data = mem[args + 1 + i * L.TENSOR_WORDS + L.TENSOR_DATA]
            producer, member = divmod((data - KEY) // 8, MOST_MEMBERS)
            seen, right = mem[DATA + (data - KEY) // 8], self.content(producer, member)
            assert seen == right, f"{task} reads {seen} from {NAMES[producer]}, not {right}"
        config = mem[args - L.MAIL_COUNTS + L.MAIL_CONFIG]
        assert config == 0, f"{task} comes with the configuration {config}"
        if self.run_number == 0 and NAMES[number] in self.scene.services:
            self.calls[worker] = number, part, 0
            world.wait(lambda: False)
        fails = self.run_number == 0 and NAMES[number] in self.scene.fails
        data = mem[args + 1 + (tensors - 1) * L.TENSOR_WORDS + L.TENSOR_DATA]
        mem[DATA + (data - KEY) // 8] = self.content(number, part)
        if fails:
            mem[args - L.MAIL_COUNTS + L.MAIL_ERROR_MSG] = number + 1
        self.calls[worker] = number, part, int(fails)
        return FAILED_FUNCTION if fails else 0

    def content(self, number, part):
        return 1000 * (self.run_number + 1) + MOST_MEMBERS * number + part

    def exchanged(self, value):
        """Note that an answer stands, before its worker can die of the store."""
        for worker, actor in self.serving.items():
            if actor is self.world.current and value & 0xFFFFFFFF == L.TASK_DONE:
                self.world.progress()
                number, part, failed = self.calls.pop(worker, (None, 0, 1))
                if not failed and value >> 32 == L.SUCCESS:
                    self.stood.add((number, part))

    # ------------------------------------------------------------ what must hold
    def went_well(self, number):
        parts = max(1, self.program[number].members)
        return all((number, part) in self.stood for part in range(parts))

    def check_run(self):
        """The run is over: everything has its outcome, and nothing is left behind."""
        peek = self.mem.peek
        events = [(number, event) for number, event, _ in self.world.history]
        for number, task in enumerate(self.program[: len(self.slots)]):
            name, completed = NAMES[number], (number, "complete") in events
            failed = (number, "fail") in events or (number, "poison") in events
            assert completed != failed, f"{name}: completed {completed}, failed {failed}"
            if self.went_well(number):
                assert completed, f"{name} was done, and has failed"
            else:
                assert failed, f"{name} was not done, and is COMPLETED"
                assert self.may_fail(number, task), f"{name} has failed without a reason"
        done = sum(self.went_well(number) for number in range(len(self.slots)))
        counts = peek(L.COMPLETED_COUNT), peek(L.FAILED_COUNT)
        assert counts == (done, len(self.slots) - done), f"{counts}, but {done} are done"
        cancelled = self.run_number == 0 and self.scene.cancel
        assert cancelled or (peek(L.RUN_ERROR) != 0) == (done < len(self.slots))
        self.check_left()

    def check_left(self):
        peek = self.mem.peek
        left = {
            "BUSY": peek(L.BUSY),
            "not DEALT": peek(L.WIRING_PUSHED) - peek(L.DEALT),
            "AFFINITY": peek(L.AFFINITY + L.SUB),
            "CONSUMED_HEAD": peek(L.CONSUMED_HEAD),
            "DEFERRED_SINCE": peek(L.DEFERRED_SINCE + L.SUB),
            "STUCK_SINCE": peek(L.STUCK_SINCE + L.SUB),
            "READY": peek(L.READY_CHAINS + 2 * L.SUB),
            "wiring": peek(L.WIRING_PUSHED) - peek(L.WIRING_TAKEN),
        }
        assert not any(left.values()), f"left behind: {left}"

    def may_fail(self, number, task):
        if self.run_number == 0 and self.scene.cancel and (number, 0) not in self.begun:
            return True
        if self.run_number == 0 and NAMES[number] in self.scene.fails:
            return True
        if any(not self.went_well(producer) for producer in task.producers):
            return True
        workers = {worker for task, _, worker in self.world.history if task == number}
        if len(self.was_dead) == self.scene.workers:
            return True
        return bool(self.was_dead) and (
            task.members > 0 or task.owner in self.was_dead or bool(workers & self.was_dead)
        )

    def check(self):
        """Nobody can do anything more: that must be because nothing is left to do."""
        if self.scene.away:
            self.check_liveness()
            return
        awake = [name for name in self.asleep if name != "monitor"]
        assert not awake, f"{', '.join(awake)}: asleep for ever"

    def check_liveness(self):
        """No ready task is left while a worker that may run it has nothing to do."""
        idle = {
            worker
            for worker in range(self.scene.workers)
            if worker not in self.calls and not self.has_task(worker)
            and not self.serving[worker].died
        }  # fmt: skip
        ready = [number for number in range(len(self.slots)) if self.waits_for_a_worker(number)]
        groups = [number for number in ready if self.program[number].members]
        for number in groups:
            assert len(idle) < self.program[number].members, self.blame(number, idle)
            assert self.told, f"nobody is told that group {NAMES[number]} waits"
        if groups:  # a group keeps its place before what came later
            return
        for number in ready:
            owner = self.program[number].owner
            fit = idle if owner < 0 else idle & {owner}
            assert not fit, self.blame(number, fit)

    def blame(self, number, idle):
        workers = ", ".join(map(str, sorted(idle)))
        return f"{NAMES[number]} is ready and idle workers {workers} are not given it"

    def has_task(self, worker):
        """Say whether a task stands in a worker's frames that it has not answered."""
        first = self.mem.peek(L.A_WORKERS) + worker * self.mem.peek(L.WORKER_STRIDE)
        return any(
            self.mem.peek(first + frame * L.WORKER_WORDS + L.W_MAILBOX + L.MAIL_STATE) & 0xFFFFFFFF
            == L.TASK_READY
            for frame in range(self.scene.depth)
        )

    def waits_for_a_worker(self, number):
        slot, task = self.slots[number], self.program[number]
        if any((number, part) in self.begun for part in range(max(1, task.members))):
            return False
        if not all(self.went_well(producer) for producer in task.producers):
            return False
        state = self.mem.peek(slot + L.S_STATE)
        placed = not task.members and self.mem.peek(slot + L.S_FRAME) != 0
        return state == L.READY or (state == L.PENDING and not placed)


def tensor(tag, task, member):
    """Return the words of a tensor of eight bytes on its way into submit."""
    shape = 8 | 0 << 32
    return [
        *(KEY + 8 * (MOST_MEMBERS * task + member), shape, 0, 1 << 32),
        4 | tag << L.TENSOR_TAG_SHIFT,
    ]
