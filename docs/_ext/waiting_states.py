"""Draws how threads sleep, from `simpler_ref.jit.waiting.STATES`."""

from __future__ import annotations

from itertools import groupby

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from simpler_ref.jit.waiting import STATES

ROW, LEFT, BOX, RIGHT, WIDTH = 34, 210, 74, 345, 130


def draw():
    """Return the drawing: of each thread, that it is awake, and the states in which it sleeps."""
    lines, y = [], 24
    for thread, states in groupby(STATES, key=lambda one: one.thread):
        states = list(states)
        middle = y + (len(states) - 1) * ROW / 2
        lines.append(
            f'<text x="0" y="{middle + 4}" style="text-anchor: start">{thread}</text>'
            f'<rect x="{LEFT}" y="{middle - 12}" width="{BOX}" height="24" rx="6"/>'
            f'<text x="{LEFT + BOX / 2}" y="{middle + 4}">awake</text>'
        )
        for state in states:
            said = state.word if state.state == "1" else state.state
            lines.append(
                f'<polyline points="{LEFT + BOX},{middle} {RIGHT - 2},{y}" '
                'marker-end="url(#sleeps)"/>'
                f'<rect x="{RIGHT}" y="{y - 12}" width="{WIDTH}" height="24" rx="6"/>'
                f'<text x="{RIGHT + WIDTH / 2}" y="{y + 4}">{said}</text>'
                f'<text x="{RIGHT + WIDTH + 12}" y="{y + 4}" style="text-anchor: start">'
                f"{state.while_}</text>"
            )
            y += ROW
        y += 8
    words = "; ".join(f"{one.thread}: {one.state} while {one.while_}" for one in STATES)
    return "\n".join(
        [
            f'<svg class="state-machine" style="max-width: 52em" viewBox="0 0 820 {y}" role="img" '
            f'aria-label="How threads sleep. {words}">',
            '<defs><marker id="sleeps" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8Z"/></marker></defs>',
            *lines,
            "</svg>",
        ]
    )


def table():
    """Return all states as a Markdown table."""
    head = ("thread", "word", "says", "while", "woken by")
    rows = [(s.thread, f"`{s.word}`", f"`{s.state}`", s.while_, s.woken_by) for s in STATES]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


class WaitingStates(SphinxDirective):
    """``{waiting-states}``."""

    def run(self):
        """Return the drawing and the table."""
        return [nodes.raw("", draw(), format="html"), *self.parse_text_to_nodes(table())]


def setup(app):
    """Register with Sphinx."""
    app.add_directive("waiting-states", WaitingStates)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
