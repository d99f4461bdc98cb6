"""How scenes run: the options of the command line, and of pytest with this plugin.

A conftest.py has them by ``pytest_plugins = ["simpler_ref.extras.scenes.plugin"]``. Scenes import this
module, too, maybe before pytest, which is not to rewrite it then (PYTEST_DONT_REWRITE).

Rule     SCENE-RUN-1
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DIAGNOSTICS = {
    "enable_l2_swimlane": 4,
    "enable_dump_tensor": 3,
    "enable_pmu": 1,
    "enable_dep_gen": 1,
    "enable_scope_stats": 1,
}
"""Fields of CallConfig, with their values where an option names none."""
SIMULATED = ("sim", "a2a3sim", "a5sim")
"""Platforms whose chips are simulated."""


def require_simulated(platform: str) -> None:
    if platform not in SIMULATED:
        raise ValueError(
            f"platform {platform!r} needs hardware; here chips are simulated: {', '.join(SIMULATED)}"
        )


@dataclass(frozen=True)
class RunOptions:
    """How scenes run, as `add_options` says."""

    platform: str = "a2a3sim"
    devices: tuple[int, ...] = (0,)
    """Numbers of chips; a scene that needs more goes on counting from the last."""
    rounds: int = 1
    cases: tuple[str, ...] = ()
    """Those to run; none: all."""
    manual: bool = False
    skip_golden: bool = False
    diagnostics: tuple[tuple[str, int], ...] = ()
    """Fields of CallConfig."""
    output_prefix: str = "outputs"

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds is at least 1, got {self.rounds}")
        require_simulated(self.platform)

    def devices_for(self, count: int) -> list[int]:
        chosen = list(self.devices[:count])
        while len(chosen) < count:
            chosen.append(max(chosen) + 1)
        return chosen

    def wants(self, scene: str, case: str, manual: bool) -> bool:
        if self.cases:
            return case in self.cases or f"{scene}::{case}" in self.cases
        return self.manual or not manual


def devices_of(text: str) -> tuple[int, ...]:
    """Return the numbers in "0", "0,2" or "0-3"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers += range(int(first), int(last if dash else first) + 1)
    if not numbers:
        raise ValueError(f"{text!r} names no device: give 0, 0,2 or 0-3")
    return tuple(numbers)


def add_options(add: Callable[..., Any], for_pytest: bool = False) -> None:
    """Add the options of scenes to a parser of the command line."""

    def several(*names: str, **how: Any) -> None:
        add(*(one for one in names if not for_pytest or one.startswith("--")), **how)

    several("-p", "--platform", default="a2a3sim", help="the chips' platform (a2a3sim)")
    several("-d", "--device", default="0", help="numbers of chips: 0, 0,2 or 0-3")
    several("-n", "--rounds", type=int, default=1, help="how often each case runs")
    several("--case", action="append", default=[], help="run this one: case, or Class::case")
    several("--manual", action="store_true", help="run manual cases, too")
    several("--skip-golden", action="store_true", help="do not look at what comes out")
    for field, level in DIAGNOSTICS.items():
        name = "--" + field.replace("_", "-")
        several(name, nargs="?", type=int, const=level, default=0, help=f"CallConfig.{field}")
    several("--output-prefix", default="outputs", help="folder for what diagnostics write")


def options_of(get: Callable[[str], Any]) -> RunOptions:
    return RunOptions(
        platform=get("platform"),
        devices=devices_of(get("device")),
        rounds=get("rounds"),
        cases=tuple(get("case")),
        manual=get("manual"),
        skip_golden=get("skip_golden"),
        diagnostics=tuple((field, get(field)) for field in DIAGNOSTICS if get(field)),
        output_prefix=os.fspath(get("output_prefix")),
    )


def from_command_line(arguments: list[str] | None, about: str) -> tuple[RunOptions, bool]:
    """Return the options in arguments, by default the program's, and whether cases are only listed."""
    parser = argparse.ArgumentParser(description=about)
    add_options(parser.add_argument)
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parsed = parser.parse_args(arguments)
    try:
        return options_of(lambda name: getattr(parsed, name)), parsed.list
    except ValueError as error:
        parser.error(str(error))


def pytest_addoption(parser: Any) -> None:
    add_options(parser.getgroup("scenes", "scene tests of simpler_ref").addoption, for_pytest=True)
