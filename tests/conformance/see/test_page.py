"""SEE-PAGE: the page."""

import base64
import gzip
import json
import re

import numpy as np
import pytest

from simpler_ref import Trace

from .conftest import chain


def contents(page):
    """Return what the script of a page is told, and its columns, unpacked as the script does."""
    about = json.loads(re.search(r"^const about = (.*);$", page, re.MULTILINE)[1])
    packed = re.search(r'^const packed = "(.*)";$', page, re.MULTILINE)[1]
    octets, at, columns = gzip.decompress(base64.b64decode(packed)), 0, {}
    for name, count, kind in about["columns"]:
        plain = np.frombuffer(octets, f"<{kind}", count, at)
        columns[name] = np.cumsum(plain, dtype=f"<{kind}")
        at += plain.nbytes
    assert at == len(octets)
    return about, columns


@pytest.fixture
def page(traced, tmp_path):
    trace = traced(chain)
    trace.write_page(tmp_path / "page.html")
    return trace, (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.spec("SEE-PAGE-1")
def test_the_page_refers_to_no_other_file(page):
    _, text = page
    assert not re.search(r"\b(src|href|url|import|fetch)\s*[=(]", text)
    assert "http" not in text.replace("http-equiv", "")
    assert text.startswith("<!doctype html>") and text.count("<script>") == 1


@pytest.mark.spec("SEE-PAGE-2")
def test_the_columns_of_the_page_are_those_of_the_trace(page):
    trace, text = page
    about, columns = contents(text)
    assert (about["tasks"], about["unit"]) == (5, 1)
    for name in trace.TIMES:
        expected = [int(t) - trace.start + 1 if t else 0 for t in trace.tasks[name]]
        assert columns[name].tolist() == expected
    names = [about["functions"][i] for i in columns["function"]]
    assert names[:3] == ["increase"] * 3
    assert columns["consumer"].tolist() == trace.edges["consumer"].tolist()
    assert columns["producer"].tolist() == trace.edges["producer"].tolist()
    tags = [(about["tags"][t & 7], about["tags"][t >> 3 & 7]) for t in columns["tags"][:3].tolist()]
    assert tags == [("INOUT", "INOUT"), ("INOUT", "INOUT"), ("INPUT", "INOUT")]
    address = columns["addressHigh"].astype(int) << 32 | columns["addressLow"]
    assert address.tolist() == trace.edges["address"].tolist()
    assert columns["critical"].tolist() == trace.critical_path
    assert columns["heldKilobytes"].tolist() == (trace.held["bytes"] >> 10).tolist()
    assert columns["ranTask"].shape == trace.ran.shape and len(columns["waitBegin"])
    order = np.lexsort((columns["ranBegin"], columns["ranWorker"]))
    assert order.tolist() == list(range(len(order)))


@pytest.mark.spec("SEE-PAGE-2")
def test_long_traces_have_coarser_units(traced, path, tmp_path):
    trace = traced(chain)
    trace.runs["end"] = trace.start + (1 << 33)
    trace.write_page(tmp_path / "page.html")
    about, columns = contents((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert about["unit"] == 3 and about["span"] < 1 << 32
    first = int(trace.tasks["submitted"][0]) - trace.start
    assert columns["submitted"][0] == first // 3 + 1


@pytest.mark.spec("SEE-PAGE-3")
def test_names_stay_text(traced, path, tmp_path):
    traced(chain)
    trace = Trace.open(path)
    evil = '</script><b>"&'
    trace.about["functions"] = dict.fromkeys(trace.about["functions"], evil)
    trace.write_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 1 and '<b>"&' not in text
    assert (
        contents(text)[0]["functions"] == ["function 0x0", evil]
        or evil in contents(text)[0]["functions"]
    )
