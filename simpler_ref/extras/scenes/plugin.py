"""Options of scenes for pytest.

A conftest.py has them by ``pytest_plugins = ["simpler_ref.extras.scenes.plugin"]``.

Rule     SCENE-RUN-1
"""

from __future__ import annotations

from typing import Any

from .options import add_options


def pytest_addoption(parser: Any) -> None:
    """Add the options of scenes to pytest's."""
    add_options(parser.getgroup("scenes", "scene tests of simpler_ref").addoption, for_pytest=True)
