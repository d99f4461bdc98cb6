"""docs/howto/port.md: what the page says of the original's names."""

import importlib
import inspect
import re
from pathlib import Path

from simpler_ref import compat
from simpler_ref.extras.communicators import Communicators

from .original_names import ORIGINAL

PAGE = Path(__file__).parents[2] / "docs/howto/port.md"
LISTED = re.compile(r"(\w+)(?:\(([^)]*)\))?")


def names():
    """Yield module, name and parameters of each name of the original."""
    for module, text in ORIGINAL.items():
        for group in text.split(";"):
            owner, _, members = group.rpartition(":")
            for name, parameters in LISTED.findall(members):
                yield module, f"{owner.strip()}.{name}".strip("."), re.findall(r"\w+", parameters)


def find(module, name):
    """Return what a name stands for here, or None; of an attribute that only objects have, True."""
    found = importlib.import_module(module)
    for part in name.split("."):
        if part.startswith("comm_"):  # an extra has these methods of a ChipWorker
            found = Communicators
        if not hasattr(found, part):
            return is_set_by_objects(found, part) or None
        found = getattr(found, part)
    return found


def is_set_by_objects(kind, name):
    """Say whether objects of a class get an attribute."""
    ours = [one for one in getattr(kind, "__mro__", ()) if one.__module__.startswith("simpler_ref")]
    is_field = name in getattr(kind, "__dataclass_fields__", ())
    return is_field or any(f"self.{name}" in inspect.getsource(one) for one in ours)


def missing():
    """Return the names that are not here, as the page writes them."""
    lacking = set()
    for module, name, parameters in names():
        found = find(module, name)
        there = inspect.signature(found).parameters if parameters and found is not None else ()
        absent = [one for one in parameters if one not in there]
        if found is None:
            lacking.add(f"{module}.{name}" if "." not in name else name)
        elif absent:
            lacking.add(f"{name}({', '.join(absent)})")
    return lacking


def test_what_of_the_original_is_missing_stands_on_the_page_with_a_reason():
    text = PAGE.read_text().partition("## Missing on purpose\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert all(len(row) == 2 and len(row[1]) > 20 for row in rows)
    compat.install()
    try:
        assert {row[0].strip("`") for row in rows} == missing()
    finally:
        compat.uninstall()
