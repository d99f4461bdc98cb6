"""Reads spec/vectors/*.json, which docs/vectors.md describes."""

from __future__ import annotations

import json
from typing import Any

from ..spec_rules import SPEC

FOLDER = SPEC / "vectors"
FORMAT = 1


def read(name: str) -> list[dict[str, Any]]:
    """Return the cases of a file."""
    whole = json.loads((FOLDER / f"{name}.json").read_text())
    assert whole["format"] == FORMAT and whole["about"], name
    return whole["cases"]


def to_bytes(spelled: str) -> bytes:
    """Return the bytes that groups of hex digits spell: `ff00 00*6` is ff and seven zeros."""
    groups = (group.partition("*") for group in spelled.split())
    return b"".join(bytes.fromhex(digits) * int(times or 1) for digits, _, times in groups)
