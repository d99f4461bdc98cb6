"""A Worker in small whose threads make calls: a stream of them, then an ordinary run.

What each call waits for is worked out beside the kernels, from the order of the calls. The lock to act as
the Orch thread is made up here; `simpler_ref/calls/orch_lock.py` has the real one.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from dataclasses import dataclass
from typing import NamedTuple

from simpler_ref.jit import entries, schedule
from simpler_ref.jit import layout as L

from .memory import DATA
from .scene import FAILED_FUNCTION, KEY, MOST_MEMBERS, NAMES, Play, Scene, as_bytes, tensor

BUFFERS = "xyz"
BLOCK = 16
"""Words from one block to the next; the kernels use its first, the holds, and BLOCK_AGAIN."""
KEYS, PAYLOADS, VALUES = 1 << 33, 1 << 34, 1 << 35
"""First blocks of a kind, each with one for every call."""
SLICE_NS = 1_000_000


class Call(NamedTuple):
    """What a thread does: it makes a call, or does something with one that was made."""

    name: str
    owner: int = -1
    reads: str = ""
    writes: str = ""
    futures: str = ""
    how: str = ""
    """"": make it; "!": cancel it; "~": drop its future; ".": wait for it and fetch its value."""

    @property
    def number(self):
        return NAMES.index(self.name)

    @property
    def uses(self):
        """The buffers with their tags, in the order of its tensors."""
        for buffer in BUFFERS:
            if buffer in self.reads and buffer in self.writes:
                yield buffer, L.INOUT
            elif buffer in self.reads:
                yield buffer, L.INPUT
            elif buffer in self.writes:
                yield buffer, L.OUTPUT_EXISTING


def parse_calls(text):
    """Read what each thread does.

    ``a@0>x b<x>y c?b .b !c ~a | d>x``: call a, for worker 0, writes x; b reads it and writes y; c gets
    the value of b; b is waited for, c cancelled, the future of a dropped; another thread calls d.
    """
    pattern = r"([!~.]?)(\w)(?:@(\d))?(?:<(\w+))?(?:>(\w+))?(?:\?(\w+))?"
    threads = []
    for part in text.split("|"):
        found = [re.fullmatch(pattern, word).groups("") for word in part.split()]
        threads.append(
            [
                Call(name, int(owner or -1), reads, writes, futures, how)
                for how, name, owner, reads, writes, futures in found
            ]
        )
    return threads


@dataclass(eq=False)
class CallScene(Scene):
    """What threads do, in the words of `parse_calls`, and how it is played."""

    retries: int = 0
    """How often a call is run again whose worker has died."""
    strands: bool = False
    """Of a single worker: it has no successor until the stream has ended."""

    def read(self):
        self.threads = parse_calls(self.text)
        made = [call for thread in self.threads for call in thread if not call.how]
        return {call.number: call for call in made}

    def new_play(self, memory, schedule, traced=False):
        return CallPlay(self, memory, schedule, traced)


class CallPlay(Play):
    """One time that a stream is played."""

    def __init__(self, scene, memory, schedule, traced=False):
        super().__init__(scene, memory, schedule, traced)
        callers = ["orch", *(f"caller {n}" for n in range(1, len(scene.threads)))]
        self.world.no_timers = callers
        self.threads_left = len(callers)
        self.holder: object = None
        """Whoever has the lock."""
        self.queued = self.helping = self.stays = False
        """A thread waits for the lock; the holder runs passes until a goal is reached; it stays."""
        self.order: list[int] = []
        """Numbers of the calls by their id."""
        self.needs: dict[int, set[int]] = {}
        """Call → those that have to succeed before it starts."""
        self.direct: dict[int, set[int]] = {}
        """Call → those that have to end before it starts; see `before`."""
        self.readers_of: dict[int, set[int]] = {}
        """Call → those among them that only read what it writes."""
        self.sources: dict[tuple[int, str], int] = {}
        """Call and buffer that it reads → the call that wrote it."""
        self.writers: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.held: dict[int, int] = {}
        """Call → its slot, while its future is there."""
        self.number_in: dict[int, int] = {}
        """Slot → the call that had it last."""
        self.dropped: deque[int] = deque()
        self.running: dict[int, object] = {}
        """Call → the process that runs it, or died of it."""
        self.answered: set[int] = set()
        self.cancelled: set[int] = set()
        self.awaited: dict[object, int] = {}
        """Thread → the call that it waits for."""

    # ------------------------------------------------------------ the lock
    def take_turn(self):
        me, world = self.world.current, self.world
        world.wait(lambda: not self.queued)
        if self.holder is not None:
            self.queued = True
            while self.holder is not None:
                if self.helping:
                    entries.want_orch(self.mem, 1)
                world.wait(lambda: self.holder is None or self.helping)
                if self.helping:
                    entries.want_orch(self.mem, 1)
                    world.wait(lambda: self.holder is None or not self.helping)
            self.queued = False
        self.holder = me

    def leave_turn(self):
        assert self.holder is self.world.current
        self.holder = None

    def help(self, call, ended=-1, live=-1):
        """Run passes with the lock until a goal is reached; leave if another thread wants it."""
        self.replace_dead()
        if call != L.STAY:
            entries.want_orch(self.mem, 0)
            if self.queued:
                return
        self.helping, self.stays = True, call == L.STAY
        entries.help_scheduler(self.mem, live, ended, -1, call, SLICE_NS)
        self.helping = False

    # ------------------------------------------------------------ threads of the user's process
    def make_run(self):
        if self.run_number > 0:
            super().make_run()
            return
        entries.begin_stream(self.mem)
        for n in range(1, len(self.scene.threads)):
            self.world.add(f"caller {n}", lambda n=n: self.act(n))
        self.act(0)
        if not self.scene.away:
            self.finish()

    def act(self, thread):
        for call in self.scene.threads[thread]:
            if call.how == ".":
                self.wait_for(call.number)
                continue
            self.take_turn()
            if call.how == "":
                self.make_call(call)
            elif call.number in self.held and call.how == "!":
                self.cancel_call(call.number)
            elif call.number in self.held:
                self.dropped.append(self.held.pop(call.number))
            self.leave_turn()
        self.threads_left -= 1

    def make_call(self, call):
        mem, number = self.mem, call.number
        word = number | L.SUB << L.WORD_KIND | call.owner + 1 << L.WORD_WORKER
        if self.dropped:
            entries.drop_call(mem, self.dropped.popleft())
        while True:
            self.replace_dead()
            futures = [NAMES.index(name) for name in call.futures]
            futures = [one for one in futures if one in self.held]
            wire = [word for one, tag in call.uses for word in tensor(tag, BUFFERS.index(one), 0)]
            scalars = [(KEYS + number * BLOCK, L.RAW)]
            scalars += [(self.held[one], L.FUTURE) for one in futures]
            scalars += [(PAYLOADS + number * BLOCK, L.PAYLOAD)]
            mem[KEYS + number * BLOCK + L.BLOCK_AGAIN] = self.scene.retries
            mem[PAYLOADS + number * BLOCK] = 1
            counts = len(wire) // L.TENSOR_WORDS | len(scalars) << L.HALF
            self.note_submit(call, futures)
            wire += [word for scalar in scalars for word in scalar]
            slot = entries.call_and_pass(mem, word, counts, as_bytes(wire))
            if slot >= 0:
                break
            assert slot == L.WOULD_BLOCK, slot
            self.order.pop()
            self.make_room()
        self.held[number] = slot
        self.number_in[slot] = number
        for buffer in call.writes:
            self.writers[buffer] = number
            self.readers[buffer] = []
        for buffer in call.reads:
            if buffer not in call.writes:
                self.readers.setdefault(buffer, []).append(number)

    def note_submit(self, call, futures):
        """Work out what a call waits for, before it is made."""
        number = call.number
        read_from = {b: self.writers[b] for b in call.reads if b in self.writers}
        direct = {self.writers[b] for b in call.writes if b in self.writers}
        self.needs[number] = {*read_from.values(), *futures}
        direct |= self.needs[number]
        readers = {one for b in call.writes for one in self.readers.get(b, [])}
        self.readers_of[number] = readers - direct
        self.direct[number] = direct | readers
        for buffer, writer in read_from.items():
            self.sources[number, buffer] = writer
        self.order.append(number)

    def make_room(self):
        """Wait for room: futures whose calls have ended make some."""
        live = self.mem[L.LIVE]
        self.clear()
        if self.mem[L.LIVE] == live:
            self.replace_dead()
            self.help(L.STAY, ended=min(self.ended() + 1, len(self.order)))
            self.clear()

    def clear(self):
        while self.dropped:
            entries.drop_call(self.mem, self.dropped.popleft())
        for number, slot in list(self.held.items()):
            if entries.has_settled(self.mem, slot):
                self.fetch(number)
        while slot := entries.take_failed(self.mem):
            kind = self.mem.peek(slot + L.S_KIND)
            assert kind in (L.VALUE_ERROR, L.VALUE_LOST, L.VALUE_STRANDED), kind
            entries.drop_call(self.mem, slot)

    def ended(self):
        return schedule.ended_tasks(self.mem)

    def wait_for(self, number):
        """Wait for a call without the lock, or with it if it is free; then fetch the value."""
        me, mem = self.world.current, self.mem
        while number in self.held and not entries.has_settled(mem, self.held[number]):
            self.awaited[me] = number
            if self.holder is None and not self.queued:
                self.holder = me
                self.help(self.held[number])
                self.leave_turn()
                self.world.wait(lambda: not self.queued)
            else:
                self.world.wait(lambda: self.may_look(number))
        self.awaited.pop(me, None)
        self.take_turn()
        if number in self.held and entries.has_settled(mem, self.held[number]):
            self.fetch(number)
        self.leave_turn()

    def may_look(self, number):
        """Say whether a thread that waits for a call has something to do."""
        if (self.holder is None and not self.queued) or number not in self.held:
            return True
        slot, peek = self.held[number], self.mem.peek
        state = peek(slot + L.S_STATE)
        return state == L.COMPLETED or (state == L.FAILED and peek(slot + L.S_FANIN) == 0)

    def cancel_call(self, number):
        if entries.cancel_call(self.mem, self.held[number]):
            assert not self.is_running(number), f"{NAMES[number]} is cancelled while it runs"
            self.cancelled.add(number)
            self.fetch(number)

    def fetch(self, number):
        """Look at the outcome of a call, and drop its future."""
        slot = self.held.pop(number)
        self.check_outcome(number, slot)
        entries.drop_call(self.mem, slot)

    def finish(self):
        """End the stream when all threads have made their calls."""
        mem = self.mem
        self.world.wait(lambda: self.threads_left == 0)
        self.take_turn()
        if self.scene.cancel:
            entries.cancel_calls(mem)
        while self.ended() < len(self.order):
            self.help(L.STAY, ended=len(self.order))
        self.settle()
        self.clear()
        assert not self.held, f"{self.held} have ended, and not settled"
        entries.end_stream(mem)
        while mem[L.LIVE] != 0:
            self.help(L.STAY, live=0)
        self.check_stream()
        entries.reset_stream(mem)
        self.leave_turn()

    def settle(self):
        """Wait for calls that have failed, and that a worker has yet to answer not to have begun."""
        for slot in self.held.values():
            while not entries.has_settled(self.mem, slot):
                self.help(slot)

    def unheard(self):
        dead = super().unheard()
        if dead and self.run_number == 0:
            self.world.no_timers = ()  # whoever helps looks after dead workers now and then
        return dead

    def replace_dead(self):
        mem, dead = self.mem, sorted(self.reported)
        if self.run_number > 0 or mem.peek(L.STREAM) == 0:
            super().replace_dead()
        elif dead:
            entries.settle_deaths(mem)
            if self.scene.strands:
                entries.strand(mem, 1)
            else:
                self.hire_successors(dead)
                entries.strand(mem, 0)

    # ------------------------------------------------------------ workers
    def call(self, worker, frame, function):
        if self.run_number > 0:
            return super().call(worker, frame, function)
        mem, world = self.mem, self.world
        start = schedule.worker_at(mem, worker) + frame * L.WORKER_WORDS
        args = start + L.W_MAILBOX + L.MAIL_COUNTS
        scalars = args + 1 + (mem[args] & 0xFFFFFFFF) * L.TENSOR_WORDS
        number = (mem[scalars] - KEYS) // BLOCK
        call = self.program[number]
        assert function == number, f"{call.name} comes with the function of {NAMES[function]}"
        self.check_start(number)
        again = (number, 0) in self.begun
        self.begun.add((number, 0))
        self.running[number] = world.current
        world.note(f"calls {call.name}")
        world.progress()
        places = {}
        for i, (buffer, _) in enumerate(call.uses):
            data = mem[args + 1 + i * L.TENSOR_WORDS + L.TENSOR_DATA]
            assert data == KEY + 8 * MOST_MEMBERS * BUFFERS.index(buffer)
            places[buffer] = DATA + (data - KEY) // 8
        right = {b: self.written_by(self.sources.get((number, b))) for b in call.reads}
        seen = {b: mem[places[b]] for b in call.reads}
        if not (again and call.writes):  # it may have written before it was lost
            assert seen == right, f"{call.name} reads {seen}, not {right}"
        self.check_values(number, mem[args] >> L.HALF, scalars, start + L.W_KINDS)
        if call.name in self.scene.services:
            self.calls[worker] = number, 0, 0
            world.wait(lambda: False)
        for buffer in call.writes:
            mem[places[buffer]] = self.content(number, 0)
        world.step()
        for buffer in {*call.reads, *call.writes}:
            value = self.content(number, 0) if buffer in call.writes else seen[buffer]
            now = mem[places[buffer]]
            assert now == value, f"while {call.name} runs, {buffer} changes from {value} to {now}"
        fails = call.name in self.scene.fails
        mem[VALUES + number * BLOCK] = 1
        mem[start + L.W_VALUE] = VALUES + number * BLOCK
        mem[start + L.W_KIND] = L.VALUE_ERROR if fails else L.VALUE_BLOCK
        self.calls[worker] = number, 0, int(fails)
        return FAILED_FUNCTION if fails else 0

    def written_by(self, writer):
        return 0 if writer is None else self.content(writer, 0)

    def check_values(self, number, count, scalars, kinds):
        """The values of futures are there, and their blocks are held."""
        mem = self.mem
        for k in range(1, count - 1):
            kind = mem[kinds + (k >> 3)] >> 8 * (k & 7) & 0xFF
            assert kind == L.FETCHED | L.VALUE_BLOCK, f"{NAMES[number]} gets a value of kind {kind}"
            block = mem[scalars + k]
            assert mem.peek(block) > 0, f"a value that {NAMES[number]} gets is freed"
            assert (block - VALUES) // BLOCK in self.needs[number]

    def exchanged(self, value):
        for worker, actor in self.serving.items():
            ends = actor is self.world.current and value & 0xFFFFFFFF == L.TASK_DONE
            if ends and self.run_number == 0 and worker in self.calls:
                number = self.calls[worker][0]
                self.answered.add(number)
                del self.running[number]
        super().exchanged(value)

    # ------------------------------------------------------------ what must hold
    def is_running(self, number):
        return number in self.running and not self.running[number].died

    def check_start(self, number):
        name = NAMES[number]
        assert number not in self.cancelled, f"{name} was cancelled, and starts"
        assert number not in self.answered, f"{name} starts again after its end"
        assert not self.is_running(number), f"{name} starts twice"
        lost = number in self.running
        assert not lost or self.scene.retries, f"{name} starts again, and was lost"
        for other in self.needs[number]:
            assert self.went_well(other), f"{name} starts, and {NAMES[other]} was not done"
        for other in self.before(number):
            assert not self.is_running(other), f"{name} starts while {NAMES[other]} runs"
        for later in self.order:
            begun = (later, 0) in self.begun and number in self.before(later)
            assert not begun, f"{name} starts after {NAMES[later]}, which had to wait for it"

    def before(self, number):
        """Return the calls that have to end before one starts; who never starts to read has none."""
        found = set(self.direct[number])
        for one in self.direct[number]:
            if one not in self.readers_of[number] or (one, 0) in self.begun:
                found |= self.before(one)
        return found

    def went_well(self, number):
        if self.run_number > 0:
            return super().went_well(number)
        return (number, 0) in self.stood

    def may_fail(self, number, task):
        if self.run_number > 0:
            return super().may_fail(number, task)
        if any(not self.went_well(one) for one in self.needs[number]):
            return True
        return self.may_fail_alone(number)

    def may_fail_alone(self, number):
        """Say whether a call has a reason to fail that is not another's failure."""
        begun = (number, 0) in self.begun
        if number in self.cancelled or (self.scene.cancel and number not in self.answered):
            return True
        if NAMES[number] in self.scene.fails and begun:
            return True
        if self.scene.strands and len(self.was_dead) == self.scene.workers:
            return True
        had_it = {worker for one, _, worker in self.world.history if self.order[one] == number}
        return not had_it.isdisjoint(self.was_dead)

    def check_outcome(self, number, slot):
        """A call that has ended, or is cancelled, says how."""
        peek, name = self.mem.peek, NAMES[number]
        state, value, kind = (peek(slot + at) for at in (L.S_STATE, L.S_VALUE, L.S_KIND))
        if state == L.COMPLETED:
            assert self.went_well(number), f"{name} was not done, and is COMPLETED"
            assert (kind, value) == (L.VALUE_BLOCK, VALUES + number * BLOCK), (name, kind, value)
            return
        assert state == L.FAILED, f"{name} has ended in state {state}"
        assert not self.went_well(number), f"{name} was done, and has failed"
        assert self.may_fail(number, None), f"{name} has failed without a reason"
        origin = self.number_in[-value] if value < 0 else number
        chain = {number}.union(*(self.causes(number)))
        assert origin in chain, f"{name} blames {NAMES[origin]}"
        assert self.may_fail_alone(origin), f"{NAMES[origin]} is blamed, and another's fault"
        if value >= 0:
            allowed = (L.VALUE_ERROR, L.VALUE_LOST, L.VALUE_STRANDED)
            assert kind in allowed, f"{name} has failed with a value of kind {kind}"
            poisoned = [one for one in self.needs[number] if not self.went_well(one)]
            assert not poisoned, f"{name} does not blame {NAMES[poisoned[0]]}"

    def causes(self, number):
        """Return, for each call that one needs, that call and all that it needs in turn."""
        return [{one}.union(*self.causes(one)) for one in self.needs[number]]

    def check_stream(self):
        """The stream is over: each call has ended once, and nothing is left behind."""
        peek = self.mem.peek
        ends = Counter(
            self.order[one]
            for one, event, _ in self.world.history
            if event in ("complete", "fail", "poison")
        )
        for number in self.order:
            assert ends[number] == 1, f"{NAMES[number]} has ended {ends[number]} times"
            holds = peek(PAYLOADS + number * BLOCK)
            assert holds == 0, f"the arguments of {NAMES[number]} have {holds} holds"
            if number in self.answered:
                holds = peek(VALUES + number * BLOCK)
                assert holds == 0, f"the value of {NAMES[number]} has {holds} holds"
        done = sum(map(self.went_well, self.order))
        counts = peek(L.COMPLETED_COUNT), peek(L.FAILED_COUNT)
        assert counts == (done, len(self.order) - done), f"{counts}, but {done} are done"
        left = {"ACCESS_COUNT": peek(L.ACCESS_COUNT), "NOTED": peek(L.NOTED)}
        assert not any(left.values()), f"left behind: {left}"
        self.check_left()

    def check_liveness(self):
        """No call that can start is left while a worker that may run it has nothing to do."""
        assert not self.queued or self.stays, "a thread waits for the lock"
        for actor, number in self.awaited.items():
            assert not self.is_gone(number), f"{actor} waits for {NAMES[number]}, which has ended"
        idle = {
            worker
            for worker in range(self.scene.workers)
            if worker not in self.calls and not self.has_task(worker)
        }
        for number in self.order:
            if self.waits_for_a_worker(number):
                owner = self.program[number].owner
                fit = idle if owner < 0 else idle & {owner}
                assert not fit, self.blame(number, fit)

    def waits_for_a_worker(self, number):
        if (number, 0) in self.begun or number in self.cancelled or self.is_given(number):
            return False
        if not all(map(self.went_well, self.needs[number])):
            return False
        return all(map(self.is_gone, self.before(number)))

    def is_given(self, number):
        """Say whether a worker has been given a call, behind another one perhaps."""
        slots = [slot for slot, one in self.number_in.items() if one == number]
        return not slots or self.mem.peek(slots[0] + L.S_FRAME) != 0

    def is_gone(self, number):
        """Say whether nothing has to wait for a call again: it has ended, after all that it waits for."""
        if number in self.answered:
            return True
        fails = number in self.cancelled or any(
            self.is_gone(one) and not self.went_well(one) for one in self.needs[number]
        )
        return fails and all(map(self.is_gone, self.before(number)))


def draw_calls(rng, size, workers):
    """Return what threads do with so many calls."""
    words = []
    for number, name in enumerate(NAMES[:size]):
        where = rng.choice(["", "", *(f"@{worker}" for worker in range(workers))])
        for sign, likely in [("<", 0.35), (">", 0.35)]:
            used = "".join(one for one in BUFFERS if rng.random() < likely)
            where += sign * bool(used) + used
        futures = "".join(one for one in NAMES[:number] if rng.random() < 0.2)
        words.append(name + where + "?" * bool(futures) + futures)
        if rng.random() < 0.4:
            words.append(rng.choice("!~~.") + rng.choice(NAMES[: number + 1]))
    if rng.random() < 0.5:
        words.insert(rng.randint(1, len(words)), "|")
    return " ".join(words)


def draw_scene(rng: random.Random, kind: str) -> CallScene:
    """Return a scene with calls: `kind` is "liveness" or "death"."""
    size, workers = rng.randint(2, 6), rng.choice([1, 2, 2, 2, 3])
    how = {
        "workers": workers,
        "depth": rng.choice([1, 2, 2, 3]),
        "spin_ns": rng.choice([0, 300, 300, 1500]),
        "yield_ns": rng.choice([0, 0, 300]),
        "fails": "".join(rng.sample(NAMES[:size], rng.choice([0, 0, 1, 2]))),
    }
    if kind == "liveness":
        how |= {"services": "".join(rng.sample(NAMES[:size], rng.randint(0, 2))), "away": True}
    else:
        how |= {"runs": 2, "requests": rng.choice([0, 0, 1]), "retries": rng.choice([0, 1])}
        how |= {"cancel": rng.random() < 0.2, "strands": workers == 1 and rng.random() < 0.5}
    text = draw_calls(rng, size, workers)
    if kind == "liveness" and not how["fails"] and "!" not in text:
        how["window"] = rng.choice([3, 16])  # a failed call that was to write keeps its slot
    return CallScene(text, **how)
