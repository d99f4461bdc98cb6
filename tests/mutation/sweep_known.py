# ruff: noqa: E501  (what stands in the sources stands here in one line)
"""Mutants that the sweep has found and no test can notice, and why."""

from __future__ import annotations

from .sweep_changes import Key


def read(text: str) -> dict[Key, str]:
    """Read entries of three lines: file, function, `nth` if it is not 0, and why; before; after."""
    lines, known = [line.strip() for line in text.strip().splitlines()], {}
    for first, before, after in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        place, _, why = first.partition(": ")
        file, function, *nth = place.split()
        known[Key(file, function, before, after, *map(int, nth))] = why
    return known


EQUIVALENT = read("""
jit/submit.py are_there: A count that has become negative never grows again, and at the end it must be 0.
    if shared < 0 or tensors < 0 or scalars < 0 or (worker < 0) or (worker > mem[L.WORKERS]):
    if shared < 0 or tensors < 0 or worker < 0 or (worker > mem[L.WORKERS]):
jit/mailbox.py wait_ready: A nanosecond more or less of a time limit.
    if rest <= 0:
    if rest <= 1:
jit/schedule.py leave_pass_out: The count is only looked at for whether it has changed.
    mem[L.ORCH_PASSES] += 1
    mem[L.ORCH_PASSES] += 2
jit/collect.py finish_member: That half of the word is compared with 0 and with nothing else.
    left += 1 << L.HALF
    left += 2 << L.HALF
jit/schedule.py scheduler_pass: Without a worker at work `collect` finds nothing, and that is what it says.
    if mem[L.BUSY] != 0:
    if mem[L.BUSY] != -1:
jit/schedule.py scheduler_pass: As long as no task has been dealt none is at work, and `collect` would find nothing.
    if mem[L.BUSY] != 0:
    if mem[L.DEALT] != 0:
jit/collect.py vacate: Who reads W_SLOT has seen W_GIVEN, or that the number is no slot's: 1 is none.
    mem[w + frame + L.W_SLOT] = L.NONE
    mem[w + frame + L.W_SLOT] = L.OUTPUT
jit/submit.py submit_task: 0 is no slot's number.
    if slot < 0:
    if slot < 1:
jit/graph.py record_error: W_SLOT alone tells: it is NONE where no task stands, and a worker with tasks is named only for its oldest.
    if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:
    if mem[w + L.W_GIVEN] != 0 or mem[frame + L.W_SLOT] == slot:
jit/submit.py add_edge: `wire` writes EDGE_NEXT before the edge joins a chain, and nobody reads it outside of one.
    mem[edge + L.EDGE_NEXT] = L.NONE
    mem[edge + L.EDGE_NEXT] = L.OUTPUT
jit/serve.py receive: A nanosecond more of patience.
    if now - start < mem[w + L.W_BACK_OFF]:
    if now - start <= mem[w + L.W_BACK_OFF]:
jit/serve.py post_done: With one frame nobody reads W_ENDED, and the next frame is the same one: leaving early saves time.
    return
    pass
jit/schedule.py scheduler_loop: The word is set to 0 soon after, without a sleep between: a waker makes a system call in vain.
    asked = exchange(mem, L.PARK_SCHED, 0) == L.KEEP_TIME
    asked = exchange(mem, L.PARK_SCHED, 1) == L.KEEP_TIME
jit/collect.py take_back: The count is only looked at for whether it has changed.
    mem[L.RETURNED_COUNT] += 1
    mem[L.RETURNED_COUNT] += 2
jit/claims.py abandon_mailbox: The word is compared with CLAIM_WAITS and with nothing else.
    store(mem, w + L.W_CLAIM, 0)
    store(mem, w + L.W_CLAIM, -1)
jit/collect.py finish_member: The other half is 0 there, and Python's integers keep the bits that compiled code would lose.
    if left >> L.HALF != 0:
    if left << L.HALF != 0:
jit/collect.py skip_rest: W_SLOT is NONE where no task stands.
    if mem[w + L.W_GIVEN] != 0 and mem[frame + L.W_SLOT] == slot:
    if mem[frame + L.W_SLOT] == slot:
jit/dispatch.py send: It writes a 0 where one stands already: not to do so saves time.
    if mem[w + frame + L.W_SKIP] != 0:
    if mem[w + frame + L.W_SKIP] != -1:
jit/entries.py submit_and_pass: 0 is no slot's number.
    if slot >= 0:
    if slot > 0:
jit/tensormap.py grow: Table and area are powers of two: twice the table is the area, or at least twice as much.
    if 2 * (old_mask + 1) > mem[L.MAP_AREA]:
    if 2 * (old_mask - 1) > mem[L.MAP_AREA]:
jit/ops.py repeated: The program is all zeros before.
    op[L.OP_OUTPUTS] = 0
    pass
jit/mailbox.py await_control: A nanosecond more or less of a time limit.
    if rest <= 0:
    if rest <= 1:
jit/submit.py could_have_room: The area has room for the smallest block.
    if words <= L.INLINE_WORDS:
    if words < L.INLINE_WORDS:
jit/submit.py alloc_buffer: Nobody asks a buffer in the host's memory for its callable or its worker.
    prepare(mem, slot, -1, 0, 1)
    prepare(mem, slot, -0, 0, 1)
jit/submit.py find_producers: A stamp only has to be unique, and not 0.
    stamp = int(mem[slot + L.S_ID]) + 1
    stamp = int(mem[slot + L.S_ID]) + 2
jit/schedule.py scheduler_loop: ORCH_PASSES is never -1, so `slept` is set to 0 before it is read for the first time.
    slept = 0
    slept = -1
jit/queues.py double: It also copies the oldest entry to the first free position, which is written before it is read.
    for position in range(first, first + mask + 1):
    for position in range(first, first + mask + 2):
jit/entries.py submit_group_and_pass: 0 is no slot's number.
    if slot >= 0:
    if slot > 0:
jit/hazards.py find_overlaps: The last answer is then never used again, and found anew.
    mem[L.FOUND_LOW] = low
    pass
jit/hazards.py find_overlaps: A grid is searched that the tensor only touches, and nothing is found.
    if count != 0 and low < mem[grid + L.GRID_HIGH] and (mem[grid + L.GRID_LOW] < high):
    if count != 0 and low <= mem[grid + L.GRID_HIGH] and (mem[grid + L.GRID_LOW] < high):
jit/hazards.py search_grid: Cells and list give the same answer: the shorter one is chosen.
    if (last_row - row + 1) * columns >= count:
    if (last_row + row + 1) * columns >= count:
jit/hazards.py shape_in: The search goes through more cells than are reached.
    if high - low <= stride:
    if high + low <= stride:
jit/hazards.py cell_at: A worse hash: cells may share their chains.
    x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842
    x = (row & 1073741824) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842
jit/hazards.py cell_at: Another hash.
    x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49842
    x = (row & 1073741823) * 2654435761 + (column & 1048575) * 2246822507 + grid * 49843
jit/hazards.py insert: There are more cells than are needed, at most as many as accesses.
    if mem[L.ACCESS_COUNT] > mem[L.CELL_MASK]:
    if mem[L.ACCESS_COUNT] > mem[L.CELL_WORDS]:
jit/hazards.py search_chain: `overlap` says the same of two tensors without layouts: the question saves the call.
    if (layout == other == L.NONE or overlap(mem, low, high, layout, other_low, other_high, other)) and mem[access + L.ACCESS_SEEN] != stamp:
    if overlap(mem, low, high, layout, other_low, other_high, other) and mem[access + L.ACCESS_SEEN] != stamp:
jit/overlap.py loops_meet: The number is compared with strides, which are above 0, and is used for nothing else.
    other_stride = int(mem[other + 1]) if other < other_end else 0
    other_stride = int(mem[other + 1]) if other < other_end else -1
jit/calls.py submit_call: With bits set `erase` is asked for entries of a table that is empty during a stream.
    mem[k] = 0
    mem[k] = -1
""")
"""They behave as the source does, but for what nobody promises."""
