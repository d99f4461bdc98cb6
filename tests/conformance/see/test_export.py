"""SEE-EXPORT: for other programs."""

import csv
import json
import re

import pytest

from .conftest import main


@pytest.fixture
def path(chained):
    return chained.path


@pytest.mark.spec("SEE-EXPORT-1")
def test_chrome_gets_rows_boxes_arrows_and_curves(chained, path):
    assert main(["trace", path, "--chrome"]) == 0
    with open(f"{path}.json", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    rows = {one["args"]["name"]: one["tid"] for one in events if one["ph"] == "M"}
    assert set(rows) == {"Orch thread", "Scheduler thread", "sub_worker 0", "sub_worker 1"}
    boxes = [one for one in events if one["ph"] == "X" and one["name"] == "increase"]
    assert sorted(one["args"]["task"] for one in boxes) == [1, 2, 3, 5]
    for box in boxes:
        row = chained.ran[chained.ran["task"] == box["args"]["task"]][0]
        assert box["ts"] == (row["begin"] - chained.start) / 1000
        assert box["dur"] == (row["end"] - row["begin"]) / 1000
        assert box["tid"] == rows[chained.worker_name(int(row["worker"]))]
    assert sum(one["ph"] == "s" for one in events) == sum(one["ph"] == "f" for one in events) == 3
    assert any(one["ph"] == "C" and one["name"] == "ring 0" for one in events)


@pytest.mark.spec("SEE-EXPORT-1")
def test_a_table_has_a_row_for_each_task(chained, path):
    assert main(["trace", path, "--csv"]) == 0
    with open(f"{path}.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [one["function"] for one in rows] == ["increase"] * 3 + ["(buffer)", "increase"]
    assert [one["line"] for one in rows] == [chained.task(i).line for i in range(1, 6)]
    assert int(rows[0]["begun"]) == chained.task(1).begun - chained.start
    assert rows[0]["outcome"] == "completed" and rows[4]["id"] == "4"
    columns = chained.table()
    assert list(rows[0]) == list(columns) and columns["number"].tolist() == [1, 2, 3, 4, 5]
    assert len({len(column) for column in columns.values()}) == 1


@pytest.mark.spec("SEE-EXPORT-1")
def test_graphviz_gets_tasks_and_what_edges_are_owed_to(chained, path):
    assert main(["trace", path, "--dot"]) == 0
    with open(f"{path}.dot", encoding="utf-8") as file:
        text = file.read()
    names = ["increase", "increase", "increase", "buffer", "increase"]
    labels = re.findall(r'^  t(\d+) \[label="(.*?)"', text, re.MULTILINE)
    assert labels == [(str(i + 1), f"task {i} ({name})") for i, name in enumerate(names)]
    edges = re.findall(r't(\d) -> t(\d) \[label="(.*?)"(.*?)\]', text)
    assert ("1", "2", "INOUT 0", "") in edges and ("3", "5", "INPUT 0", "") in edges
    assert ("4", "5", "INOUT 1", ", style=dotted") in edges
