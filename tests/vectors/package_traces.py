"""Has the package take the steps of tag-walks.json, rings.json and scheduler.json."""

from simpler_ref import RingFullError
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Ring
from simpler_ref.step_trace import look
from simpler_ref.task_interface import TensorArgType

from ..support import Arg, Driver, Member

POOLS = ("NEXT_LEVEL", "SUB")
WALKERS = {"next_level": 4, "sub": 16}
OUTCOMES = {"SUCCESS": L.SUCCESS, "TASK_FAILURE": L.TASK_FAILURE, "SKIPPED": L.SKIPPED}
OPEN = {"worker", "end", "top", "tail"}
"""Keys under which null means: whichever."""


class Player:
    """An engine by hand, and the slots of the tasks by their names."""

    def __init__(self, driver):
        self.driver = driver
        self.mem = driver.mem
        self.slots = {}
        self.ids = {}

    # ------------------------------------------------------------ steps
    def take(self, do, **words):
        told = getattr(self, f"do_{do}")(**words) or {}
        gone = {n for n, slot in self.slots.items() if self.mem[slot + L.S_STATE] == L.FREE}
        for name in gone:
            del self.slots[name]
        return told

    def do_submit(self, task, pool, members=None, tensors=(), worker=None):
        kind = POOLS.index(pool)
        if members is None:
            one = self.member(kind, tensors, worker)
            code = self.driver.try_submit(one.args, kind=kind, owner=one.worker)
        else:
            several = [self.member(kind, **one) for one in members]
            code = self.driver.try_submit_group(*several, kind=kind)
        return self.claimed(task, code)

    def member(self, kind, tensors=(), worker=None):
        number = -1 if worker is None else int(self.mem[L.POOL_FIRST + kind]) + worker
        return Member(tuple(self.arg(**one) for one in tensors), (), number)

    def arg(self, tag, data, nbytes, child_memory=False):
        return Arg(TensorArgType[tag], self.address(data), nbytes, child_memory)

    def do_alloc(self, task, nbytes):
        return self.claimed(task, self.driver.try_alloc(nbytes))

    def claimed(self, task, code):
        if code == L.RUN_FAILED:
            return {"refused": "FAILED"}
        assert code > 0, code
        slot = self.slots[task] = code & ~L.AUTO_OUTPUT
        self.ids[task] = self.driver.id(slot)
        return {}

    def do_open_scope(self):
        assert self.driver.open_scope() == L.OK

    def do_close_scope(self):
        assert self.driver.close_scope() == L.OK

    # ------------------------------------------------------------ looks
    def address(self, spelled):
        ring, _, offset = spelled.rpartition("+")
        base = self.driver.ring_word(int(ring.removeprefix("ring")), L.R_BASE) if ring else 0
        return base + int(offset, 16)

    def place(self, number):
        for ring in range(int(self.mem[L.RINGS])):
            offset = number - self.driver.ring_word(ring, L.R_BASE)
            if 0 <= offset < self.driver.ring_word(ring, L.R_SIZE):
                return f"ring{ring}+0x{offset:x}"
        return f"0x{number % 2**64:x}"

    def name(self, slot):
        return next(name for name, other in self.slots.items() if other == slot)

    def refs(self):
        return {name: list(self.driver.refs(slot)) for name, slot in self.slots.items()}


# ---------------------------------------------------------------- tag walks
class Walk(Player):
    def take(self, do, **words):
        assert super().take(do, **words) == {}
        found = {}
        if do in ("submit", "alloc"):
            found = self.found(self.slots[words["task"]], words["task"])
        return found | {"map": self.map(), "refs": self.refs()}

    def found(self, slot, task):
        """Wire a task that was just submitted, and return what it is connected with."""
        x, driver = self.driver.x, self.driver
        waiting = x.pop_wiring(self.mem)
        if waiting != L.NONE:
            assert waiting == slot
            x.wire(self.mem, slot)
        edges = [] if waiting == L.NONE else driver.edges(slot)
        waited = [self.name(edge.producer) for edge in edges if edge.consumer != L.NONE]
        kept = [self.name(edge.producer) for edge in edges if edge.consumer == L.NONE]
        tensors = driver.counts(slot)[0]
        return {
            "producers": self.in_order(waited),
            "waits_for": self.in_order(
                name for name in waited if slot in driver.consumers(self.slots[name])
            ),
            "keeps": self.in_order(kept),
            "addresses": [self.place(driver.address(slot, i)) for i in range(tensors)],
        }

    def in_order(self, names):
        wanted = list(names)
        assert len(set(wanted)) == len(wanted), "a producer was found twice"
        return [name for name in self.slots if name in wanted]

    def do_finish(self, task):
        self.driver.finish(self.slots[task])
        self.driver.reclaim()

    def map(self):
        rows = self.driver.map_entries()
        for key, (slot, _) in rows.items():
            assert self.driver.lookup(*key) == slot
        return sorted(
            [self.place(data), owner, self.name(slot)] for (data, owner), (slot, _) in rows.items()
        )


def check_walk(case):
    play(Walk(Driver(**WALKERS)), case["steps"])


def play(player, steps):
    try:
        for number, step in enumerate(steps):
            words = {key: value for key, value in step.items() if key != "then"}
            compare(player.take(**words), step["then"], f"step {number}, {words}")
    finally:
        player.driver.close()


def compare(found, expected, where):
    """Require what is expected, but for what the file leaves open."""
    assert as_open_as(expected, found) == expected, where


def as_open_as(expected, found, key=""):
    """Return what was found, with null where the rules leave an implementation the choice."""
    if expected is None and key in OPEN:
        return None
    if isinstance(expected, dict) and isinstance(found, dict):
        return {name: as_open_as(expected.get(name), one, name) for name, one in found.items()}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [as_open_as(a, b, key) for a, b in zip(expected, found, strict=True)]
    return found


# ---------------------------------------------------------------- scheduler traces
class Trace(Player):
    def take(self, do, **words):
        told = super().take(do, **words)
        return told | look(self.driver, {number: name for name, number in self.ids.items()})

    def do_pass(self):
        self.driver.run_pass()

    def do_settle(self):
        self.driver.settle()
        for worker in self.workers():
            if self.driver.usable(worker) and self.driver.given(worker) == L.NONE:
                assert self.driver.mailbox_state(worker) == (L.IDLE, 0)

    def do_cancel(self):
        self.driver.x.cancel(self.mem)

    def do_reclaim(self):
        self.driver.reclaim()

    def do_end(self, task, outcome, member=None):
        worker = next(
            w
            for w in self.workers()
            if self.driver.given(w) == self.slots[task]
            and self.driver.member(w) == (-1 if member is None else member)
        )
        error = ValueError(task) if outcome == "TASK_FAILURE" else None
        self.driver.post_done(worker, error, OUTCOMES[outcome])

    def do_die(self, pool, worker):
        self.driver.kill(int(self.mem[L.POOL_FIRST + POOLS.index(pool)]) + worker)

    def workers(self):
        return range(int(self.mem[L.WORKERS]))


def check_trace(case):
    play(Trace(Driver(next_level=case["next_level"], sub=case["sub"])), case["steps"])


# ---------------------------------------------------------------- rings
def check_ring(case):
    window = {"task_window": case["window"]} if "window" in case else {}
    ring = Ring(case["ring_bytes"], timeout_ms=0, ring_depth=case["rings"], **window)
    ids = {}
    for number, step in enumerate(case["steps"]):
        if step["do"] == "release":
            ring.release(ids.pop(step["task"]))
            told = {}
        else:
            told = claim(ring, ids, step)
        for name, ask in LOOKS.items():
            told[name] = [ask(ring, index) for index in range(case["rings"])]
        compare(told, step["then"], f"step {number}, {step}")


LOOKS = {"held": Ring.heap_held, "top": Ring.heap_top, "tail": Ring.heap_tail}


def claim(ring, ids, step):
    try:
        made = ring.alloc(step["nbytes"], step["depth"])
    except RingFullError:
        return {"refused": "FULL"}
    except RuntimeError as error:
        assert "exceeds per-ring heap size" in str(error)
        return {"refused": "TOO_LARGE"}
    ids[step["task"]] = made.slot
    address = None
    if made.heap_ptr is not None:
        address = f"ring{made.ring_idx}+0x{made.heap_ptr - ring.heap_base(made.ring_idx):x}"
    return {"id": made.slot, "ring": made.ring_idx, "address": address, "end": made.heap_end_offset}
