"""Draws the state machine of a task from `simpler_ref.jit.slots.TRANSITIONS`.

The directive ``{state-machine}`` puts a drawing and a table on the page. States and steps come from
the code; this file adds only where a state stands in the drawing and who takes a step, and refuses
to draw when the code has a state or a step that is not listed here, or the other way round.
"""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from simpler_ref.jit.slots import TRANSITIONS
from simpler_ref.task_interface import TaskState as S

VIEW = "0 18 800 284"
BOX = (96, 34)
CENTRE = {
    S.FREE: (56, 110),
    S.PENDING: (226, 110),
    S.READY: (396, 110),
    S.RUNNING: (566, 110),
    S.COMPLETED: (738, 110),
    S.FAILED: (396, 220),
    S.CONSUMED: (738, 220),
}
STEPS = {  # (from, to): who, when, words beside the arrow, where they stand
    (S.FREE, S.PENDING): ("Orch thread", "submit", "submit", (141, 102)),
    (S.FREE, S.COMPLETED): ("Orch thread", "alloc", "alloc", (396, 34)),
    (S.PENDING, S.READY): (
        "Scheduler",
        "wired, and every producer is done",
        "inputs done",
        (311, 102),
    ),
    (S.PENDING, S.FAILED): ("Scheduler", "a producer failed", "poisoned", (268, 178)),
    (S.READY, S.RUNNING): ("Scheduler", "given to a worker", "dispatched", (481, 102)),
    (S.READY, S.FAILED): (
        "Scheduler",
        "the run is cancelled, or no worker is left",
        "cancelled",
        (430, 162),
    ),
    (S.RUNNING, S.COMPLETED): ("Scheduler", "the worker succeeded", "success", (652, 102)),
    (S.RUNNING, S.FAILED): (
        "Scheduler",
        "the worker reported an error, or died",
        "error, death",
        (540, 178),
    ),
    (S.COMPLETED, S.CONSUMED): (
        "whoever releases the last reference",
        "no consumer and no scope needs it any more",
        "released",
        (708, 170),
    ),
    (S.FAILED, S.CONSUMED): (
        "whoever releases the last reference",
        "no consumer and no scope needs it any more",
        "last reference released",
        (567, 212),
    ),
    (S.CONSUMED, S.FREE): ("Orch thread", "reclaimed", "reclaimed", (396, 284)),
}
BENDS = {  # arrows that go around others: their corners
    (S.FREE, S.COMPLETED): [(56, 93), (56, 42), (738, 42), (738, 93)],
    (S.CONSUMED, S.FREE): [(738, 237), (738, 292), (56, 292), (56, 127)],
}


def steps_of_the_code():
    """Return the (from, to) pairs of the code, and complain if this file does not know them all."""
    steps = [(S(a), S(b)) for a, after in TRANSITIONS.items() for b in after]
    unknown = {f"{a.name} → {b.name}" for a, b in set(steps) ^ set(STEPS)}
    if unknown or set(TRANSITIONS) != set(CENTRE):
        raise ValueError(
            f"{', '.join(sorted(unknown)) or 'a state'}: jit/slots.py and docs/_ext/state_machine.py "
            "do not agree; give it a place in CENTRE, STEPS (and BENDS)"
        )
    return steps


def straight(start, end):
    """Return the line between two boxes, from border to border."""
    (x1, y1), (x2, y2) = CENTRE[start], CENTRE[end]
    if y1 == y2:
        half = BOX[0] / 2 if x2 > x1 else -BOX[0] / 2
        return [(x1 + half, y1), (x2 - half, y2)]
    shift = max(-30, min(30, (x1 - x2) / 4))
    return [(x1, y1 + BOX[1] / 2), (x2 + shift, y2 - BOX[1] / 2)]


def draw():
    """Return the state machine as SVG; colours are those of the page around it."""
    steps = steps_of_the_code()
    words = "; ".join(f"{a.name} to {b.name}: {STEPS[a, b][1]}" for a, b in steps)
    parts = [
        f'<svg class="state-machine" viewBox="{VIEW}" role="img" '
        f'aria-label="States of a task. {words}">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8Z"/></marker></defs>',
    ]
    for step in steps:
        points = BENDS.get(step) or straight(*step)
        line = " ".join(f"{x:g},{y:g}" for x, y in points)
        *_, label, (x, y) = STEPS[step]
        parts.append(f'<polyline points="{line}" marker-end="url(#tip)"/>')
        parts.append(f'<text class="step" x="{x}" y="{y}">{label}</text>')
    width, height = BOX
    for state, (x, y) in CENTRE.items():
        parts.append(
            f'<rect class="{state.name.lower()}" x="{x - width / 2}" y="{y - height / 2}" '
            f'width="{width}" height="{height}" rx="6"/><text x="{x}" y="{y + 4}">{state.name}</text>'
        )
    return "\n".join([*parts, "</svg>"])


def table():
    """Return the same as a Markdown table."""
    rows = [
        f"| {a.name} | {b.name} | {' | '.join(STEPS[a, b][:2])} |" for a, b in steps_of_the_code()
    ]
    return "\n".join(["| from | to | by | when |", "| --- | --- | --- | --- |", *rows])


class StateMachine(SphinxDirective):
    """``{state-machine}``."""

    def run(self):
        """Return drawing and table."""
        drawing = nodes.raw("", draw(), format="html")
        return [drawing, *self.parse_text_to_nodes(table())]


def setup(app):
    """Register with Sphinx."""
    app.add_directive("state-machine", StateMachine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
