"""The files of spec/vectors as they shall be, and how they are laid out on the page.

What stands in layouts, enums and descriptors was written by hand. Of the other files the steps were;
what follows from them is said by `author_traces`.
"""

from __future__ import annotations

import json

from . import author_traces
from .reader import FOLDER

WIDTH = 110
PLAYED = {
    "tag-walks": author_traces.play_walk,
    "rings": author_traces.play_rings,
    "scheduler": author_traces.play_trace,
}


def text(name):
    """Return what a file shall hold: its cases, and what follows from their steps."""
    whole = json.loads((FOLDER / f"{name}.json").read_text())
    for case in whole["cases"] if name in PLAYED else []:
        for step in case["steps"]:
            step.pop("then", None)
        case["steps"] = PLAYED[name](case)
    return pretty(whole, "") + "\n"


def pretty(value, indent):
    """Return JSON in which everything that fits a line stands on one."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(indent) + len(flat) <= WIDTH:
        return flat
    inner = indent + " "
    if isinstance(value, list):
        rows = [inner + pretty(item, inner) for item in value]
        return "[\n" + ",\n".join(rows) + "\n" + indent + "]"
    rows = [f"{inner}{json.dumps(key)}: {pretty(item, inner)}" for key, item in value.items()]
    return "{\n" + ",\n".join(rows) + "\n" + indent + "}"
