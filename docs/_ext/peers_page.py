"""Puts the figures of ``make bench-peers`` on a page: plots, tables, and where others are ahead.

``{peers}`` followed by one of `PARTS` and, for some, names of workloads. The figures come from
``docs/_data/peers.json``, which ``make bench-peers ARGS=--save-for-docs`` writes; nothing is typed in.
"""

import json
import math
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

DATA = Path(__file__).parents[1] / "_data" / "peers.json"
SIZES = {"random_1e3": 1e3, "random_1e4": 1e4, "random_1e5": 1e5, "random_1e6": 1e6}

# what the drawing measures, in its own units; a phone shows it about as large as it is
WIDTH, HEIGHT = 480, 360
LEFT, RIGHT, TOP, BOTTOM = 46, 304, 10, 326
"""Where its lines are."""


def number(value):
    """Write a number with about three digits."""
    if value >= 99.95:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def decades(low, high):
    """Return the powers of ten from just below `low` to just above `high`."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(math.ceil(math.log10(high) - 1e-9), first + 1)
    return [10.0**power for power in range(first, last + 1)]


def power(value):
    """Write a power of ten the way it stands on an axis."""
    return (
        f"{value:g}"
        if value < 1e4
        else f"{value / 1000:g}k"
        if value < 1e6
        else f"{value / 1e6:g}M"
    )


class Figures:
    """The saved figures, by workload and peer."""

    def __init__(self, report):
        self.report = report
        self.peers = report["peers"]
        self.results = report["results"]

    def taken(self, workload):
        """Return (peer, entry) of all that have a figure, the cheapest first."""
        found = [(p, e) for p, e in self.results.get(workload, {}).items() if "median" in e]
        return sorted(found, key=lambda pair: pair[1]["median"])

    def title(self, peer):
        """Return what a peer is called."""
        return self.peers[peer]["title"]

    def kind(self, peer):
        """Return the class a peer is drawn in: ours, threads of one process, processes, none."""
        return "own" if self.peers[peer]["own"] else self.peers[peer]["workers"]

    # ------------------------------------------------------------ drawings
    def bars(self, *workloads):
        """Return a table for each workload, see `some`."""
        return "\n".join(map(self.some, workloads))

    def some(self, workload, *chosen):
        """Return a table: a bar for each peer, or for those chosen, on a logarithmic axis."""
        rows = [one for one in self.taken(workload) if not chosen or one[0] in chosen]
        if not rows:
            return "<p>No figures.</p>"
        values = [entry["median"] for _, entry in rows]
        ticks = decades(min(values) / 2, max(values))
        parts = []
        for (peer, entry), value in zip(rows, values, strict=True):
            width = 100 * math.log10(value / ticks[0]) / (len(ticks) - 1)
            parts.append(
                f"<tr><th>{escape(self.title(peer))}</th>"
                f'<td><i class="{self.kind(peer)}" style="width: {width:.1f}%"></i></td>'
                f"<td>{number(value)} {entry['unit']}</td></tr>"
            )
        axis = [
            f'<span style="left: {100 * i / (len(ticks) - 1):.1f}%">{power(tick)}</span>'
            for i, tick in enumerate(ticks)
        ]
        parts.append(f'<tr class="axis"><th></th><td>{"".join(axis)}</td></tr>')
        decade = f"--decade: {100 / (len(ticks) - 1):.3f}%"
        return f'<table class="peers" style="{decade}">{"".join(parts)}</table>'

    def lines(self):
        """Return a drawing: cost per task by size of the graph, a line for each peer."""
        series = {
            peer: [
                (size, self.results[workload][peer]["median"])
                for workload, size in SIZES.items()
                if "median" in self.results.get(workload, {}).get(peer, {})
            ]
            for peer in self.peers
        }
        series = {peer: points for peer, points in series.items() if points}
        if not series:
            return "<p>No figures.</p>"
        values = [value for points in series.values() for _, value in points]
        ticks = decades(min(values), max(values))

        def x(size):
            return LEFT + (RIGHT - LEFT) * (math.log10(size) - 3) / 3

        def y(value):
            return TOP + (BOTTOM - TOP) * math.log10(ticks[-1] / value) / (len(ticks) - 1)

        def text(kind, x, y, words):
            return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'

        parts = []
        for tick in ticks:
            at = f"{y(tick):.1f}"
            parts.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at}" y2="{at}"/>')
            parts.append(text("name", LEFT - 5, y(tick) + 4, power(tick)))
        parts += [text("axis", x(size), HEIGHT - 20, power(size)) for size in SIZES.values()]
        words = "tasks in the graph; up: µs per task"
        parts.append(text("axis", (LEFT + RIGHT) / 2, HEIGHT - 4, words))
        ends = {peer: y(points[-1][1]) for peer, points in series.items()}
        ends = spread_out(ends, 13.0, TOP, HEIGHT - 26)
        for peer, points in series.items():
            kind, places = self.kind(peer), [(x(size), y(value)) for size, value in points]
            path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
            parts.append(f'<polyline class="{kind}" points="{path}"/>')
            parts += [
                f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="2.5"/>' for px, py in places
            ]
            lead = f"{places[-1][0] + 3:.1f},{places[-1][1]:.1f} {RIGHT + 8},{ends[peer]:.1f}"
            parts.append(f'<polyline class="lead" points="{lead}"/>')
            parts.append(text(f"end {kind}", RIGHT + 11, ends[peer] + 4, self.title(peer)))
        head = (
            f'<svg class="peers" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-label="Cost per task by number of tasks; the figures are in the table below">'
        )
        return "\n".join([head, *parts, "</svg>"])

    # ------------------------------------------------------------ words
    def table(self, *workloads):
        """Return a Markdown table: peers down, workloads across."""
        unknown = [name for name in workloads if name not in self.report["titles"]]
        if unknown:
            raise ExtensionError(f"{{peers}}: no workload {', '.join(unknown)}")
        titles = [self.report["titles"][name] for name in workloads]
        units = [self.report["units"][name] for name in workloads]
        rows = [
            "| | " + " | ".join(f"{t} ({u})" for t, u in zip(titles, units, strict=True)) + " |",
            "| --- |" + " ---: |" * len(workloads),
        ]
        for peer in self.peers:
            cells = [self.cell(self.results.get(name, {}).get(peer, {})) for name in workloads]
            if any(cell != "–" for cell in cells):
                title = self.title(peer)
                shown = f"**{title}**" if self.peers[peer]["own"] else title
                rows.append(f"| {shown} | {' | '.join(cells)} |")
        return "\n".join(rows)

    @staticmethod
    def cell(entry):
        """Return a figure with its spread and multiple of the floor."""
        if "median" not in entry:
            return "–"
        text = number(entry["median"])
        if entry["rounds"] > 1:
            text += f" ± {number(entry['spread'])}"
        if "multiple" in entry:
            text += f" ({number(entry['multiple'])} ×)"
        if entry.get("size") != entry.get("meant"):
            text += " °"
        return text

    def missing(self):
        """Return a list of what could not be measured, in groups that share a reason."""
        reasons = {}
        for workload, entries in self.results.items():
            for peer, entry in entries.items():
                if "why_not" in entry and not self.is_expected(entry["why_not"]):
                    key = (peer, entry["why_not"])
                    reasons.setdefault(key, []).append(self.report["titles"][workload])
        rows = [
            f"- {self.title(peer)}: {'; '.join(titles)}: {why}"
            for (peer, why), titles in reasons.items()
        ]
        rows += [
            f"- {one['title']}: everything. {one['skipped']}"
            for one in self.peers.values()
            if one["skipped"]
        ]
        return "\n".join(rows) or "Nothing is missing."

    @staticmethod
    def is_expected(why):
        """Say whether a gap needs no explanation: the peer has nothing to compare."""
        return why.startswith(
            ("n/a: one call", "n/a: no workers", "n/a: no tasks that run", "n/a: not with")
        )

    def ahead(self):
        """Return a list: who is cheaper than the best of ours, and by how much."""
        rows = []
        for workload in self.results:
            taken = [
                (p, e["median"])
                for p, e in self.taken(workload)
                if self.peers[p]["workers"] != "none"
            ]
            mine = [(value, p) for p, value in taken if self.peers[p]["own"]]
            if not mine:
                continue
            best, who = min(mine)
            before = [f"{self.title(p)} {number(best / v)} ×" for p, v in taken if v < best]
            title = self.report["titles"][workload]
            words = ", ".join(before) if before else "nobody"
            rows.append(f"| {title} | {self.title(who)} | {words} |")
        return "\n".join(
            [
                "| | best of ours | cheaper than it, and how many times |",
                "| --- | --- | --- |",
                *rows,
            ]
        )

    def targets(self):
        """Return the targets, and whether they are met."""
        marks = {True: "✓", False: "✗", None: "–"}
        rows = [
            f"| {one['title']} | {marks[one['met']]} | {one['words']} |"
            for one in self.report["targets"]
        ]
        return "\n".join(["| target | | |", "| --- | :---: | --- |", *rows])

    def setting(self):
        """Return a sentence on the machine and the floor."""
        machine, floor = self.report["machine"], self.report["floor_us"]
        words = (
            f"Taken on {machine['cores']} cores of {machine['cpu']}, {machine['system']}. "
            f"The floor was {number(floor['median'])} µs ± {number(floor['spread'])}."
        )
        words += "".join(f" **{one}**" for one in self.report.get("warnings", ()))
        return words

    def versions(self):
        """Return a table of the peers: how they work, versions, time to start, memory of a worker."""
        rows = [
            "| | workers | order | versions | first start, s | start, s | MiB a worker |",
            "| --- | --- | --- | --- | ---: | ---: | ---: |",
        ]
        for one in self.peers.values():
            versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
            first, start = (
                f"{one[name]:.1f}" if name in one else "–" for name in ("first_s", "start_s")
            )
            memory = f"{one['worker_mib']:.0f}" if "worker_mib" in one else "–"
            rows.append(
                f"| {one['title']} | {one['workers']} | {one['order']} | "
                f"{versions or 'skipped: ' + one['skipped']} | {first} | {start} | {memory} |"
            )
        return "\n".join(rows)


def spread_out(wanted, gap, top, bottom):
    """Return places near the wanted ones, at least `gap` apart, between top and bottom."""
    order = sorted(wanted, key=wanted.get)
    places = {}
    last = top - gap
    for name in order:
        last = places[name] = max(wanted[name], last + gap)
    limit = bottom
    for name in reversed(order):
        places[name] = min(places[name], limit)
        limit = places[name] - gap
    return places


DRAWN = ("bars", "some", "lines")
PARTS = (*DRAWN, "table", "missing", "ahead", "targets", "setting", "versions")
"""What `Figures` has under these names, as HTML and as Markdown."""


class Peers(SphinxDirective):
    """``{peers} part workload …``."""

    required_arguments = 1
    optional_arguments = 20

    def run(self):
        """Return the part that is asked for."""
        part, *names = self.arguments
        if part not in PARTS:
            raise self.error(f"{{peers}} {part}: there are {', '.join(PARTS)}")
        self.env.note_dependency(str(DATA))
        made = getattr(Figures(json.loads(DATA.read_text())), part)(*names)
        if part in DRAWN:
            return [nodes.raw("", made, format="html")]
        return self.parse_text_to_nodes(made)


def setup(app):
    """Register with Sphinx."""
    app.add_directive("peers", Peers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
