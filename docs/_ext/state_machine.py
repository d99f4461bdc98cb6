"""Draws the state machine of a task from `simpler_ref.jit.slots.EVENTS`.

The directive ``{state-machine}`` puts a drawing on the page, ``{state-table}`` the same as a table.
States, events, owners and kernels come from the code. This file adds only that the states stand
below each other in the order of a task's life, with FAILED beside them; every arrow finds its way
from that, so a new event needs nothing here. The drawing is as narrow as a phone.
"""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from simpler_ref.jit.slots import EVENTS
from simpler_ref.task_interface import TaskState as S

COLUMN = [S.FREE, S.PENDING, S.READY, S.RUNNING, S.COMPLETED, S.CONSUMED]
ASIDE = S.FAILED
WIDTH, HEIGHT = 102, 34  # of a box
STEP = 72  # from one state to the next
LANE = 24  # from one arrow to the next
MIDDLE, RIGHT = 152, 304  # of the column, of what stands beside it


def centre(state):
    """Return where the middle of a box stands."""
    if state == ASIDE:
        return RIGHT, 24 + STEP * 4
    return MIDDLE, 24 + STEP * COLUMN.index(state)


def arrows():
    """Return (corners, words, where the words stand, their angle) of every arrow."""
    steps = [(S(b), S(event.after), event.name) for event in EVENTS for b in event.before]
    around = [step for step in steps if ASIDE not in step[:2] and not is_next(*step[:2])]
    around.sort(key=lambda step: abs(COLUMN.index(step[0]) - COLUMN.index(step[1])))
    aside = [step for step in steps if step[1] == ASIDE]
    for before, after, words in steps:
        (x1, y1), (x2, y2) = centre(before), centre(after)
        if before == ASIDE:  # down, then to the left
            corners = [(x1, y1 + HEIGHT / 2), (x1, y2), (x2 + WIDTH / 2, y2)]
            yield corners, words, (x1 - 4, y2 + 16), 0
        elif after == ASIDE:  # to the right, then down on a lane of its own
            lane = x2 + LANE * (aside.index((before, after, words)) - (len(aside) - 1) / 2)
            lane = x2 * 2 - lane  # the one that starts highest is the outermost
            corners = [(x1 + WIDTH / 2, y1), (lane, y1), (lane, y2 - HEIGHT / 2)]
            yield corners, words, (x1 + WIDTH / 2 + 32, y1 - 6), 0
        elif is_next(before, after):
            middle = (y1 + y2) / 2
            yield [(x1, y1 + HEIGHT / 2), (x2, y2 - HEIGHT / 2)], words, (x1 + 40, middle + 4), 0
        else:  # around the column, on a lane of its own
            number = around.index((before, after, words))
            lane, edge = MIDDLE - WIDTH / 2 - LANE * (number + 1), MIDDLE - WIDTH / 2
            corners = [(edge, y1 + 6), (lane, y1 + 6), (lane, y2 - 6), (edge, y2 - 6)]
            yield corners, words, (lane - 5, (y1 + y2) / 2), -90


def is_next(before, after):
    """Say whether a step leads to the state below."""
    return ASIDE not in (before, after) and COLUMN.index(after) == COLUMN.index(before) + 1


def draw():
    """Return the state machine as SVG; colours are those of the page around it."""
    words = "; ".join(
        f"{event.name}: {names(event.before)} to {S(event.after).name}" for event in EVENTS
    )
    lines, texts = [], []
    left = 0.0
    for corners, label, (x, y), angle in arrows():
        line = " ".join(f"{px:g},{py:g}" for px, py in corners)
        lines.append(f'<polyline points="{line}" marker-end="url(#tip)"/>')
        turn = f' transform="rotate({angle} {x:g} {y:g})"' if angle else ""
        texts.append(f'<text class="step" x="{x:g}" y="{y:g}"{turn}>{label}</text>')
        left = min(left, *(px - 18 for px, _ in corners))
    view = f"{left:g} 0 {RIGHT + WIDTH / 2 + 4 - left:g} {48 + STEP * (len(COLUMN) - 1)}"
    boxes = []
    for state in S:
        x, y = centre(state)
        boxes.append(
            f'<rect class="{state.name.lower()}" x="{x - WIDTH / 2}" y="{y - HEIGHT / 2}" '
            f'width="{WIDTH}" height="{HEIGHT}" rx="6"/>'
            f'<text x="{x}" y="{y + 4}">{state.name}</text>'
        )
    return "\n".join(
        [
            f'<svg class="state-machine" viewBox="{view}" role="img" '
            f'aria-label="States of a task. {words}">',
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8Z"/></marker></defs>',
            *lines,
            *texts,
            *boxes,
            "</svg>",
        ]
    )


def names(states):
    """Return some states in words."""
    return ", ".join(S(state).name for state in states)


def table():
    """Return every event as a Markdown table."""
    head = ("event", "from", "to", "by", "in", "when", "in any other state")
    rows = [
        (
            event.name,
            names(event.before),
            S(event.after).name,
            event.owner,
            ", ".join(f"`{kernel}`" for kernel in event.kernels),
            event.when,
            event.otherwise,
        )
        for event in EVENTS
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


class StateMachine(SphinxDirective):
    """``{state-machine}``."""

    def run(self):
        """Return the drawing."""
        return [nodes.raw("", draw(), format="html")]


class StateTable(SphinxDirective):
    """``{state-table}``."""

    def run(self):
        """Return the table."""
        return self.parse_text_to_nodes(table())


def setup(app):
    """Register with Sphinx."""
    app.add_directive("state-machine", StateMachine)
    app.add_directive("state-table", StateTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
