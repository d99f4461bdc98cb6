"""Taking the figures: rounds that take turns, the floor between them, and the closing table."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import pytest
from figures import DISTURBED, FIGURES, FLOOR, UNITS, number, summarise
from floor import Floor

from simpler_ref.jit.kernel import INTERPRETED

RESULTS = pytest.StashKey[dict[str, dict[str, Any]]]()
HANG_S = 900
BEGIN = pytest.StashKey[tuple[float, float, float]]()
MOST_WARM_UPS = 6
STABLE = 0.95
"""Warm enough: the last round took at least this share of the quickest one before."""

Round = Callable[[], float | Mapping[str, float]]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if INTERPRETED:
        raise pytest.UsageError("NUMBA_DISABLE_JIT is set: interpreted kernels are not timed")
    config.option.benchmark_quiet = True  # its table shows whole rounds; ours is below
    config.stash[RESULTS] = {}
    config.stash[BEGIN] = core_seconds()


def core_seconds() -> tuple[float, float, float]:
    """Return seconds: the clock, all cores at work for anybody, and for this process and its children."""
    times = psutil.cpu_times()
    ours = os.times()
    away = sum(getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
    return time.perf_counter(), sum(times) - away, sum(ours[:4])


def others_share(config: pytest.Config) -> float:
    """Return the share of all cores' time that others had in this run, the hypervisor included."""
    passed, everybody, ours = (
        now - then for now, then in zip(core_seconds(), config.stash[BEGIN], strict=True)
    )
    return max(0.0, (everybody - ours) / (passed * psutil.cpu_count()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(HANG_S))


@pytest.fixture(scope="session")
def floor():
    measure = Floor()
    gc.collect()
    gc.freeze()  # what pytest has loaded is not searched for garbage again and again
    yield measure
    gc.unfreeze()
    measure.close()


def stable(values: list[float]) -> bool:
    """Say whether a figure has stopped getting quicker."""
    return len(values) > 1 and values[-1] >= STABLE * min(values[:-1])


class Recorder:
    """Takes figures in rounds and keeps them for the table and in ``benchmark.extra_info``."""

    def __init__(self, benchmark: Any, floor: Floor, results: dict[str, dict[str, Any]]) -> None:
        self._benchmark = benchmark
        self._floor = floor
        self._results = results

    def __call__(
        self,
        variants: Mapping[str, tuple[Round, int]],
        *,
        rounds: int,
        budget_s: float = 12.0,
        ratios: Mapping[str, tuple[str, str]] | None = None,
        warm_up: bool = True,
    ) -> None:
        """Take one or more figures, their rounds taking turns.

        Parameters
        ----------
        variants
            For each figure a function that returns the seconds (bytes, share) of one round, and the
            number of operations in it. A function may also return several figures by name.
        rounds
            How often each is called after the warm-up, if that fits the budget.
        budget_s
            Rounds are left out where all of them would take longer than that.
        ratios
            Further figures: the quotient of two of the others, in each round.
        warm_up
            Call each once or more before, until it gets no quicker.
        """
        names = list(variants)
        taken: dict[str, list[float]] = {}
        floors: list[float] = []

        def one_round() -> None:
            floors.append(self._floor.sample())
            turn = len(floors) % len(names)
            for name in names[turn:] + names[:turn]:
                run, operations = variants[name]
                value = run()
                several = value if isinstance(value, Mapping) else {name: value}
                for figure, amount in several.items():
                    taken.setdefault(figure, []).append(amount / operations)

        if warm_up and self._benchmark.enabled:
            start = time.perf_counter()
            for count in range(1, MOST_WARM_UPS + 1):  # noqa: B007
                one_round()
                spent = time.perf_counter() - start
                if spent > budget_s / 2 or all(map(stable, taken.values())):
                    break
            rounds = max(1, min(rounds, int(budget_s * count / spent)))
            taken.clear()
            floors.clear()
        self._benchmark.pedantic(one_round, rounds=rounds)
        for name, (over, under) in (ratios or {}).items():
            taken[name] = [a / b for a, b in zip(taken[over], taken[under], strict=True)]
        operations = {name: count for name, (_, count) in variants.items()}
        for name, values in taken.items():
            self._results[name] = self._entry(name, values, operations.get(name, 1), floors)
        self._benchmark.extra_info["figures"] = {name: self._results[name] for name in taken}

    def _entry(
        self, name: str, values: list[float], operations: int, floors: list[float]
    ) -> dict[str, Any]:
        figure = FIGURES[name]
        shown = summarise([value * UNITS[figure.unit] for value in values])
        plain = summarise(values)
        entry = {
            "title": f"{figure.section}: {figure.title}",
            "unit": figure.unit,
            "operations_per_round": operations,
            "rounds": len(values),
            "median": shown.median,
            "spread": shown.spread,
            "target": figure.target,
            "meets_target": figure.meets_target(shown.median),
            "original": figure.original,
            "times_better_than_original": figure.times_better(shown.median),
            "more_is_better": figure.more_is_better,
            "informative": figure.informative,
        }
        if figure.is_time():
            ground = summarise(values if name == FLOOR else floors)
            entry["floor_us"] = ground.median * 1e6
            entry["floor_spread_us"] = ground.spread * 1e6
            entry["multiple"] = plain.median / ground.median
            entry["multiple_spread"] = plain.spread / ground.median
        return entry


@pytest.fixture
def record(benchmark, floor, request) -> Recorder:
    return Recorder(benchmark, floor, request.config.stash[RESULTS])


# ---------------------------------------------------------------- the closing table
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    results = config.stash[RESULTS]
    if not results:
        return
    terminalreporter.section("figures", sep="=")
    for line in table(results):
        terminalreporter.write_line(line)
    others = others_share(config)
    if others > DISTURBED:
        terminalreporter.write_line(
            f"Other programs used {others:.0%} of the cores meanwhile: do not trust these figures.",
            red=True,
        )
    storage = config.getoption("benchmark_storage").removeprefix("file://")
    if config.getoption("benchmark_autosave"):
        terminalreporter.write_line(f"saved under {storage}")


def table(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write the figures as lines of text."""
    head = ("", "median", "± spread", "× floor", "target", "", "original", "better by")
    rows: list[tuple[str, ...]] = []
    section = ""
    for name, figure in FIGURES.items():
        if name not in results:
            continue
        if figure.section != section:
            section = figure.section
            rows.append((section,))
        rows.append(row(name, results[name]))
    full = [head, *(line for line in rows if len(line) > 1)]
    widths = [max(len(line[i]) for line in full) for i in range(len(head))]
    lines = []
    for line in [head, *rows]:
        if len(line) == 1:
            lines += ["", line[0]]
        else:
            cells = [line[0].ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
            lines.append("  ".join(cells).rstrip())
    missed = [
        results[name]["title"]
        for name in FIGURES
        if name in results and results[name]["meets_target"] is False
    ]
    return [*lines, "", *closing_words(results, missed)]


def row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one figure."""
    figure = FIGURES[name]
    unit = figure.unit
    target = original = better = mark = multiple = ""
    if figure.target is not None:
        target = f"{'≥' if figure.more_is_better else '≤'} {figure.target:g} {unit}"
        mark = "✓" if entry["meets_target"] else "✗"
    if figure.original is not None:
        original = f"{figure.original:g} {unit}"
        factor = entry["times_better_than_original"]
        better = f"{number(factor)}×" if factor is not None else "∞"
    if "multiple" in entry:
        multiple = number(entry["multiple"])
    median = f"{number(entry['median'])} {unit}"
    return (
        f"  {figure.title}",
        median,
        number(entry["spread"]) if entry["rounds"] > 1 else "–",
        multiple,
        target,
        mark,
        original,
        better,
    )


def closing_words(results: Mapping[str, Mapping[str, Any]], missed: list[str]) -> list[str]:
    """Say how to read the table, and what it amounts to."""
    floors = [entry["floor_us"] for entry in results.values() if "floor_us" in entry]
    words = [
        "Times are per task or operation; half of the rounds lie within ± spread of the median.",
        "× floor: multiple of the time a word takes to another process and back, which was measured "
        "between the rounds",
    ]
    if floors:
        words[-1] += f"; {min(floors):.3f} … {max(floors):.3f} µs in this run."
    targets = sum(entry["target"] is not None for entry in results.values())
    if missed:
        words.append(f"{len(missed)} of {targets} targets missed: {'; '.join(missed)}.")
    elif targets:
        words.append(f"All {targets} targets met.")
    return words


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    output_json["others"] = others_share(config)


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    machine_info.pop("node", None)  # no host names in saved runs
