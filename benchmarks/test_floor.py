"""The floor itself."""

from __future__ import annotations


def test_a_word_crosses_to_another_process_and_back(record, floor):
    record(
        {
            "floor": (lambda: floor.sample(0), 1),
            "floor_two_lines": (lambda: floor.sample(1), 1),
        },
        rounds=40,
    )
