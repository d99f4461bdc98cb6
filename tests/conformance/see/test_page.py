"""SEE-PAGE: the page."""

import base64
import gzip
import json
import re
import time

import numpy as np
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Trace, Worker
from tests import browser
from tests.browser import SHIFT, Browser

from .conftest import chain, make


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
def page(chained, tmp_path):
    chained.write_page(tmp_path / "page.html")
    return chained, (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.spec("SEE-PAGE-1")
def test_the_page_refers_to_no_other_file(page):
    _, text = page
    assert not re.search(r"\b(src|href|url|import|fetch)\s*[=(]", text)
    assert "http" not in text.replace("http-equiv", "")
    assert text.startswith("<!doctype html>") and text.count("<script>") == 1


@pytest.mark.spec("SEE-PAGE-1")
def test_the_columns_of_the_page_are_those_of_the_trace(page):
    trace, text = page
    about, columns = contents(text)
    assert (about["tasks"], about["unit"]) == (5, 1)
    for name in trace.TIMES:
        expected = [int(t) - trace.start + 1 if t else 0 for t in trace.tasks[name]]
        assert columns[name].tolist() == expected
    assert [about["functions"][i] for i in columns["function"]][:3] == ["increase"] * 3
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


@pytest.mark.spec("SEE-PAGE-1")
def test_names_stay_text_and_long_traces_have_coarser_units(traced, tmp_path):
    trace, evil = traced(chain), '</script><b>"&'
    trace.about["functions"] = dict.fromkeys(trace.about["functions"], evil)
    trace.runs["end"] = trace.start + (1 << 33)
    trace.write_page(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 1 and '<b>"&' not in text
    about, columns = contents(text)
    assert evil in about["functions"]
    assert about["unit"] == 3 and about["span"] < 1 << 32
    first = int(trace.tasks["submitted"][0]) - trace.start
    assert columns["submitted"][0] == first // 3 + 1


# ---------------------------------------------------------------- in a browser
TASKS = 12
"""Tasks of a run: each third one is `rest`, which no other waits for."""


def rest(args):
    time.sleep(0.002)


def work(args):
    time.sleep(0.002)


def build(orch, x, *handles):
    for i in range(TASKS):
        orch.submit_sub(handles[i % 3 == 0], make((x, T.NO_DEP if i % 3 == 0 else T.INOUT)))


@pytest.fixture
def shown(path, tmp_path):
    """Return the trace of two runs of a chain beside lone tasks, and a browser that shows its page."""
    program = browser.find()
    if program is None:
        pytest.skip("there is no chromium: install it, and these tests run")
    with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 20, child_mode="thread") as w:
        handles, x = [w.register(one) for one in (work, rest)], w.zeros(8, np.int64)
        w.run(lambda orch, *_: None)
        with w.trace(path):
            for _ in range(2):
                w.run(lambda orch, *_: build(orch, x, *handles))
    trace = Trace.open(path)
    trace.write_page(tmp_path / "page.html")
    with Browser(program, tmp_path / "profile") as page:
        page.open(tmp_path / "page.html")
        yield trace, page
        assert page.complaints == []


def view(page):
    return page.value("[from, until]")


def box_of(page, task):
    """Return where the middle of a task's box is, by the clock and the order of lanes alone."""
    span, share, lane = page.value(
        f"[until - from, ((C.begun[{task - 1}] + C.ended[{task - 1}]) / 2 - from) / (until - from),"
        f" laneOf({task})]"
    )
    assert span > 0 and 0 < share < 1
    left, top = page.place("#time", 0, 0)
    right, _ = page.place("#time", 1, 0)
    return left + 130 + share * (right - left - 130), top + 26 * lane + 13


def colour_at(page, at):
    left, top = page.place("#time", 0, 0)
    x, y = int(at[0] - left), int(at[1] - top)
    return page.value(
        f"Array.from($('time').getContext('2d').getImageData({x} * devicePixelRatio,"
        f" {y} * devicePixelRatio, 1, 1).data)"
    )


def story(page):
    return page.value("$('story').textContent")


def title(page):
    return story(page).partition("\n")[0]


def tasks_in(page, part):
    """Return the tasks that a part of the page names."""
    found = f"[...document.querySelectorAll('#{part} [data-task]')]"
    return page.value(f"{found}.map(e => +e.dataset.task)")


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_drags_move_as_far_as_the_mouse_and_stay_in_the_trace(shown):
    _, page = shown
    whole = view(page)
    start = page.place("#time", 0.5, 0.5)
    page.drag(start, (start[0] + 200, start[1]))
    assert view(page) == whole  # there is nothing beside it
    page.wheel(start, down=-400)
    first, last = view(page)
    per_pixel = page.value("(until - from) / (width - LEFT)")
    for canvas in ("#time", "#axis", "#curves"):
        start = page.place(canvas, 0.5, 0.5)
        page.drag(start, (start[0] + 40, start[1]), (start[0] + 90, start[1] + 300))
        assert view(page) == pytest.approx([first - 90 * per_pixel, last - 90 * per_pixel])
        page.drag(start, (start[0] - 90, start[1]))
        assert view(page) == pytest.approx([first, last])
    page.wheel(start, down=50, modifiers=SHIFT)
    assert view(page) == pytest.approx([first + 50 * per_pixel, last + 50 * per_pixel])
    page.wheel(start, right=-50)
    assert view(page) == pytest.approx([first, last])
    page.wheel(start, right=-100_000)
    assert view(page) == pytest.approx([0, last - first])
    page.click(page.place("#fit"))
    assert view(page) == whole


@pytest.mark.spec("SEE-PAGE-4")
def test_a_click_tells_the_story_and_shows_the_neighbours(shown):
    trace, page = shown
    page.click(box_of(page, 6))
    assert title(page) == "task 5 (work)"
    told = trace.find(5).why().splitlines()
    for word in ("submitted", "began on", "ended after", "waited for task 4 (work)"):
        assert word in story(page) and any(word in line for line in told)
    assert sorted(tasks_in(page, "graph")) == [5, 6, 8]
    page.wheel(box_of(page, 6), down=-3000)
    assert page.value("C.begun[7] > until")
    page.click(page.place("#graph [data-task='8']"))
    assert page.value("from <= C.begun[7] && C.ended[7] <= until")
    assert title(page) == "task 7 (work)" and "waited for task 5 (work)" in story(page)
    page.click(page.place("#story [data-task]"))
    assert title(page) == "task 5 (work)"
    page.click(page.place("#fit"))
    page.point(box_of(page, 3))  # a mouse that rests on a box sees its name
    name, duration = page.value("$('tip').innerText.split('\\n')")
    assert name == "task 2 (work)" and duration.endswith("ms")
    page.point(page.place("#time", 0.01, 0.5))
    assert page.value("$('tip').style.display") == "none"
    page.click(box_of(page, 1))
    assert title(page) == "task 0 (rest)" and "waited" not in story(page)
    assert tasks_in(page, "graph") == [1]


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_search_dims_all_else_and_enter_goes_on(shown):
    _, page = shown
    places = {task: box_of(page, task) for task in (1, 2)}
    rest_was, work_was = (colour_at(page, at) for at in places.values())
    page.click(page.place("#search"))
    page.write("RES")
    assert colour_at(page, places[1]) == rest_was != colour_at(page, places[2])
    seen = []
    for _ in range(2 * TASKS // 3 + 1):
        page.press("Enter")
        seen.append(title(page))
    assert seen == [f"task {i} (rest)" for i in (0, 3, 6, 9, 0, 3, 6, 9, 0)]
    page.click(page.place("tr[data-function=work]"))
    assert (page.value("$('search').value"), colour_at(page, places[2])) == ("work", work_was)


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_in_a_small_window_all_parts_have_the_same_time_at_the_same_place(shown):
    _, page = shown
    page.wheel(page.place("#time", 0.5, 0.5), down=-100)
    before = view(page)
    page.resize(320, 500)
    assert view(page) == before
    sizes = page.value("['axis', 'time', 'curves'].map(id => $(id).clientWidth)")
    assert sizes == [page.value("width")] * 3 and sizes[0] > 160
    wide = page.value(
        "document.documentElement.scrollWidth <= innerWidth ? [] :"
        "Array.from(document.querySelectorAll('body *')).filter(one => "
        "one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML.slice(0, 80))"
    )
    assert wide == []
    task = page.value(
        "Array.from(C.begun.keys()).find(i => C.begun[i] > from && C.ended[i] < until) + 1"
    )
    page.value(f"$('lanes').scrollTop = 26 * laneOf({task})")
    page.value("$('lanes').scrollIntoView()")
    page.click(box_of(page, task))
    assert page.value("selected") == task
