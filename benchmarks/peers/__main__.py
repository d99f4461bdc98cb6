"""Command line: builds what peers need, takes the figures, prints and saves them."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from floor import Floor

from peers.catalogue import PEERS, TITLES
from peers.environments import ROOT, Environments
from peers.measure import FULL, QUICK, build, take
from peers.report import lines_of, make_report

SAVED = ROOT / ".benchmarks" / "peers.json"
FOR_DOCS = ROOT / "docs" / "_data" / "peers.json"


def names(known: dict[str, object]):
    """Return how to read a list of names, separated by commas."""

    def read(text: str) -> list[str]:
        wanted = text.split(",")
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: unknown; there are {', '.join(known)}"
            )
        return [name for name in known if name in wanted]

    return read


def positive(text: str) -> int:
    """Return a positive whole number."""
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return int(text)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="bench-peers", description=__doc__)
    parser.add_argument("--only", type=names(PEERS), default=list(PEERS), help="peers, a,b,c")
    parser.add_argument(
        "--workloads", type=names(TITLES), default=list(TITLES), help="workloads, a,b,c"
    )
    parser.add_argument("--repeats", type=positive, help="rounds over all peers")
    parser.add_argument(
        "--minutes", type=positive, help=f"for all rounds together; {FULL.minutes:g} if not given"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work?")
    parser.add_argument(
        "--no-install", action="store_true", help="use only what is installed already"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / ".peers", help="for environments")
    parser.add_argument("--save", type=Path, default=SAVED, help="where the figures go, as JSON")
    parser.add_argument(
        "--save-for-docs", action="store_true", help="also keep them for the documentation"
    )
    return parser.parse_args(arguments)


def main() -> int:
    """Do everything."""
    options = parse()
    effort = QUICK if options.quick else FULL
    if options.repeats:
        effort = replace(effort, rounds=options.repeats)
    if options.minutes:
        effort = replace(effort, minutes=float(options.minutes))
    begin = time.monotonic()
    environments = Environments(options.folder, install=not options.no_install)
    taken = build(options.only, environments)
    floor = Floor()
    try:
        around = take(taken, options.workloads, effort, environments, floor.sample)
    finally:
        for one in (floor, *taken.values()):
            one.close()
    report = make_report(taken, around, effort)
    print("\n".join(lines_of(report)))
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    for path in [options.save, *([FOR_DOCS] if options.save_for_docs else [])]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"saved in {path}")
    print(f"{time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
