"""Shows byte layouts from the code, and rings from what a `Ring` does, as tables of HTML.

``{layout} name`` shows one of `FIGURES`: which byte of a record means what, eight to a row. Offsets,
sizes and names come from the records of `simpler_ref.jit.layout` and from `simpler_ref.jit.structures`.
``{engine-areas}`` shows the areas of the engine, and ``{ring} size`` carries out the steps in its body
(``alloc name bytes``, ``release name``) and shows what stands where after each.
"""

import html
from itertools import pairwise
from typing import NamedTuple

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import (
    CALL_CONFIG,
    CHAR,
    CHIP_STORAGE_TASK_ARGS,
    CORE_ARGS,
    I32,
    TENSOR,
    U8,
    U32,
    U64,
    Structure,
)

BYTES = 8


class Field(NamedTuple):
    """Some bytes of a record; no name: nothing is in them."""

    at: int
    size: int
    name: str = ""
    kind: str = ""


# ---------------------------------------------------------------- what is shown
C_TYPES = {U8: "u8", U32: "u32", I32: "i32", U64: "u64", CHAR: "char"}


def structure(whole):
    """Return the members of a structure."""
    fields = [
        Field(whole.offsets[one.name], one.size, one.name, kind_of(one))
        for one in whole.members
        if one.name != "padding"
    ]
    return fill(fields, whole.size)


def kind_of(member):
    """Return what a member is, in short: ``u32[5]``."""
    if isinstance(member.kind, Structure):
        return f"{member.elements} × {member.kind.size} bytes"
    array = "" if member.elements is None else f"[{member.elements}]"
    return C_TYPES[member.kind] + array


def words(record):
    """Return the fields of a record of words."""
    fields = [Field(one.at * L.WORD, one.words * L.WORD, one.name) for one in record.fields]
    return fill(fields, record.size * L.WORD)


def fill(fields, total):
    """Return fields in order, with what lies between them; they must not overlap."""
    result, end = [], 0
    for one in [*sorted(fields), Field(total, 0)]:
        if one.at < end:
            raise ExtensionError(f"{one.name or 'the end'} at {one.at} overlaps what is before it")
        if one.at > end:
            result.append(Field(end, one.at - end))
        if one.size:
            result.append(one)
        end = one.at + one.size
    return result


def mailbox():
    """Return what stands in a mailbox for a task."""
    fields = [
        Field(L.MAILBOX_OFF_STATE, 4, "state", "i32"),
        Field(L.MAILBOX_OFF_STATE + 4, 4, "error", "i32"),
        Field(L.MAILBOX_OFF_COMMAND, 8, "0 for a task", "u64"),
        Field(L.MAILBOX_OFF_CONFIG, L.CALL_CONFIG_SIZE, "CallConfig"),
        Field(L.MAILBOX_OFF_DIGEST, L.CALLABLE_HASH_DIGEST_BYTES, "digest of the callable"),
        Field(L.MAILBOX_OFF_ARGS, L.MAILBOX_ARGS_CAPACITY, "args blob"),
        Field(L.MAILBOX_OFF_ERROR_MSG, L.MAILBOX_ERROR_MSG_SIZE, "error message"),
    ]
    return fill(fields, L.MAILBOX_SIZE)


def request():
    """Return what stands in a mailbox for a control request, up to the end of its digest."""
    args = L.MAILBOX_OFF_CONTROL_ARGS
    fields = [
        Field(L.MAILBOX_OFF_STATE, 4, "state", "i32"),
        Field(L.MAILBOX_OFF_STATE + 4, 4, "error", "i32"),
        Field(L.MAILBOX_OFF_COMMAND, 8, "sub-command", "u64"),
        *(Field(args + 8 * i, 8, f"arg{i}", "u64") for i in range(3)),
        Field(L.MAILBOX_OFF_CONTROL_RESULT, 8, "result", "u64"),
        Field(L.MAILBOX_OFF_CONTROL_NAME, L.CONTROL_NAME_SIZE, "name of the payload"),
        Field(L.MAILBOX_OFF_CONTROL_DIGEST, L.CALLABLE_HASH_DIGEST_BYTES, "digest"),
    ]
    return fill(fields, L.MAILBOX_OFF_CONTROL_DIGEST + L.CALLABLE_HASH_DIGEST_BYTES)


def blob():
    """Return the arguments of a task with two tensors and three scalars."""
    tensor = L.TENSOR_WORDS * L.WORD
    return [
        Field(0, 4, "T = 2", "i32"),
        Field(4, 4, "S = 3", "i32"),
        *(Field(8 + i * tensor, tensor, f"tensor {i}") for i in range(2)),
        *(Field(8 + 2 * tensor + 8 * i, 8, f"scalar {i}", "u64") for i in range(3)),
    ]


FIGURES = {  # name: fields, and the bytes of a line that is shown between rows
    "ContinuousTensor": lambda: (structure(TENSOR), 0),
    "CallConfig": lambda: (structure(CALL_CONFIG), 0),
    "ChipStorageTaskArgs": lambda: (structure(CHIP_STORAGE_TASK_ARGS), 0),
    "CoreArgs": lambda: (structure(CORE_ARGS), 0),
    "blob": lambda: (blob(), 0),
    "mailbox": lambda: (mailbox(), 0),
    "request": lambda: (request(), 0),
    "frame": lambda: (words(L.WORKER), L.LINE * L.WORD),
    "slot": lambda: (words(L.SLOT), L.LINE * L.WORD),
    "ring": lambda: (words(L.RING), L.LINE * L.WORD),
}


# ---------------------------------------------------------------- how
def rows_of(fields):
    """Yield (offset, pieces, bytes) per row; a piece is (bytes, field, whether it begins here).

    What fills whole rows is one row, however long it is.
    """
    row, at, used = [], 0, 0
    for one in fields:
        left, first = one.size, True
        while left:
            if used == 0 and left > BYTES:
                whole = left - left % BYTES
                yield at, [(BYTES, one, first)], whole
                at, left, first = at + whole, left - whole, False
                continue
            part = min(left, BYTES - used)
            row.append((part, one, first))
            used, left, first = used + part, left - part, False
            if used == BYTES:
                yield at, row, BYTES
                row, at, used = [], at + BYTES, 0
    if row:
        yield at, row, BYTES


def draw(name):
    """Return a record as a table; colours are those of the page around it."""
    if name not in FIGURES:
        raise ExtensionError(f"no layout {name}; there are {', '.join(FIGURES)}")
    fields, line = FIGURES[name]()
    rows = []
    for at, row, length in rows_of(fields):
        cells = ""
        for count, one, begins in row:
            kind, said = "field" if one.name else "gap", ""
            if one.name and not begins:
                said = "…"
            elif one.name or length > BYTES:
                said = describe(one, count if length == BYTES else one.size)
            cells += f'<td class="{kind}" colspan="{count}">{said.replace("_", "_<wbr>")}</td>'
        edge = ' class="edge"' if line and at and at % line == 0 else ""
        rows.append(f"<tr{edge}><th>{at}</th>{cells}</tr>")
    rows.append(f"<tr><th>{fields[-1].at + fields[-1].size}</th></tr>")
    return table("bytes", rows)


def describe(one, count):
    """Return what stands in a box."""
    if not one.name:
        return f"{one.size} unused" if one.size > BYTES else ""
    if one.kind and count > 4:
        return f"{one.name}: {one.kind}"
    if one.size > BYTES and not one.kind:
        return f"{one.name}: {one.size} bytes"
    return one.name


def table(kind, rows):
    """Return a table of HTML."""
    return f'<table class="layout {kind}">{"".join(rows)}</table>'


# ---------------------------------------------------------------- the engine
AREAS = {  # where it begins: what is in it
    L.HEADER_WORDS: "header",
    L.A_WORKERS: "workers and their mailboxes",
    L.A_CALLABLES: "digests of callables",
    L.A_WIRING: "wiring queue",
    L.A_FIFO: "FIFOs of the rings",
    L.A_MAP: "TensorMap, two areas",
    L.A_SLOTS: "slots",
    L.A_SPILL: "long bodies",
    L.A_CONFIGS: "configurations",
    L.A_JOURNALS: "journals, for traces",
    L.A_LAYOUTS: "layouts of described tensors",
    L.A_ACCESSES: "accesses of live tasks",
    L.A_CELLS: "cells: heads of their chains",
    L.A_GRIDS: "grids of cells",
    L.A_OVERLAPS: "accesses that a search found",
    L.A_CONFLICTS: "conflicts that a search found",
}


def areas(sub):
    """Return (first word, words, what) of each area of an engine with so many sub workers."""
    total, geometry = L.plan(
        window=L.DEFAULT_TASK_WINDOW, rings=L.MAX_RING_DEPTH, next_level=0, sub=sub
    )
    starts = sorted(
        [(geometry[at], what) for at, what in AREAS.items() if at != L.HEADER_WORDS]
        + [(0, AREAS[L.HEADER_WORDS])]
    )
    ends = [start for start, _ in starts[1:]] + [total]
    return geometry[L.PRIVATE], [
        (start, end - start, what) for (start, what), end in zip(starts, ends, strict=True)
    ]


def size_of(count):
    """Return a size for people."""
    nbytes = float(count * L.WORD)
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def draw_areas():
    """Return the areas of the engine as a table."""
    private, found = areas(sub=2)
    rows = []
    for start, count, what in found:
        if start in (0, private):
            owner = "private to the user's process" if start else "shared with the workers"
            rows.append(f'<tr><th colspan="2">{owner}</th></tr>')
        kind = "field" if start < private else "gap"
        rows.append(f'<tr class="{kind}"><td>{what}</td><td>{size_of(count)}</td></tr>')
    return table("areas", rows)


# ---------------------------------------------------------------- a ring at work
class Slab(NamedTuple):
    """What a step of a ring's story handed out."""

    name: str
    task: int
    start: int
    end: int


def tell(size, story):
    """Carry a story out; return after each step (step, slabs held, names released)."""
    from simpler_ref.orchestrator import Ring  # loads the kernels: only where a ring is drawn

    ring = Ring(heap_bytes=size, ring_depth=1)
    slabs, released, seen = [], set(), []
    for step in story:
        verb, name, *amount = step.split()
        if verb == "alloc":
            got = ring.alloc(int(amount[0]))
            start = got.heap_ptr - ring.heap_base(0)
            slabs.append(Slab(name, got.slot, start, got.heap_end_offset))
        elif verb == "release":
            [slab] = [one for one in slabs if one.name == name and one.name not in released]
            ring.release(slab.task)
            released.add(name)
        else:
            raise ExtensionError(f"a ring cannot {step}")
        seen.append((step, held_of(slabs, ring.heap_held(0), size), set(released)))
    return seen


def held_of(slabs, held, size):
    """Return the newest slabs, as many as the ring says it holds bytes, skipped ends included."""
    kept = []
    for before, slab in reversed(list(pairwise([None, *slabs]))):
        skipped = 0 if before is None or slab.start >= before.end else size - before.end
        if held <= 0:
            break
        kept.append(slab)
        held -= slab.end - slab.start + skipped
    return kept


def draw_ring(size, story):
    """Return a ring after each step of a story, as a table."""
    rows = []
    for step, held, released in tell(size, story):
        slabs = ""
        for slab in held:
            kind = "free" if slab.name in released else "field"
            start, width = (100 * n / size for n in (slab.start, slab.end - slab.start))
            place = f"left: {start:.2f}%; width: {width:.2f}%"
            slabs += f'<span class="{kind}" style="{place}">{slab.name}</span>'
        rows.append(f"<tr><th>{html.escape(step)}</th><td>{slabs}</td></tr>")
    return table("ring", rows)


# ---------------------------------------------------------------- directives
class Layout(SphinxDirective):
    """``{layout} name``."""

    required_arguments = 1

    def run(self):
        """Return the table."""
        return [nodes.raw("", draw(self.arguments[0]), format="html")]


class EngineAreas(SphinxDirective):
    """``{engine-areas}``."""

    def run(self):
        """Return the table."""
        return [nodes.raw("", draw_areas(), format="html")]


class RingStory(SphinxDirective):
    """``{ring} bytes``, with a step on each line of the body."""

    required_arguments = 1
    has_content = True

    def run(self):
        """Return the table."""
        drawn = draw_ring(int(self.arguments[0]), [line for line in self.content if line.strip()])
        return [nodes.raw("", drawn, format="html")]


def setup(app):
    """Register with Sphinx."""
    app.add_directive("layout", Layout)
    app.add_directive("engine-areas", EngineAreas)
    app.add_directive("ring", RingStory)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
