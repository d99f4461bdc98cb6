"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_from(package: dict[str, Any], modules: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package or a module, by its `globals()`.

    `modules` are names of modules, each with the names that it has, parted by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(homes[name], package["__package__"]), name)
        return value

    return find


def pass_on(module: dict[str, Any], modules: dict[str, str]) -> None:
    """Give a module, by its `globals()`, names that others have; see `names_from`."""
    find = names_from(module, modules)
    for names in modules.values():
        for name in names.split():
            find(name)


# ---------------------------------------------------------------- extras
GROUP = "simpler_ref.extras"
"""The group of entry points in which extras stand."""


@functools.cache  # looking through what is installed takes milliseconds
def load(name: str) -> Any:
    """Return the module of an extra."""
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
