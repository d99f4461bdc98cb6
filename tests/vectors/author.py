"""The files of spec/vectors as they shall be, and how they are laid out on the page."""

from __future__ import annotations

import json

from . import author_bytes, author_traces

WIDTH = 110
FILES = {
    "layouts": author_bytes.layouts,
    "enums": author_bytes.enums,
    "descriptors": author_bytes.descriptors,
    "tag-walks": author_traces.walks,
    "rings": author_traces.rings,
    "scheduler": author_traces.scheduler,
}


def text(name):
    """Return what a file shall hold."""
    return pretty(FILES[name](), "") + "\n"


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
