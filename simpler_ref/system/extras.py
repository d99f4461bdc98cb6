"""Extras and adapters: parts that nothing in the package imports, found by their names when asked for."""

from __future__ import annotations

import functools
from typing import Any

GROUP = "simpler_ref.extras"
"""The group of entry points in which extras stand."""


@functools.cache  # looking through what is installed takes milliseconds
def load(name: str) -> Any:
    """Return the module of an extra.

    Raises
    ------
    ModuleNotFoundError
        It is not there; the cause says what is missing.
    """
    from importlib.metadata import entry_points

    try:
        return next(iter(entry_points(group=GROUP, name=name))).load()
    except (StopIteration, ModuleNotFoundError) as error:
        if (missing := getattr(error, "name", None)) == name:
            raise ModuleNotFoundError(
                f"{missing} is not installed: pip install simpler_ref[{name}]", name=missing
            ) from error
        raise ModuleNotFoundError(
            f"simpler_ref has no {name} here: install the package again, with its extras/"
        ) from error
