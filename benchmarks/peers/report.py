"""What the figures amount to: JSON, a table, and which targets are met."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

from figures import DISTURBED, number, summarise

from .catalogue import (
    PEERS,
    TARGETS,
    TITLES,
    UNITS,
    WORKLOADS,
    Target,
)
from .measure import MOST_STOLEN, Around, Effort, Taken

SCALE = {"µs": 1e6, "ms": 1e3}
Report = dict[str, Any]


def machine() -> dict[str, Any]:
    """Return what the machine is, without its name."""
    model = ""
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("model name", "Hardware")):
                model = line.split(":", 1)[1].strip()
                break
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
    }


def make_report(taken: Mapping[str, Taken], around: Around, effort: Effort) -> Report:
    """Return all figures; times in the unit of their workload."""
    ground = summarise([value * 1e6 for value in around.floors] or [0.0])
    report: Report = {
        "machine": machine(),
        "quick": effort.quick,
        "floor_us": {"median": ground.median, "spread": ground.spread},
        "others": summarise(around.others or [0.0]).median,
        "stolen": summarise([s for one in taken.values() for s in one.stolen] or [0.0]).median,
        "titles": TITLES,
        "units": UNITS,
        "peers": {},
        "results": {},
    }
    for name, one in taken.items():
        peer = PEERS[name]
        described = {"title": peer.title, "workers": peer.workers, "order": peer.order}
        described |= {"own": peer.own, "versions": one.versions, "skipped": one.skipped}
        if one.starts:
            described["start_s"] = summarise(one.starts).median
        if one.first_s:
            described["first_s"] = one.first_s
        if any(one.memories):
            described["worker_mib"] = summarise(one.memories).median / (1 << 20)
        report["peers"][name] = described
        for figure in TITLES:
            entry = _entry(figure, one, ground.median, effort.quick)
            if entry:
                report["results"].setdefault(figure, {})[name] = entry
    report["results"] = {
        name: report["results"][name] for name in TITLES if name in report["results"]
    }
    shares = {
        "Other programs used": (report["others"], DISTURBED),
        "The host kept": (report["stolen"], MOST_STOLEN),
    }
    report["warnings"] = [
        f"{who} {share:.0%} of the cores: do not trust these figures."
        for who, (share, most) in shares.items()
        if share > most
    ]
    report["targets"] = [] if effort.quick else [judge(one, report["results"]) for one in TARGETS]
    return report


def _entry(figure: str, one: Taken, floor_us: float, quick: bool) -> dict[str, Any]:
    if figure in one.words:
        return {"why_not": one.words[figure]}
    if figure not in one.values:
        return {}
    unit = UNITS[figure]
    shown = summarise([value * SCALE[unit] for value in one.values[figure]])
    entry: dict[str, Any] = {
        "median": shown.median,
        "spread": shown.spread,
        "rounds": len(one.values[figure]),
        "unit": unit,
    }
    if unit == "µs" and floor_us:
        entry["multiple"] = shown.median / floor_us
    if figure in WORKLOADS:
        sizes = WORKLOADS[figure].quick if quick else WORKLOADS[figure].sizes
        entry["size"] = one.sizes[figure]
        entry["meant"] = sizes[-1]
    return entry


# ---------------------------------------------------------------- targets
def judge(target: Target, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return a target's words, what was reached, and whether it is met; None if it was not measured."""
    worst: tuple[float, str] | None = None
    for figure in target.workloads:
        mine, unit = median(results, figure, target.peer), UNITS[figure]
        if target.others:
            beside = target.beside or figure
            theirs = ((median(results, beside, peer), peer) for peer in target.others)
            measured = [(value, peer) for value, peer in theirs if value is not None]
            if not measured:
                continue
            best, peer = min(measured)
            mine, unit = mine and mine / best, f"× {PEERS[peer].title}"
        if mine is not None and (worst is None or mine > worst[0]):
            worst = mine, f"{TITLES[figure]}: {number(mine)} {unit}, wanted ≤ {target.at_most:.3g}"
    reached, words = worst or (None, "not measured")
    met = None if reached is None else reached <= target.at_most
    return {"title": target.title, "reached": reached, "met": met, "words": words}


def median(results: Mapping[str, Any], figure: str, peer: str) -> float | None:
    """Return a figure of a peer, None if there is none."""
    value: float | None = results.get(figure, {}).get(peer, {}).get("median")
    return value


# ---------------------------------------------------------------- the table
def lines_of(report: Report) -> list[str]:
    """Return the report as text: for each workload the peers, the cheapest first."""
    lines = []
    for figure, entries in report["results"].items():
        lines += ["", f"{TITLES[figure]}"]
        rows = [
            (PEERS[name].title, *cells(entry))
            for name, entry in sorted(entries.items(), key=lambda item: _rank(item[1]))
        ]
        width = max(len(row[0]) for row in rows)
        for title, value, spread, multiple, words in rows:
            line = f"  {title.ljust(width)}  {value:>12}  {spread:>10}  {multiple:>10}  {words}"
            lines.append(line.rstrip())
    floor = report["floor_us"]
    lines += [
        "",
        f"Floor, one word to another process and back: {floor['median']:.3f} µs "
        f"± {floor['spread']:.3f}, measured between the rounds.",
        "Median ± half of the middle half of the rounds; the multiple is of the floor.",
        "",
        "versions and starts",
    ]
    lines[-2:-2] = report["warnings"]
    for one in report["peers"].values():
        lines.append(f"  {one['title']}: {one_line(one)}")
    if report["quick"]:
        return [
            *lines,
            "",
            "Small sizes, one run each: this shows that it works, and nothing else.",
        ]
    lines += ["", "targets"]
    marks = {True: "✓", False: "✗", None: "–"}
    lines += [f"  {marks[one['met']]} {one['title']}: {one['words']}" for one in report["targets"]]
    return lines


def one_line(peer: Mapping[str, Any]) -> str:
    """Return a peer's versions and how long it takes to start, or why it was skipped."""
    if peer["skipped"]:
        return f"skipped: {peer['skipped']}"
    versions = ", ".join(f"{name} {version}" for name, version in peer["versions"].items())
    text = f"{versions}; {peer.get('start_s', 0.0):.1f} s from its start until it is warm"
    return f"{text}, {peer['worker_mib']:.0f} MiB a worker" if "worker_mib" in peer else text


def _rank(entry: Mapping[str, Any]) -> float:
    return float(entry.get("median", float("inf")))


def cells(entry: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Return a figure as text: value, spread, multiple of the floor, remarks."""
    if "why_not" in entry:
        return "–", "", "", entry["why_not"]
    value = f"{number(entry['median'])} {entry['unit']}"
    spread = f"± {number(entry['spread'])}" if entry["rounds"] > 1 else ""
    multiple = f"{number(entry['multiple'])} ×" if "multiple" in entry else ""
    words = ""
    if entry.get("size") != entry.get("meant"):
        words = f"(size {entry['size']} instead of {entry['meant']})"
    return value, spread, multiple, words
