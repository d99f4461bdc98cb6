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
    Known(
        Key(
            "submit.py",
            "find_producers",
            "stamp = int(mem[slot + L.S_ID]) + 1",
            "stamp = int(mem[slot + L.S_ID]) + 2",
        ),
        "A stamp only has to be unique, and not 0.",
    ),
    Known(
        Key(
            "submit.py",
            "owner_of",
            "i -= int(mem[member + L.MEMBER_COUNTS]) & L.LOW_HALF",
            "i -= int(mem[member - L.MEMBER_COUNTS]) & L.LOW_HALF",
        ),
        "MEMBER_COUNTS is 0.",
    ),
    Known(
        Key(
            "ring.py",
            "make_fifo_room",
            "mem[fifo_entry(mem, ring, last) + L.FIFO_END] = end & ~1",
            "mem[fifo_entry(mem, ring, last) - L.FIFO_END] = end & ~1",
        ),
        "FIFO_END is 0.",
    ),
    Known(
        Key("schedule.py", "scheduler_loop", "slept = 0", "slept = -1"),
        "ORCH_PASSES is never -1, so `slept` is set to 0 before it is read for the first time.",
    ),
    Known(
        Key(
            "program.py",
            "run_submit",
            "end = at + (int(program[at + L.OP_KIND]) >> 8) - patches * L.PATCH_WORDS",
            "end = at + (int(program[at - L.OP_KIND]) >> 8) - patches * L.PATCH_WORDS",
        ),
        "OP_KIND is 0.",
    ),
    Known(
        Key(
            "layout.py",
            "plan",
            "words = {WORKERS: workers, POOL_FIRST + NEXT_LEVEL: 0, POOL_END + NEXT_LEVEL: next_level, POOL_FIRST + SUB: next_level, POOL_END + SUB: workers, RINGS: rings, WINDOW: window, ID_WINDOW: id_window, DEPTH: depth, WORKER_STRIDE: depth * WORKER_WORDS, **{READY_MASK + kind: CIRCULAR_SMALLEST - 1 for kind in (NEXT_LEVEL, SUB)}, **{FIFO_MASK + ring: CIRCULAR_SMALLEST - 1 for ring in range(rings)}}",
            "words = {WORKERS: workers, POOL_FIRST - NEXT_LEVEL: 0, POOL_END + NEXT_LEVEL: next_level, POOL_FIRST + SUB: next_level, POOL_END + SUB: workers, RINGS: rings, WINDOW: window, ID_WINDOW: id_window, DEPTH: depth, WORKER_STRIDE: depth * WORKER_WORDS, **{READY_MASK + kind: CIRCULAR_SMALLEST - 1 for kind in (NEXT_LEVEL, SUB)}, **{FIFO_MASK + ring: CIRCULAR_SMALLEST - 1 for ring in range(rings)}}",
        ),
        "NEXT_LEVEL is 0.",
    ),
    Known(
        Key(
            "queues.py",
            "double",
            "for position in range(first, first + mask + 1):",
            "for position in range(first, first + mask + 2):",
        ),
        "It also copies the oldest entry to the first free position, which is written before it is read.",
    ),
    Known(
        Key("entries.py", "submit_group_and_pass", "if slot >= 0:", "if slot > 0:"),
        "0 is no slot's number.",
    ),
    Known(
        Key("hazards.py", "find_overlaps", "mem[L.FOUND_LOW] = low", "pass"),
        "The last answer is then never used again, and found anew.",
    ),
    Known(
        Key(
            "hazards.py",
            "find_overlaps",
            "if count != 0 and low < mem[grid + L.GRID_HIGH] and (mem[grid + L.GRID_LOW] < high):",
            "if count != 0 and low <= mem[grid + L.GRID_HIGH] and (mem[grid + L.GRID_LOW] < high):",
        ),
        "A grid is searched that the tensor only touches, and nothing is found.",
    ),
    Known(
        Key(
            "hazards.py",
            "search_grid",
            "if (last_row - row + 1) * columns >= count:",
            "if (last_row + row + 1) * columns >= count:",
        ),
        "Cells and list give the same answer: the shorter one is chosen.",
    ),
    Known(
        Key(
            "hazards.py",
            "shape_in",
            "if high - low <= stride:",
            "if high + low <= stride:",
        ),
        "The search goes through more cells than are reached.",
    ),
    Known(
        Key(
            "hazards.py",
            "cell_at",
            "x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842",
            "x = (row & 1073741824) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842",
        ),
        "A worse hash: cells may share their chains.",
    ),
    Known(
        Key(
            "hazards.py",
            "cell_at",
            "x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842",
            "x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49843",
        ),
        "Another hash.",
    ),
    Known(
        Key(
            "hazards.py",
            "insert",
            "if mem[L.ACCESS_COUNT] > mem[L.CELL_MASK]:",
            "if mem[L.ACCESS_COUNT] > mem[L.CELL_WORDS]:",
        ),
        "There are more cells than are needed, at most as many as accesses.",
    ),
    Known(
        Key(
            "hazards.py",
            "search_chain",
            "if (layout == other == L.NONE or overlap(mem, low, high, layout, other_low, other_high, other)) and mem[access + L.ACCESS_SEEN] != stamp:",
            "if overlap(mem, low, high, layout, other_low, other_high, other) and mem[access + L.ACCESS_SEEN] != stamp:",
        ),
        "`overlap` says the same of two tensors without layouts: the question saves the call.",
    ),
    Known(
        Key(
            "hazards.py",
            "extent_of",
            "extent = int(mem[layout + L.LAYOUT_EXTENT])",
            "extent = int(mem[layout - L.LAYOUT_EXTENT])",
        ),
        "LAYOUT_EXTENT is 0.",
    ),
    Known(
        Key(
            "hazards.py",
            "has_ended",
            "return load(mem, slot + L.S_STATE) == L.FAILED and mem[slot + L.S_FANIN] == 0",
            "return load(mem, slot - L.S_STATE) == L.FAILED and mem[slot + L.S_FANIN] == 0",
        ),
        "S_STATE is 0.",
    ),
    Known(
        Key(
            "overlap.py",
            "loops_meet",
            "other_stride = int(mem[other + 1]) if other < other_end else 0",
            "other_stride = int(mem[other + 1]) if other < other_end else -1",
        ),
        "The number is compared with strides, which are above 0, and is used for nothing else.",
    ),
    Known(
        Key("calls.py", "submit_call", "mem[k] = 0", "mem[k] = -1"),
        "With bits set `erase` is asked for entries of a table that is empty during a stream.",
    ),
)
"""They behave as the source does, but for what nobody promises."""

UNDECIDED: tuple[Known, ...] = (
    Known(
        Key("mailbox.py", "mark_dead", "fence()", "pass"),
        "`test_memory_ordering` leaves it out itself and finds who is missed, in 300 plays; what must hold is played 25 times.",
    ),
    Known(
        Key("entries.py", "stop_scheduler", "fence()", "pass"),
        "`test_what_must_be_visible_is` notices it, which was not among the tests.",
    ),
)
"""No test within its time has told them from the source."""
