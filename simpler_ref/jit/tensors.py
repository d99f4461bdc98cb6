"""Tensors: their tags and sizes on their way into submit, and which bytes two of them have in common.

On that way they are five words each, with the tag in the padding.

The bytes of a tensor are those from `low` to `high` if its layout is NONE. Else they are *runs* of
contiguous bytes, which nested loops of the layout go through; a layout without loops has some bytes
between `low` and `high`, nobody knows which. Loops are in canonical form: strides are above zero and
descend, each is at least the extent of all loops inside of it, and the innermost leaves gaps.

Rule     CALL-HAZARD-4, CALL-HAZARD-7, FLOW-LAYOUT-1, ORCH-AUTO-1, ORCH-AUTO-5, ORCH-AUTO-7, ORCH-INV-2,
         ORCH-MAP-7, ORCH-SUBMIT-3, ORCH-TAG-1, ORCH-TAG-2, ORCH-TAG-3, ORCH-TAG-4
"""

from __future__ import annotations

from . import layout as L

DTYPE_SIZES = L.DTYPE_SIZES
LOOP_WORDS = 2
"""Turns, and bytes from one to the next."""


def tag_of(words, t):
    """Return the tag that a tensor has in its padding on its way into submit."""
    return int(words[t + L.TENSOR_KIND]) >> L.TENSOR_TAG_SHIFT & 0xFF


def nbytes_of(words, t):
    """Return the bytes of a tensor: product of its dimensions times its element size.

    Of a described one, how many it spans.
    """
    dims = int(words[t + L.TENSOR_DIMS]) >> L.HALF
    kind = int(words[t + L.TENSOR_KIND]) & L.TENSOR_DTYPE_MASK
    if kind == L.TENSOR_DESCRIBED:
        return int(words[t + L.TENSOR_EXTENT])
    count = DTYPE_SIZES[kind]
    for d in range(L.CONTINUOUS_TENSOR_MAX_DIMS):  # a number that compilers know: they unroll it
        if d < dims:
            count *= int(words[t + L.TENSOR_SHAPE + (d >> 1)]) >> (L.HALF * (d & 1)) & L.LOW_HALF
    return count


def is_child_memory(words, t):
    """Say whether a tensor's address is in the memory of a next-level worker, not the host's."""
    return int(words[t + L.TENSOR_KIND]) & L.TENSOR_CHILD != 0


def member_affinity(words, member):
    return (int(words[member + L.MEMBER_WORKER]) & L.LOW_HALF) - 1


def worker_of(words, member, members, callable_word, i):
    """Return the only worker that may have tensor `i` of a task, or -1; its members begin at `member`."""
    for _ in range(members):
        i -= int(words[member + L.MEMBER_COUNTS]) & L.LOW_HALF
        if i < 0:
            return member_affinity(words, member)
        member += L.MEMBER_WORDS
    return (callable_word >> L.WORD_WORKER & L.WORKER_MASK) - 1


def reads(tag):
    return tag == L.INPUT or tag == L.INOUT


def writes(tag):
    return tag == L.OUTPUT or tag == L.INOUT or tag == L.OUTPUT_EXISTING


def has_key(words, t, data):
    """Say whether a tensor is a buffer that tasks may wait for: it has an address, and bytes there."""
    return data != 0 and nbytes_of(words, t) != 0


def is_auto_output(words, t):
    """Say whether the runtime must provide the buffer: an OUTPUT without an address."""
    return tag_of(words, t) == L.OUTPUT and words[t + L.TENSOR_DATA] == 0


# ---------------------------------------------------------------- bytes in common
def count_loops(mem, layout):
    return 0 if layout == L.NONE else int(mem[layout + L.LAYOUT_LOOPS])


def loops_at(mem, layout):
    """Return the offset of a layout's outermost loop, which comes after its axes."""
    if layout == L.NONE:
        return L.NONE
    return layout + L.LAYOUT_WORDS + LOOP_WORDS * int(mem[layout + L.LAYOUT_DIMS])


def overlap(mem, low, high, layout, other_low, other_high, other_layout):
    """Say whether two tensors share a byte.

    True may be wrong where strides differ; False never is.
    """
    if low >= other_high or other_low >= high:
        return False
    loops, other_loops = count_loops(mem, layout), count_loops(mem, other_layout)
    if loops + other_loops == 0:
        return True
    for choices in range(1 << count_strides(mem, layout, other_layout) - 1):
        if loops_meet(mem, low, high, layout, other_low, other_high, other_layout, choices):
            return True
    return False


def count_strides(mem, layout, other_layout):
    """Return how many different strides the loops of two layouts have."""
    loop, other = loops_at(mem, layout), loops_at(mem, other_layout)
    end = loop + LOOP_WORDS * count_loops(mem, layout)
    other_end = other + LOOP_WORDS * count_loops(mem, other_layout)
    strides = (end - loop + other_end - other) // LOOP_WORDS
    while loop < end and other < other_end:
        difference = mem[loop + 1] - mem[other + 1]
        strides -= difference == 0
        loop += LOOP_WORDS * (difference >= 0)
        other += LOOP_WORDS * (difference <= 0)
    return strides


def common_divisor(a, b):
    while b != 0:
        a, b = b, a % b
    return a


def loops_meet(mem, low, high, layout, other_low, other_high, other_layout, choices):
    """Say whether two tensors share a byte in one of the places where their loops can meet.

    Some turn of a loop of each reaches the same byte if a sum of multiples of all strides, plus the
    distance, is less than a run away from 0. Of each stride, from the largest down, only those multiples
    count that the smaller ones can make up for: as these reach less than a stride, there are mostly one
    or two. A bit of `choices` takes the second one. Where there are more, the next stride may have any
    multiple, as if its loop were endless: that includes all that the larger one could add. After the
    smallest stride nothing is left to choose.
    """
    loop, other = loops_at(mem, layout), loops_at(mem, other_layout)
    end = loop + LOOP_WORDS * count_loops(mem, layout)
    other_end = other + LOOP_WORDS * count_loops(mem, other_layout)
    reach, other_reach = high - low, other_high - other_low  # of what is inside of the loops so far
    distance = other_low - low
    endless = 0  # the stride of which any multiple counts
    while loop < end or other < other_end:
        stride = int(mem[loop + 1]) if loop < end else 0
        other_stride = int(mem[other + 1]) if other < other_end else 0
        most = 0
        least = 0
        widest = max(stride, other_stride)
        if stride == widest:
            least = 1 - int(mem[loop])
            reach += least * stride
            loop += LOOP_WORDS
        if other_stride == widest:
            most = int(mem[other]) - 1
            other_reach -= most * widest
            other += LOOP_WORDS
        if endless != 0:
            widest = common_divisor(endless, widest)
            least, most = -widest - reach - other_reach, widest + reach + other_reach
            distance %= widest
        first = max(least, (-other_reach - distance) // widest + 1)
        last = min(most, -((distance - reach) // widest) - 1)
        if first > last:
            return False
        if loop == end and other == other_end:
            return True
        endless = widest if last - first > 1 else 0
        if choices & 1 == 1 and last - first != 1:
            return False
        if endless == 0:
            distance += (last if choices & 1 == 1 else first) * widest
        choices >>= 1
    return True


def covers(mem, low, high, layout, other_low, other_high, other_layout):
    """Say whether a tensor has all bytes of another one. False may be wrong where strides differ."""
    if other_low < low or other_high > high:
        return False
    if layout == L.NONE or (low == other_low and layout == other_layout):
        return True
    loop, other = loops_at(mem, layout), loops_at(mem, other_layout)
    other_end = other + LOOP_WORDS * count_loops(mem, other_layout)
    distance, reach = other_low - low, other_high - other_low
    for _ in range(count_loops(mem, layout)):
        stride = int(mem[loop + 1])
        turns = 1
        if other < other_end and mem[other + 1] >= stride:
            if mem[other + 1] != stride:
                return False
            turns = int(mem[other])
            reach -= (turns - 1) * stride
            other += LOOP_WORDS
        if distance // stride + turns > mem[loop]:
            return False
        distance %= stride
        loop += LOOP_WORDS
    return distance + reach <= mem[layout + L.LAYOUT_RUN]
