"""Functions that endpoints import.

Rule     REMOTE-REG-2, REMOTE-COPY-11
"""

from __future__ import annotations

import sys
from typing import Any

from ..callables.identity import (
    build_python_import_descriptor,
    compute_callable_hashid,
    parse_python_import_target,
)


class RemoteCallable:
    """A function that endpoints import: ``RemoteCallable("module:qualname")``.

    Attributes
    ----------
    target : str
        What it was made from.
    hashid : str
        Its identity, see `get_inner_handle`.

    Raises
    ------
    CallableError
        HASHID_DESCRIPTOR_MISMATCH: not exactly one colon, or a part that no import has.
    """

    __slots__ = ("descriptor", "hashid", "target")

    def __init__(self, target: str) -> None:
        self.target = str(target)
        self.descriptor = build_python_import_descriptor(*parse_python_import_target(self.target))
        self.hashid = compute_callable_hashid(self.descriptor)

    def __repr__(self) -> str:
        return f"RemoteCallable({self.target!r})"


def by_name(target: Any) -> Any:
    """Return the `RemoteCallable` of what a module has by its name; of anything else, itself."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    if module == "__main__":
        return target
    for part in name.split("."):
        found = getattr(found, part, None)
    return RemoteCallable(f"{module}:{name}") if found is target else target
