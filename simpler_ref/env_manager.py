"""Environment variables that a program needs, with an error that names the missing one.

Rule     COMPAT-NAMES-2
"""

from __future__ import annotations

import os


def get(name: str, default: str | None = None) -> str | None:
    """Return the value of a variable, or `default` if it is not set or empty."""
    return os.environ.get(name) or default


def ensure(name: str) -> str:
    """Return the value of a variable that must be set.

    Raises
    ------
    OSError
        It is not set, or empty.
    """
    value = os.environ.get(name)
    if not value:
        raise OSError(f"the environment variable {name} is not set: export {name}=…")
    return value


__all__ = ["ensure", "get"]
