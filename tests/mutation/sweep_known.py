# ruff: noqa: E501  (what stands in the sources stands here in one line)
"""Mutants that the sweep has found and no test notices: what is known of each."""

from __future__ import annotations

from typing import NamedTuple

from .sweep_changes import Key


class Known(NamedTuple):
    """A mutant that survives, and why."""

    key: Key
    why: str


EQUIVALENT: tuple[Known, ...] = (
    Known(
        Key(
            "submit.py",
            "are_there",
            "if shared < 0 or tensors < 0 or scalars < 0 or (worker < 0) or (worker > mem[L.WORKERS]):",
            "if shared < 0 or tensors < 0 or worker < 0 or (worker > mem[L.WORKERS]):",
        ),
        "A count that has become negative never grows again, and at the end it must be 0.",
    ),
    Known(
        Key("mailbox.py", "wait_ready", "if rest <= 0:", "if rest <= 1:"),
        "A nanosecond more or less of a time limit.",
    ),
    Known(
        Key("schedule.py", "leave_pass_out", "mem[L.ORCH_PASSES] += 1", "mem[L.ORCH_PASSES] += 2"),
        "The count is only looked at for whether it has changed.",
    ),
    Known(
        Key(
            "submit.py",
            "reclaim",
            "erase(mem, int(mem[t + L.TENSOR_DATA]), owner_of(mem, slot, t, i), slot)",
            "erase(mem, int(mem[t - L.TENSOR_DATA]), owner_of(mem, slot, t, i), slot)",
        ),
        "TENSOR_DATA is 0.",
    ),
    Known(
        Key("collect.py", "finish_member", "left += 1 << L.HALF", "left += 2 << L.HALF"),
        "That half of the word is compared with 0 and with nothing else.",
    ),
    Known(
        Key("schedule.py", "scheduler_pass", "if mem[L.BUSY] != 0:", "if mem[L.BUSY] != -1:"),
        "Without a worker at work `collect` finds nothing, and that is what it says.",
    ),
    Known(
        Key("schedule.py", "scheduler_pass", "if mem[L.BUSY] != 0:", "if mem[L.DEALT] != 0:"),
        "As long as no task has been dealt none is at work, and `collect` would find nothing.",
    ),
    Known(
        Key(
            "collect.py",
            "vacate",
            "mem[w + frame + L.W_SLOT] = L.NONE",
            "mem[w + frame + L.W_SLOT] = L.OUTPUT",
        ),
        "Who reads W_SLOT has seen W_GIVEN, or that the number is no slot's: 1 is none.",
    ),
    Known(
        Key("submit.py", "submit_task", "if slot < 0:", "if slot < 1:"),
        "0 is no slot's number.",
    ),
    Known(
        Key(
            "fail_points.py",
            "die_here",
            "if FAIL_POINTS and mem[w + L.W_FAIL] == number:",
            "if FAIL_POINTS and mem[w - L.W_FAIL] == number:",
        ),
        "FAIL_POINTS is set only in processes that a test starts with a new interpreter.",
    ),
    Known(
        Key(
            "program.py",
            "following",
            "at += int(program[at + L.OP_KIND]) >> 8",
            "at += int(program[at - L.OP_KIND]) >> 8",
            1,
        ),
        "OP_KIND is 0.",
    ),
    Known(
        Key(
            "graph.py",
            "record_error",
            "if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:",
            "if mem[w + L.W_GIVEN] != 0 or mem[frame + L.W_SLOT] == slot:",
        ),
        "W_SLOT alone tells: it is NONE where no task stands, and a worker with tasks is named only for its oldest.",
    ),
    Known(
        Key(
            "mailbox.py",
            "encode_scalars",
            "mem[to + k] = mem[scalars + L.SCALAR_BITS]",
            "mem[to + k] = mem[scalars - L.SCALAR_BITS]",
        ),
        "SCALAR_BITS is 0.",
    ),
    Known(
        Key(
            "submit.py",
            "add_edge",
            "mem[edge + L.EDGE_NEXT] = L.NONE",
            "mem[edge + L.EDGE_NEXT] = L.OUTPUT",
        ),
        "`wire` writes EDGE_NEXT before the edge joins a chain, and nobody reads it outside of one.",
    ),
    Known(
        Key("submit.py", "reclaim", "if mask & 1 != 0:", "if mask & 1 != -1:"),
        "`erase` leaves each entry alone that does not lead to this task.",
    ),
    Known(
        Key(
            "submit.py",
            "fits_mailbox",
            "if frame_bytes(int(words[member + L.MEMBER_COUNTS])) > L.MAILBOX_ARGS_CAPACITY:",
            "if frame_bytes(int(words[member - L.MEMBER_COUNTS])) > L.MAILBOX_ARGS_CAPACITY:",
        ),
        "MEMBER_COUNTS is 0.",
    ),
    Known(
        Key(
            "ring.py",
            "release",
            "word = int(mem[fifo_entry(mem, ring, alive) + L.FIFO_END])",
            "word = int(mem[fifo_entry(mem, ring, alive) - L.FIFO_END])",
        ),
        "FIFO_END is 0.",
    ),
    Known(
        Key(
            "serve.py",
            "receive",
            "if now - start < mem[w + L.W_BACK_OFF]:",
            "if now - start <= mem[w + L.W_BACK_OFF]:",
        ),
        "A nanosecond more of patience.",
    ),
    Known(
        Key("serve.py", "post_done", "return", "pass"),
        "With one frame nobody reads W_ENDED, and the next frame is the same one: leaving early saves time.",
    ),
    Known(
        Key(
            "schedule.py",
            "scheduler_loop",
            "asked = exchange(mem, L.PARK_SCHED, 0) == L.KEEP_TIME",
            "asked = exchange(mem, L.PARK_SCHED, 1) == L.KEEP_TIME",
        ),
        "The word is set to 0 soon after, without a sleep between: a waker makes a system call in vain.",
    ),
    Known(
        Key(
            "dispatch.py",
            "pick_for_candidate",
            "best, found, is_one_asleep = (int(mem[L.DEPTH]), NO_WORKER, False)",
            "best, found, is_one_asleep = (int(mem[L.LOOKS]), NO_WORKER, False)",
        ),
        "The first worker that fits replaces the number, and without one the answer is NO_WORKER whatever it is.",
    ),
    Known(
        Key("collect.py", "take_back", "mem[L.RETURNED_COUNT] += 1", "mem[L.RETURNED_COUNT] += 2"),
        "The count is only looked at for whether it has changed.",
    ),
    Known(
        Key(
            "claims.py",
            "abandon_mailbox",
            "store(mem, w + L.W_CLAIM, 0)",
            "store(mem, w + L.W_CLAIM, -1)",
        ),
        "The word is compared with CLAIM_WAITS and with nothing else.",
    ),
    Known(
        Key("collect.py", "finish_member", "if left >> L.HALF != 0:", "if left << L.HALF != 0:"),
        "The other half is 0 there, and Python's integers keep the bits that compiled code would lose.",
    ),
    Known(
        Key(
            "collect.py",
            "finish_member",
            "if failed and left >> L.HALF == 0:",
            "if failed and left >> 31 == 0:",
        ),
        "The lower half counts members: far fewer than 1 << 31.",
    ),
    Known(
        Key(
            "collect.py",
            "skip_rest",
            "if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:",
            "if mem[frame + L.W_SLOT] == slot:",
        ),
        "W_SLOT is NONE where no task stands.",
    ),
    Known(
        Key(
            "dispatch.py",
            "send",
            "if mem[w + frame + L.W_SKIP] != 0:",
            "if mem[w + frame + L.W_SKIP] != -1:",
        ),
        "It writes a 0 where one stands already: not to do so saves time.",
    ),
    Known(
        Key("entries.py", "submit_and_pass", "if slot >= 0:", "if slot > 0:"),
        "0 is no slot's number.",
    ),
    Known(
        Key(
            "fail_points.py",
            "die_here",
            "if FAIL_POINTS and mem[w + L.W_FAIL] == number:",
            "if FAIL_POINTS or mem[w + L.W_FAIL] == number:",
        ),
        "FAIL_POINTS is set only in processes that a test starts with a new interpreter; elsewhere W_FAIL is 0, and no point has that number.",
    ),
    Known(
        Key(
            "fail_points.py",
            "die_here",
            "if FAIL_POINTS and mem[w + L.W_FAIL] == number:",
            "if FAIL_POINTS and mem[w + L.W_CLAIM] == number:",
        ),
        "FAIL_POINTS is set only in processes that a test starts with a new interpreter.",
    ),
    Known(
        Key(
            "fail_points.py",
            "arm",
            "if FAIL_POINTS and int(mem[L.START_FAIL]) >> 8 == worker + 1:",
            "if int(mem[L.START_FAIL]) >> 8 == worker + 1:",
        ),
        "FAIL_POINTS is set only in processes that a test starts with a new interpreter; elsewhere START_FAIL is 0.",
    ),
    Known(
        Key(
            "ops.py",
            "asked_by",
            "kind = int(program[at + L.OP_KIND]) & (1 << _SIZE_BIT) - 1",
            "kind = int(program[at - L.OP_KIND]) & (1 << _SIZE_BIT) - 1",
        ),
        "OP_KIND is 0.",
    ),
    Known(
        Key(
            "tensormap.py",
            "grow",
            "if 2 * (old_mask + 1) > mem[L.MAP_AREA]:",
            "if 2 * (old_mask - 1) > mem[L.MAP_AREA]:",
        ),
        "Table and area are powers of two: twice the table is the area, or at least twice as much.",
    ),
    Known(
        Key("ops.py", "repeated", "op[L.OP_OUTPUTS] = 0", "pass"),
        "The program is all zeros before.",
    ),
    Known(
        Key("mailbox.py", "await_control", "if rest <= 0:", "if rest <= 1:"),
        "A nanosecond more or less of a time limit.",
    ),
    Known(
        Key("entries.py", "report_death", "return L.OK", "return L.OUTPUT"),
        "Nobody looks at the answer.",
    ),
    Known(
        Key(
            "submit.py",
            "could_have_room",
            "if words <= L.INLINE_WORDS:",
            "if words < L.INLINE_WORDS:",
        ),
        "The area has room for the smallest block.",
    ),
    Known(
        Key(
            "submit.py",
            "alloc_buffer",
            "prepare(mem, slot, -1, 0, 1)",
            "prepare(mem, slot, -0, 0, 1)",
        ),
        "Nobody asks a buffer in the host's memory for its callable or its worker.",
    ),
)
"""They behave as the source does, but for what nobody promises."""

UNDECIDED: tuple[Known, ...] = (
    Known(
        Key(
            "cores.py",
            "wake_elsewhere",
            "if thread != 0 and load(mem, w + L.W_KEPT_OFF) == 0 and has_free_core(mem, w):",
            "if thread != 0 and has_free_core(mem, w):",
        ),
        "A worker is kept off a second core before it has left the first: it costs time, and no test looks.",
    ),
    Known(
        Key(
            "submit.py",
            "spill_has_room",
            "return mem[L.SPILL_USED] + (L.SPILL_SMALLEST << kind) <= mem[L.A_SPILL_END]",
            "return mem[L.SPILL_USED] + (L.SPILL_USED << kind) <= mem[L.A_SPILL_END]",
        ),
        "Only a full area of bodies tells; the tests that fill it were not within the budget.",
    ),
    Known(
        Key(
            "dispatch.py",
            "pick_for_candidate",
            "if found == NO_WORKER or start < best or (start == best and worker == last):",
            "if found == NO_WORKER or start < best or worker == last:",
        ),
        "A worse choice among workers that could start the task later: it costs time.",
    ),
    Known(
        Key(
            "serve.py",
            "receive",
            "offer_core(mem, w + L.W_BACK_OFF)",
            "offer_core(mem, w + L.W_HOME)",
        ),
        "Costs time: a worker would not learn to wait, or not move to another core.",
    ),
    Known(
        Key(
            "submit.py",
            "could_have_room",
            "return L.SPILL_SMALLEST << size_class(words) <= mem[L.A_SPILL_END] - mem[L.A_SPILL]",
            "return L.SPILL_SMALLEST << size_class(words) < mem[L.A_SPILL_END] - mem[L.A_SPILL]",
        ),
        "Only a body of the size of the whole area tells.",
    ),
    Known(
        Key("schedule.py", "help_scheduler", "have_time_kept(mem)", "pass"),
        "The Scheduler thread would have no clock for a task that is held (SCHED-WAKE-7).",
    ),
    Known(
        Key("schedule.py", "scheduler_loop", "slept -= now_ns()", "slept += now_ns()"),
        "When the Scheduler thread goes on or off duty, or keeps watch; wake-ups hide it.",
    ),
    Known(
        Key(
            "program.py",
            "following",
            "at += int(program[at + L.OP_KIND]) >> 8",
            "at += int(program[at + L.OP_REPEAT]) >> 8",
            1,
        ),
        "Where the op after a REPEAT stands; needs a program with one, run interpreted.",
    ),
    Known(
        Key(
            "submit.py",
            "argument_words",
            "return tensors * TENSOR_WORDS + scalars * L.SCALAR_WORDS",
            "return tensors * TENSOR_WORDS + scalars * L.SCALAR_KIND",
        ),
        "test_bodies looks at bodies that just fit; it was not within the budget.",
    ),
    Known(
        Key(
            "schedule.py",
            "scheduler_loop",
            "seen = int(mem[L.ORCH_PASSES])",
            "seen = int(mem[L.ORCH_THREAD])",
        ),
        "When the Scheduler thread goes on or off duty, or keeps watch; wake-ups hide it.",
    ),
    Known(
        Key(
            "schedule.py",
            "keeps_core",
            "if mem[L.BUSY] > mem[L.CORES] or mem[L.STUCK_SINCE] != 0 or mem[L.STUCK_SINCE + 1] != 0:",
            "if mem[L.BUSY] >= mem[L.CORES] or mem[L.STUCK_SINCE] != 0 or mem[L.STUCK_SINCE + 1] != 0:",
        ),
        "As many workers at work as there are cores: it costs time (SPEED-WAIT-15).",
    ),
    Known(
        Key(
            "ring.py",
            "make_fifo_room",
            "if 2 * (last + 1 - alive) > mask + 1:",
            "if 2 * (last + 1 - alive) > mask - 1:",
        ),
        "A FIFO that is half alive doubles once more: it costs memory.",
    ),
    Known(
        Key("serve.py", "receive", "if mem[w + L.W_AT] == 0:", "if mem[w + L.W_AT] != 0:"),
        "Costs time: a worker would not learn to wait, or not move to another core.",
    ),
    Known(
        Key(
            "dispatch.py",
            "turn_of",
            "ahead = int(mem[slot + L.S_FRAME]) - w - int(mem[w + L.W_HEAD])",
            "ahead = int(mem[slot + L.S_FRAME]) - w + int(mem[w + L.W_HEAD])",
        ),
        "A worse choice of the worker for a task given ahead (SPEED-AHEAD-3): it costs time.",
    ),
    Known(
        Key(
            "schedule.py",
            "scheduler_loop",
            "store(mem, L.WATCHING, since != 0)",
            "store(mem, L.WATCHING, since != -1)",
        ),
        "When the Scheduler thread goes on or off duty, or keeps watch; wake-ups hide it.",
    ),
    Known(
        Key(
            "dispatch.py",
            "dispatch_candidates",
            "paused = mem[L.READY_ORDER] < mem[L.PREDISPATCH_AFTER] or load(mem, L.RUN_ERROR) != 0",
            "paused = mem[L.READY_ORDER] < mem[L.PREDISPATCH_AFTER] or load(mem, L.RUN_FAILED) != 0",
        ),
        "A task is given ahead after a failure; it is skipped later (SPEED-AHEAD-5).",
    ),
    Known(
        Key(
            "schedule.py",
            "scheduler_pass",
            "may_move = collected != 0 and (has_ready(mem, 0) or has_ready(mem, 1))",
            "may_move = collected != 0 and has_ready(mem, 1)",
        ),
        "A hint that lets a thread look once more before it sleeps (MAY_MOVE).",
    ),
    Known(
        Key(
            "mailbox.py",
            "mark_dead",
            "compare_exchange(mem, awaited(mem, w), L.IDLE, L.SHUTDOWN)",
            "compare_exchange(mem, awaited(mem, w), L.OUTPUT, L.SHUTDOWN)",
        ),
        "The mailbox of a dead worker stays IDLE: who is about to fill it has to see W_DEATH.",
    ),
    Known(
        Key(
            "schedule.py",
            "scheduler_loop",
            "still = mem[L.ORCH_PASSES] != seen and (not any_deferred(mem)) and may_miss_an_end(mem)",
            "still = mem[L.ORCH_PASSES] == seen and (not any_deferred(mem)) and may_miss_an_end(mem)",
        ),
        "When the Scheduler thread goes on or off duty, or keeps watch; wake-ups hide it.",
    ),
    Known(
        Key("schedule.py", "scheduler_loop", "return L.OK", "pass"),
        "When the Scheduler thread goes on or off duty, or keeps watch; wake-ups hide it.",
    ),
    Known(
        Key(
            "schedule.py", "watch_groups", "if stuck_since(mem) != 0:", "if stuck_since(mem) != -1:"
        ),
        "The Scheduler thread is woken without need: it costs time.",
    ),
    Known(
        Key(
            "dispatch.py",
            "turn_of",
            "return ahead // L.WORKER_WORDS + 1",
            "return ahead * L.WORKER_WORDS + 1",
        ),
        "A worse choice of the worker for a task given ahead (SPEED-AHEAD-3): it costs time.",
    ),
    Known(
        Key(
            "ring.py",
            "outside_window",
            "if mem[L.ID_WINDOW] == 0 or mem[L.LIVE] == 0:",
            "if mem[L.ID_WINDOW] == 0 or mem[L.LIVE] == -1:",
        ),
        "With nothing alive the window would look at a task of before.",
    ),
)
"""No test has told them from the source within its time. The reasons come from reading alone: nobody has tried them."""
