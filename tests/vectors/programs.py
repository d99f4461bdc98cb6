"""What the tag walks, ring traces and scheduler traces do; what comes of it is not said here."""

from __future__ import annotations

KIB = 1024
A, B, C, D = "0x7000", "0x8000", "0x9000", "0xa000"
HIGH = "0xffff800000000040"
"""Addresses of user memory."""


# ---------------------------------------------------------------- steps
def tensor(tag, data, nbytes=8, **more):
    return {"tag": tag, "data": data, "nbytes": nbytes, **more}


def reads(data, **more):
    return tensor("INPUT", data, **more)


def writes(data, **more):
    return tensor("OUTPUT", data, **more)


def updates(data, **more):
    return tensor("INOUT", data, **more)


def overwrites(data, **more):
    return tensor("OUTPUT_EXISTING", data, **more)


def ignores(data, **more):
    return tensor("NO_DEP", data, **more)


def auto(nbytes):
    """An OUTPUT that the runtime shall provide."""
    return tensor("OUTPUT", "0x0", nbytes)


def member(*tensors, worker=None):
    made = {"tensors": list(tensors)} if tensors else {}
    return made if worker is None else made | {"worker": worker}


def submit(task, *tensors, pool="SUB", worker=None):
    return {"do": "submit", "task": task, "pool": pool, **member(*tensors, worker=worker)}


def next_level(task, *tensors, worker=None):
    return submit(task, *tensors, pool="NEXT_LEVEL", worker=worker)


def group(task, *members, pool="SUB"):
    return {"do": "submit", "task": task, "pool": pool, "members": list(members)}


def alloc(task, nbytes):
    return {"do": "alloc", "task": task, "nbytes": nbytes}


def finish(task):
    return {"do": "finish", "task": task}


def end(task, outcome="SUCCESS", member=None):
    made = {"do": "end", "task": task, "outcome": outcome}
    return made if member is None else made | {"member": member}


def die(worker, pool="SUB"):
    return {"do": "die", "pool": pool, "worker": worker}


OPEN, CLOSE = {"do": "open_scope"}, {"do": "close_scope"}
PASS, SETTLE, CANCEL, RECLAIM = ({"do": do} for do in ("pass", "settle", "cancel", "reclaim"))


def program(name, why, rules, *steps, **more):
    return {"name": name, "why": why, "rules": rules.split(), **more, "steps": list(steps)}


class Numbers:
    """The same numbers in every language and version: a linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        self.state = (self.state * 1103515245 + 12345) % (1 << 31)
        return (self.state >> 16) % limit

    def choice(self, items):
        return items[self.below(len(items))]


# ---------------------------------------------------------------- tag walks
def walks():
    yield program(
        "each tag after a writer",
        "INPUT and INOUT wait; OUTPUT, INOUT and OUTPUT_EXISTING become the producer; NO_DEP neither",
        "ORCH-TAG-1 ORCH-TAG-2 ORCH-TAG-3 ORCH-TAG-4 ORCH-TAG-5",
        submit("writer", *(writes(hex(0x1000 * k)) for k in range(1, 6))),
        submit("input", reads("0x1000")),
        submit("output", writes("0x2000")),
        submit("inout", updates("0x3000")),
        submit("existing", overwrites("0x4000")),
        submit("no_dep", ignores("0x5000")),
    )
    yield program(
        "a read after writes",
        "the reader waits for the latest writer only",
        "ORCH-MAP-1 ORCH-MAP-2 ORCH-MAP-3",
        submit("first", writes(A)),
        submit("early", reads(A)),
        submit("second", writes(A)),
        submit("late", reads(A)),
    )
    yield program(
        "a write after reads",
        "a writer does not wait for those that only read",
        "ORCH-MAP-4",
        submit("writer", writes(A)),
        submit("reader1", reads(A)),
        submit("reader2", reads(A)),
        submit("next", overwrites(A)),
        submit("last", reads(A)),
    )
    yield program(
        "a chain of updates",
        "each waits for the one before; the first, without a producer, for nobody",
        "ORCH-TAG-6 ORCH-TAG-3",
        submit("a", updates(A)),
        submit("b", updates(A)),
        submit("c", updates(A)),
    )
    yield program(
        "one producer, several tensors",
        "it counts once",
        "ORCH-DEDUP-1",
        submit("p", writes(A), writes(B), writes(C)),
        submit("c", reads(A), reads(B), updates(C), reads(A)),
    )
    yield program(
        "a task that names a buffer twice",
        "it is never its own producer, and what its tensors find does not depend on their order",
        "ORCH-DEDUP-2 ORCH-DEDUP-3",
        submit("alone", writes(A), reads(A), updates(A)),
        submit("write first", writes(A), reads(A)),
        submit("read first", reads(A), writes(A)),
    )
    yield program(
        "address 0 is no key",
        "it is neither found nor inserted, whatever the tag",
        "ORCH-MAP-7 ORCH-AUTO-6",
        submit("a", overwrites("0x0"), updates("0x0"), reads("0x0"), ignores("0x0")),
        submit("b", reads("0x0"), updates("0x0")),
    )
    yield program(
        "overlapping buffers",
        "only base addresses are compared",
        "ORCH-MAP-8",
        submit("a", writes(A, nbytes=4096)),
        submit("b", reads("0x7008")),
        submit("c", writes("0x7008")),
        submit("d", reads(A)),
    )
    yield program(
        "an address with its top bit set",
        "addresses are unsigned",
        "ORCH-MAP-1",
        submit("a", writes(HIGH)),
        submit("b", updates(HIGH)),
    )
    yield program(
        "equal addresses of three owners",
        "host memory and the memory of two workers are three buffers",
        "ORCH-MAP-6 WM-CHIP-4",
        next_level("on0", writes(A, child_memory=True), worker=0),
        next_level("on1", writes(A, child_memory=True), worker=1),
        submit("host", writes(A)),
        next_level("r1", reads(A, child_memory=True), worker=1),
        next_level("r0", updates(A, child_memory=True), worker=0),
        submit("r", reads(A)),
        next_level("both", reads(A), writes(A, child_memory=True), worker=1),
    )
    yield program(
        "a consumed producer of an older value",
        "it erases no key that leads to a newer task",
        "ORCH-MAP-5 ORCH-STATE-6",
        OPEN,
        submit("old", writes(A), writes(B)),
        CLOSE,
        submit("new", writes(A)),
        finish("old"),
        submit("c", reads(A), reads(B)),
    )
    yield program(
        "a consumed producer is gone",
        "its key is erased when it is reclaimed; until then its finished result still counts",
        "ORCH-MAP-5 ORCH-PIN-3 ORCH-STATE-6 SCHED-WIRE-3",
        OPEN,
        submit("p", writes(A)),
        finish("p"),
        submit("before", reads(A)),
        finish("before"),
        submit("again", reads(A)),
        CLOSE,
        finish("again"),
        submit("after", reads(A)),
    )
    yield program(
        "a producer that has finished",
        "it is kept for its consumer, which does not wait for it",
        "SCHED-WIRE-2 SCHED-WIRE-3",
        submit("done", writes(A)),
        finish("done"),
        submit("going", writes(B)),
        submit("c", reads(A), reads(B)),
    )
    yield program(
        "outputs without memory",
        "one claim, cut at multiples of 1024; a later reader finds the producer by the address",
        "ORCH-AUTO-1 ORCH-AUTO-2 ORCH-AUTO-3 ORCH-AUTO-4 ORCH-AUTO-5",
        submit("p", auto(1), auto(1024), auto(1025), writes(A), auto(8)),
        submit("c", reads("ring0+0x400"), reads("ring0+0x1000")),
        submit("d", auto(100), updates("ring0+0x800")),
    )
    yield program(
        "an output of no bytes",
        "no slab and no key",
        "ORCH-AUTO-7",
        submit("p", auto(0), auto(10), auto(0)),
        submit("c", auto(0), reads("0x0")),
    )
    yield program(
        "outputs of every depth",
        "each depth has a ring, those beyond the last share it",
        "ORCH-AUTO-1 ORCH-RING-3 ORCH-SCOPE-1",
        submit("d0", auto(10)),
        OPEN,
        submit("d1", auto(10)),
        OPEN,
        submit("d2", auto(10)),
        OPEN,
        submit("d3", auto(10)),
        OPEN,
        submit("d4", auto(10)),
        CLOSE,
        submit("d3 again", auto(10)),
        CLOSE,
        CLOSE,
        CLOSE,
        submit("d0 again", auto(10)),
    )
    yield program(
        "a buffer of the run",
        "an alloc has finished from the start; INOUT takes its place and keeps it",
        "ORCH-ALLOC-2 ORCH-ALLOC-3 ORCH-ALLOC-4 ORCH-ALLOC-5 ORCH-TAG-7",
        alloc("buffer", 2000),
        submit("fill", updates("ring0+0x0")),
        submit("use", reads("ring0+0x0")),
        finish("fill"),
        finish("use"),
    )
    yield program(
        "a buffer that is only written",
        "OUTPUT and OUTPUT_EXISTING take no reference on its allocator",
        "ORCH-TAG-7 ORCH-AUTO-5",
        OPEN,
        alloc("x", 10),
        alloc("y", 10),
        submit("a", writes("ring1+0x0")),
        submit("b", overwrites("ring1+0x400")),
        CLOSE,
    )
    yield program(
        "a reader keeps the slab's owner",
        "beside the producer of the value, the owner of the memory; nobody waits for it",
        "ORCH-ALLOC-7",
        OPEN,
        alloc("buffer", 10),
        submit("fill", updates("ring1+0x0")),
        submit("use", reads("ring1+0x0")),
        CLOSE,
        finish("fill"),
        finish("use"),
    )
    yield program(
        "a producer goes before the owner",
        "the key leads to the owner again",
        "ORCH-MAP-9",
        alloc("buffer", 10),
        OPEN,
        submit("fill", overwrites("ring0+0x0")),
        CLOSE,
        finish("fill"),
        submit("use", reads("ring0+0x0")),
    )
    yield program(
        "an owner that produces something else as well",
        "kept for its memory by one tensor, waited for by another: one reference, one edge",
        "ORCH-ALLOC-7 ORCH-DEDUP-1",
        submit("owner", auto(10), writes(A)),
        submit("fill", updates("ring0+0x0")),
        submit("use", reads("ring0+0x0"), reads(A)),
    )
    yield program(
        "a buffer of no bytes",
        "a task like any alloc, without slab and key",
        "ORCH-ALLOC-6",
        alloc("nothing", 0),
        alloc("something", 1),
        submit("c", reads("0x0"), reads("ring0+0x0")),
    )
    yield program(
        "a group",
        "it depends on what any member reads, and produces what any member writes",
        "WM-GROUP-3 WM-GROUP-4 ORCH-DEDUP-2",
        submit("p", writes(A), writes(B)),
        group("g", member(reads(A), updates(C)), member(reads(B), reads(C)), member(writes(A))),
        submit("c", reads(A), reads(C)),
    )
    yield program(
        "outputs of a group",
        "one claim, cut for the members in turn",
        "WM-GROUP-5 ORCH-AUTO-2",
        group("g", member(auto(10), reads(A)), member(auto(1025)), member(auto(1))),
        submit("c", reads("ring0+0x400")),
    )
    yield program(
        "owners in a group",
        "a member's device memory is its worker's",
        "WM-GROUP-6 ORCH-MAP-6",
        group(
            "g",
            member(writes(A, child_memory=True), worker=1),
            member(writes(A, child_memory=True), worker=0),
            pool="NEXT_LEVEL",
        ),
        next_level("c0", reads(A, child_memory=True), worker=0),
        next_level("c2", reads(A, child_memory=True), worker=2),
        submit("host", reads(A)),
    )
    yield program(
        "scopes and consumers",
        "a task goes when its scope, its consumers and it itself have let go, in whatever order",
        "ORCH-SCOPE-5 ORCH-SCOPE-7 ORCH-STATE-3 ORCH-STATE-4 ORCH-SUBMIT-5",
        OPEN,
        submit("a", writes(A)),
        OPEN,
        submit("b", reads(A), writes(B)),
        CLOSE,
        submit("c", reads(B)),
        finish("a"),
        CLOSE,
        finish("b"),
        finish("c"),
    )
    yield program(
        "a diamond",
        "two wait for one, one for two",
        "ORCH-MAP-2 ORCH-SUBMIT-4",
        submit("top", writes(A)),
        submit("left", reads(A), writes(B)),
        submit("right", reads(A), writes(C)),
        submit("bottom", reads(B), reads(C), updates(A)),
        finish("top"),
        finish("right"),
        finish("left"),
        finish("bottom"),
    )
    yield mixed_walk("all kinds of things, 1", 1)
    yield mixed_walk("all kinds of things, 2", 2)


def mixed_walk(name, seed):
    """Return 40 steps over few buffers; tasks are finished in the order of their submits."""
    numbers, steps, depth, waiting = Numbers(seed), [], 0, []
    tags = ("INPUT", "INPUT", "INPUT", "OUTPUT", "INOUT", "INOUT", "OUTPUT_EXISTING", "NO_DEP")
    places = (A, B, C, D, "ring0+0x0", "ring0+0x400", "ring1+0x0", "ring1+0x400", "0x0")
    for k in range(40):
        what = numbers.below(10)
        task = f"t{k}"
        some = [
            tensor(numbers.choice(tags), numbers.choice(places), numbers.choice((1, 8, 1500)))
            for _ in range(1 + numbers.below(3))
        ]
        if what < 5:
            steps.append(submit(task, *some))
            waiting.append(task)
        elif what == 5:
            steps.append(alloc(task, numbers.choice((0, 100, 1024))))
        elif what == 6 and depth < 2:
            steps.append(OPEN)
            depth += 1
        elif what == 7 and depth > 0:
            steps.append(CLOSE)
            depth -= 1
        elif waiting:
            steps.append(finish(waiting.pop(0)))
    steps += [CLOSE] * depth + [finish(task) for task in waiting]
    rules = "ORCH-SUBMIT-3 ORCH-MAP-1 ORCH-MAP-5 ORCH-ALLOC-7 ORCH-STATE-3"
    return program(name, "made from a generator of numbers", rules, *steps)


# ---------------------------------------------------------------- rings
def claim(task, nbytes, depth=0):
    return {"do": "alloc", "task": task, "nbytes": nbytes, "depth": depth}


def release(task):
    return {"do": "release", "task": task}


def ring(name, why, rules, *steps, rings=1, ring_bytes=8 * KIB, **more):
    sizes = {"rings": rings, "ring_bytes": ring_bytes, **more}
    return {"kind": "ring", **program(name, why, rules, *steps, **sizes)}


def rings():
    yield ring(
        "ids and rounding",
        "ids count claims of every size; bytes come in multiples of 1024",
        "ORCH-RING-1 ORCH-RING-4 ORCH-RING-12",
        claim("a", 1),
        claim("b", 1024),
        claim("c", 0),
        claim("d", 1025),
        release("a"),
        claim("e", 8),
    )
    yield ring(
        "a ring for each depth",
        "depths beyond the last ring share it; ids are counted over all rings",
        "ORCH-RING-1 ORCH-RING-3",
        *(claim(f"d{depth}", 100, depth) for depth in range(6)),
        claim("again", 100, 1),
        rings=4,
    )
    yield ring(
        "space comes back in the order it was claimed",
        "what was released behind an older live claim waits for it, also for one without bytes",
        "ORCH-RING-9",
        claim("a", KIB),
        claim("b", 2 * KIB),
        claim("nothing", 0),
        claim("c", 2 * KIB),
        release("b"),
        release("c"),
        claim("d", 4 * KIB),
        release("a"),
        claim("d", 4 * KIB),
        claim("e", 2 * KIB),
        release("nothing"),
        claim("e", 2 * KIB),
    )
    yield ring(
        "the end of a ring is skipped",
        "a claim is contiguous; the bytes left out are held with it and come back with it",
        "ORCH-RING-5",
        claim("a", 3 * KIB),
        claim("b", 3 * KIB),
        release("a"),
        claim("c", 3 * KIB),
        claim("d", 1),
        release("b"),
        claim("d", 4 * KIB),
        claim("d", 3 * KIB),
        release("c"),
        claim("e", 3 * KIB),
        release("d"),
        release("e"),
    )
    yield ring(
        "enough bytes, but not in one piece",
        "2 KiB at the end and 3 KiB at the start do not make 4",
        "ORCH-RING-5",
        claim("a", 3 * KIB),
        claim("b", 3 * KIB),
        release("a"),
        claim("c", 4 * KIB),
        claim("c", 3 * KIB),
    )
    yield ring(
        "a claim that fits the end exactly",
        "nothing is skipped, and the next one starts at 0",
        "ORCH-RING-5",
        claim("a", 4 * KIB),
        claim("b", 4 * KIB),
        release("a"),
        claim("c", 4 * KIB),
        release("b"),
        claim("d", 4 * KIB),
    )
    yield ring(
        "larger than the ring",
        "refused at once, also by an empty ring; a request of exactly its size is served",
        "ORCH-RING-11 ORCH-RING-6",
        claim("a", 8 * KIB + 1),
        claim("a", 8 * KIB),
        claim("b", 8 * KIB + 1),
        claim("b", 1),
    )
    yield ring(
        "an empty ring serves its full size",
        "wherever its cursor stood; the next claim starts at 0",
        "ORCH-RING-6 ORCH-RING-7",
        claim("a", 5 * KIB),
        release("a"),
        claim("b", 8 * KIB),
        release("b"),
        claim("c", KIB),
        claim("d", 7 * KIB),
        release("c"),
        release("d"),
        claim("e", 8 * KIB),
    )
    yield ring(
        "a live claim without bytes does not park the ring",
        "the ring holds no bytes, so it serves its full size",
        "ORCH-RING-6 ORCH-RING-7",
        claim("a", 5 * KIB),
        claim("nothing", 0),
        release("a"),
        claim("b", 8 * KIB),
        claim("c", 1),
        release("nothing"),
        release("b"),
        claim("c", 8 * KIB),
    )
    yield ring(
        "rings do not influence each other",
        "a full one neither delays claims nor holds back releases elsewhere",
        "ORCH-RING-10",
        claim("a", 8 * KIB, 0),
        claim("b", 1, 0),
        claim("b", 8 * KIB, 1),
        claim("c", 1, 1),
        release("b"),
        claim("c", 1, 1),
        claim("d", 1, 0),
        release("a"),
        claim("d", 1, 0),
        rings=2,
    )
    yield ring(
        "a window",
        "an id that would run three ahead of the oldest live one waits, with bytes or without",
        "ORCH-WINDOW-2 ORCH-WINDOW-3",
        claim("a", 0, 0),
        claim("b", 1, 1),
        claim("c", 1, 2),
        claim("d", 0, 3),
        release("b"),
        claim("d", 1, 0),
        release("a"),
        claim("d", 1, 0),
        claim("e", 0, 5),
        claim("f", 0, 0),
        window=3,
    )
    yield mixed_ring("all kinds of claims, 1", 1)
    yield mixed_ring("all kinds of claims, 2", 2)


def mixed_ring(name, seed):
    """Return claims and releases in any order; a claim that is refused is not made again."""
    numbers, steps, held = Numbers(seed), [], []
    room = {}  # a rough idea of what is held, so that most claims are served
    for k in range(60):
        size = numbers.choice((0, 1, 1000, 1024, 1025, 2500, 4096))
        if numbers.below(2) and held:
            task = held.pop(numbers.below(min(3, len(held))))
            steps.append(release(task))
            room.pop(task)
        elif sum(room.values()) + size <= 6 * KIB:
            held.append(f"t{k}")
            room[f"t{k}"] = size
            steps.append(claim(f"t{k}", size))
    rules = "ORCH-RING-4 ORCH-RING-5 ORCH-RING-7 ORCH-RING-8 ORCH-RING-9"
    return ring(name, "made from a generator of numbers", rules, *steps, ring_bytes=16 * KIB)


# ---------------------------------------------------------------- scheduler traces
def trace(name, why, rules, *steps, sub=1, next_level=0):
    return program(name, why, rules, *steps, next_level=next_level, sub=sub)


def traces():
    yield trace(
        "the life of a task",
        "PENDING, wired and dispatched by one pass, collected by the next, consumed with its scope",
        "ORCH-STATE-1 ORCH-STATE-2 ORCH-STATE-4 SCHED-PASS-1 SCHED-MAIL-2 ORCH-SCOPE-7",
        OPEN,
        submit("a"),
        PASS,
        end("a"),
        PASS,
        CLOSE,
        PASS,
    )
    yield trace(
        "the scope ends first",
        "then the task's own reference is the last: CONSUMED by the pass, FREE once reclaimed",
        "ORCH-SCOPE-6 SCHED-CONSUME-1 SCHED-CONSUME-2 SCHED-CONSUME-3",
        OPEN,
        submit("a"),
        PASS,
        CLOSE,
        end("a"),
        SETTLE,
        RECLAIM,
    )
    yield trace(
        "a chain on one worker",
        "a consumer is READY in the pass that completes its producer, RUNNING in the next",
        "SCHED-WIRE-2 SCHED-COMPLETE-2 SCHED-COMPLETE-4 SCHED-READY-1",
        submit("a", updates(A)),
        submit("b", updates(A)),
        submit("c", updates(A)),
        PASS,
        end("a"),
        PASS,
        PASS,
        end("b"),
        PASS,
        PASS,
        end("c"),
        SETTLE,
    )
    yield trace(
        "a diamond on two workers",
        "the last of several producers makes a consumer READY, once",
        "SCHED-READY-2 SCHED-COMPLETE-2",
        submit("top", writes(A)),
        submit("left", reads(A), writes(B)),
        submit("right", reads(A), writes(C)),
        submit("bottom", reads(B), reads(C)),
        SETTLE,
        end("top"),
        SETTLE,
        end("right"),
        SETTLE,
        end("left"),
        SETTLE,
        end("bottom"),
        SETTLE,
        sub=2,
    )
    yield trace(
        "a producer that ends before its consumer is wired",
        "it still counts as live when the pass wires, and the same pass releases it",
        "SCHED-READY-1 SCHED-READY-2 SCHED-WIRE-2",
        submit("a", writes(A)),
        PASS,
        end("a"),
        submit("b", reads(A)),
        PASS,
        PASS,
        sub=2,
    )
    yield trace(
        "a producer that was done before",
        "a COMPLETED producer is no live fan-in, and stays until the consumer has ended",
        "SCHED-WIRE-3 SCHED-WIRE-5 ORCH-PIN-1 ORCH-PIN-2",
        OPEN,
        submit("a", writes(A)),
        PASS,
        end("a"),
        SETTLE,
        submit("b", reads(A)),
        CLOSE,
        PASS,
        end("b"),
        SETTLE,
        RECLAIM,
    )
    yield trace(
        "a buffer is kept by its reader",
        "nobody waits for an alloc; its slab goes when scope and reader have let go",
        "ORCH-ALLOC-2 ORCH-ALLOC-5 SCHED-WIRE-5",
        OPEN,
        alloc("buffer", 100),
        submit("fill", updates("ring1+0x0")),
        CLOSE,
        PASS,
        end("fill"),
        SETTLE,
        RECLAIM,
    )
    yield trace(
        "first in, first out",
        "what finds no idle worker keeps its place",
        "SCHED-READY-3 SCHED-DISPATCH-2 SCHED-DISPATCH-4 SCHED-DISPATCH-3",
        submit("a"),
        submit("b"),
        submit("c"),
        SETTLE,
        end("a"),
        SETTLE,
        end("b"),
        SETTLE,
        end("c"),
        SETTLE,
    )
    yield trace(
        "two pools",
        "a full pool does not hold up the other",
        "WM-POOL-3 WM-POOL-4 SCHED-READY-3",
        next_level("n1"),
        next_level("n2"),
        submit("s1"),
        SETTLE,
        submit("s2"),
        end("s1"),
        SETTLE,
        end("n1"),
        SETTLE,
        next_level=1,
    )
    yield trace(
        "failure travels downstream",
        "whoever depends on a failed task fails without running, in the same pass; others go on; "
        "nothing more is accepted",
        "SCHED-POISON-1 SCHED-POISON-2 SCHED-POISON-4 SCHED-COMPLETE-1 ORCH-FAIL-2",
        submit("a", writes(A)),
        submit("b", reads(A), writes(B)),
        submit("c", reads(B)),
        submit("d"),
        SETTLE,
        end("a", "TASK_FAILURE"),
        SETTLE,
        submit("late"),
        end("d"),
        SETTLE,
        sub=2,
    )
    yield trace(
        "a consumer of a failed producer that is wired later",
        "submitted before the failure was known",
        "SCHED-WIRE-4 SCHED-POISON-1",
        submit("a", writes(A)),
        PASS,
        end("a", "TASK_FAILURE"),
        submit("b", reads(A)),
        SETTLE,
    )
    yield trace(
        "a poisoned task stays until its last producer has finished",
        "only then does it drop its references",
        "SCHED-POISON-3 SCHED-COMPLETE-3",
        OPEN,
        submit("bad", writes(A)),
        submit("slow", writes(B)),
        submit("c", reads(A), reads(B)),
        CLOSE,
        SETTLE,
        end("bad", "TASK_FAILURE"),
        SETTLE,
        RECLAIM,
        end("slow"),
        SETTLE,
        RECLAIM,
        sub=2,
    )
    yield trace(
        "two failures",
        "the one that was collected first is reported",
        "SCHED-COMPLETE-6 SCHED-COMPLETE-1",
        submit("a"),
        submit("b"),
        SETTLE,
        end("b", "TASK_FAILURE"),
        SETTLE,
        end("a", "TASK_FAILURE"),
        SETTLE,
        sub=2,
    )
    yield trace(
        "a group starts as a whole",
        "it waits until all its members can start, and nothing that came later overtakes it",
        "WM-PLACE-1 WM-PLACE-3 WM-GROUP-1",
        submit("first"),
        PASS,
        group("g", member(), member()),
        submit("later"),
        SETTLE,
        end("first"),
        SETTLE,
        end("g", member=1),
        SETTLE,
        end("g", member=0),
        SETTLE,
        end("later"),
        SETTLE,
        sub=2,
    )
    yield trace(
        "a group ends once",
        "its workers are idle one by one; its consumer starts after the last",
        "WM-DONE-1 WM-GROUP-3",
        group("g", member(writes(A)), member(writes(B)), member()),
        submit("c", reads(B)),
        SETTLE,
        end("g", member=1),
        SETTLE,
        end("g", member=2),
        end("g", member=0),
        PASS,
        SETTLE,
        sub=3,
    )
    yield trace(
        "a member fails",
        "members that have not started are told to skip, those that run finish; the group fails",
        "WM-DONE-2 WM-DONE-3 SCHED-POISON-1",
        group("g", member(writes(A)), member(), member()),
        submit("c", reads(A)),
        SETTLE,
        end("g", "TASK_FAILURE", member=1),
        SETTLE,
        end("g", "SKIPPED", member=0),
        SETTLE,
        end("g", member=2),
        SETTLE,
        sub=3,
    )
    yield trace(
        "skipping is said to one group only",
        "the next task of the same worker runs",
        "WM-DONE-5",
        submit("next"),
        group("g", member(), member()),
        SETTLE,
        end("next"),
        SETTLE,
        submit("after"),
        end("g", "TASK_FAILURE", member=0),
        SETTLE,
        end("g", "SKIPPED", member=1),
        SETTLE,
        sub=2,
    )
    yield trace(
        "members for workers of their own",
        "a named worker gets its member, the others go elsewhere",
        "WM-PLACE-2 WM-AFF-1",
        group("g", member(), member(worker=0), member(worker=2), pool="NEXT_LEVEL"),
        SETTLE,
        *(end("g", member=m) for m in range(3)),
        SETTLE,
        next_level=3,
        sub=0,
    )
    yield trace(
        "a group that waits for a named worker",
        "although two others are idle",
        "WM-PLACE-1 WM-PLACE-2 WM-PLACE-3",
        next_level("busy", worker=1),
        PASS,
        group("g", member(worker=1), member(), pool="NEXT_LEVEL"),
        next_level("later"),
        SETTLE,
        end("busy"),
        SETTLE,
        next_level=3,
        sub=0,
    )
    yield trace(
        "a task for one worker",
        "it waits for that worker, and holds up nothing that can run elsewhere",
        "WM-AFF-1 WM-AFF-2 WM-AFF-3",
        next_level("busy", worker=1),
        PASS,
        next_level("mine", worker=1),
        next_level("any"),
        SETTLE,
        end("busy"),
        SETTLE,
        next_level=2,
        sub=0,
    )
    yield trace(
        "tasks for one worker and for any take turns",
        "of the two, the one that became ready first starts first",
        "WM-AFF-4",
        next_level("busy"),
        PASS,
        next_level("any1"),
        next_level("mine1", worker=0),
        next_level("any2"),
        next_level("mine2", worker=0),
        SETTLE,
        end("busy"),
        SETTLE,
        end("any1"),
        SETTLE,
        end("mine1"),
        SETTLE,
        end("any2"),
        SETTLE,
        next_level=1,
        sub=0,
    )
    yield trace(
        "a worker dies in a task",
        "the task fails, its consumer too; what another worker does is not touched",
        "SCHED-DEATH-1 SCHED-DEATH-2 SCHED-POISON-1 SCHED-POISON-2",
        next_level("a", writes(A), worker=0),
        next_level("b", worker=1),
        next_level("c", reads(A)),
        SETTLE,
        die(0, "NEXT_LEVEL"),
        SETTLE,
        end("b"),
        SETTLE,
        next_level=2,
        sub=0,
    )
    yield trace(
        "nobody is left",
        "tasks that need a worker of that pool fail instead of waiting",
        "SCHED-DEATH-2",
        submit("a"),
        SETTLE,
        submit("b"),
        next_level("n"),
        SETTLE,
        die(0),
        SETTLE,
        end("n"),
        SETTLE,
        next_level=1,
    )
    yield trace(
        "an idle worker dies",
        "a task that finds nobody left fails; there is no worker to name",
        "SCHED-DEATH-2",
        submit("p", writes(A)),
        SETTLE,
        end("p"),
        SETTLE,
        die(0),
        SETTLE,
        submit("c", reads(A)),
        SETTLE,
    )
    yield trace(
        "the worker of a task dies before it starts",
        "the task fails, others go on",
        "WM-AFF-5",
        next_level("busy", worker=1),
        SETTLE,
        next_level("mine", worker=1),
        next_level("other", worker=0),
        SETTLE,
        die(1, "NEXT_LEVEL"),
        SETTLE,
        end("other"),
        SETTLE,
        next_level=2,
        sub=0,
    )
    yield trace(
        "a group that cannot be placed any more",
        "a named worker has died: the group fails, nobody waits for ever",
        "WM-PLACE-5",
        next_level("busy", worker=0),
        SETTLE,
        group("g", member(worker=0), member(worker=1), pool="NEXT_LEVEL"),
        next_level("later", worker=0),
        SETTLE,
        die(1, "NEXT_LEVEL"),
        SETTLE,
        end("busy"),
        SETTLE,
        next_level=2,
        sub=0,
    )
    yield trace(
        "the worker of a member dies",
        "that member has failed; the others are told to skip, or finish",
        "WM-DONE-4",
        group("g", member(worker=0), member(worker=1), pool="NEXT_LEVEL"),
        SETTLE,
        die(0, "NEXT_LEVEL"),
        SETTLE,
        end("g", member=1),
        SETTLE,
        next_level=2,
        sub=0,
    )
    yield trace(
        "a cancel",
        "what is READY fails, what runs finishes, what becomes ready later fails as well; all drop "
        "their references",
        "SCHED-CANCEL-1 SCHED-CANCEL-2 SCHED-CANCEL-3",
        OPEN,
        submit("running", writes(A)),
        submit("ready"),
        submit("pending", reads(A)),
        SETTLE,
        CANCEL,
        SETTLE,
        CLOSE,
        end("running"),
        SETTLE,
        RECLAIM,
    )
    yield trace(
        "a cancelled group",
        "one that runs finishes, one that waits fails",
        "SCHED-CANCEL-1 SCHED-CANCEL-2",
        group("runs", member(), member()),
        group("waits", member(), member()),
        SETTLE,
        CANCEL,
        SETTLE,
        end("runs", member=0),
        end("runs", member=1),
        SETTLE,
        sub=2,
    )
