"""Names of a package that are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_from(package: dict[str, Any], modules: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package or a module.

    Parameters
    ----------
    package
        Its `globals()`.
    modules
        Names of modules, each with the names that it has, parted by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(homes[name], package["__package__"]), name)
        return value

    return find
