"""SEE-PAGE: the page."""

import base64
import gzip
import html
import json
import os
import re
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Trace, Worker

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
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--enable-logging=stderr"),
)
ACTS = r"""
<script>(async () => {
const find = selector => document.querySelector(selector), view = () => [from, until];
const pause = () => new Promise(end => requestAnimationFrame(() => requestAnimationFrame(end)));
const settled = async () => { do await pause(); while (due); };
function place(selector, x = 0.5, y = 0.5) {
  const box = find(selector).getBoundingClientRect();
  return [box.left + x * box.width, box.top + y * box.height];
}
async function fire(kind, [clientX, clientY], more) {
  const made = { clientX, clientY, bubbles: true, cancelable: true, ...more };
  const target = document.elementFromPoint(clientX, clientY) ?? document.body;
  target.dispatchEvent(new (kind === "wheel" ? WheelEvent : MouseEvent)(kind, made));
  await settled();
}
async function drag(start, ...stops) {
  await fire("mousedown", start);
  for (const stop of stops) await fire("mousemove", stop, { buttons: 1 });
  await fire("mouseup", stops.at(-1) ?? start);
}
async function click(at) { await drag(at); await fire("click", at); }
async function press(key, target = document.body) {
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  await settled();
}
function boxOf(task) {  // where the middle of it is, by the clock and the order of lanes alone
  const share = ((C.begun[task - 1] + C.ended[task - 1]) / 2 - from) / (until - from);
  const [left, top] = place("#time", 0, 0), [right] = place("#time", 1, 0);
  return [left + 130 + share * (right - left - 130), top + 26 * laneOf(task) + 13];
}
function colourAt([x, y]) {
  const [left, top] = place("#time", 0, 0), drawn = find("#time").getContext("2d");
  return [...drawn.getImageData(x - left, y - top, 1, 1).data];
}
const title = () => find("#story").textContent.split("\n")[0];
const named = part => [...document.querySelectorAll(`#${part} [data-task]`)].map(e => +e.dataset.task);
function same(...pair) {
  const [a, b] = pair.map(one => [one].flat());
  const near = (x, y) => x === y || Math.abs(x - y) <= 1e-6 * Math.abs(y);
  if (a.length !== b.length || !b.every((one, i) => near(a[i], one))) throw Error(JSON.stringify(pair));
}
while (!document.body.dataset.ready) await pause();
await settled();
SCRIPT
console.log("told: right");
})().catch(error => console.log("told: " + error.stack.replaceAll("\n", " ")));
</script>
"""
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
    """Return the trace of two runs of a chain beside lone tasks, and what runs a script in its page."""
    if BROWSER is None:
        pytest.skip("there is no chromium: install it, and these tests run")
    with Worker(level=3, num_sub_workers=2, heap_ring_size=1 << 20, child_mode="thread") as w:
        handles, x = [w.register(one) for one in (work, rest)], w.zeros(8, np.int64)
        w.run(lambda orch, *_: None)
        with w.trace(path):
            for _ in range(2):
                w.run(lambda orch, *_: build(orch, x, *handles))
    trace = Trace.open(path)
    trace.write_page(tmp_path / "page.html")

    def check(script):
        inside = (tmp_path / "page.html").read_text(encoding="utf-8")
        inside = html.escape(inside + ACTS.replace("SCRIPT", script))
        size = "border: 0; width: 1300px; height: 900px"
        (tmp_path / "frame.html").write_text(f'<iframe style="{size}" srcdoc="{inside}"></iframe>')
        home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), str(tmp_path))
        command = [
            BROWSER,
            *OPTIONS,
            f"--user-data-dir={tmp_path}/profile",
            "--window-size=1400,1000",
        ]
        browser = subprocess.Popen(
            [*command, f"file://{tmp_path}/frame.html"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | home,
            start_new_session=True,
        )
        with browser:
            lines = (one for one in browser.stderr if re.search(r'"(told: |Uncaught)', one))
            said = next(lines, "it has ended")
            os.killpg(browser.pid, signal.SIGKILL)
        assert "told: right" in said, said

    return trace, check


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_drags_move_as_far_as_the_mouse_and_stay_in_the_trace(shown):
    shown[1]("""
const whole = view(), middle = place("#time");
await drag(middle, [middle[0] + 200, middle[1]]);
same(view(), whole);  // there is nothing beside it
await fire("wheel", middle, { deltaY: -400 });
const [first, last] = view(), pixel = (last - first) / (width - LEFT);
for (const canvas of ["#time", "#axis", "#curves"]) {
  const [x, y] = place(canvas);
  await drag([x, y], [x + 40, y], [x + 90, y + 300]);
  same(view(), [first - 90 * pixel, last - 90 * pixel]);
  await drag([x, y], [x - 90, y]);
  same(view(), [first, last]);
}
await fire("wheel", middle, { deltaY: 50, shiftKey: true });
same(view(), [first + 50 * pixel, last + 50 * pixel]);
await fire("wheel", middle, { deltaX: -50 });
same(view(), [first, last]);
await fire("wheel", middle, { deltaX: -100_000 });
same(view(), [0, last - first]);
await press("ArrowRight");
same(view(), [0.2 * (last - first), 1.2 * (last - first)]);
await click(place("#fit"));
same(view(), whole);
""")


@pytest.mark.spec("SEE-PAGE-4")
def test_a_click_tells_the_story_and_shows_the_neighbours(shown):
    trace, check = shown
    words = ["submitted", "began on", "ended after", "waited for task 4 (work)"]
    told = trace.find(5).why().splitlines()
    assert all(any(word in line for line in told) for word in words)
    check(
        f"const words = {json.dumps(words)};"
        + """
const tells = word => find("#story").textContent.includes(word);
await click(boxOf(6));
same([title(), ...words.map(tells)], ["task 5 (work)", ...words.map(_ => true)]);
same(named("graph").sort(), [5, 6, 8]);
await fire("wheel", boxOf(6), { deltaY: -3000 });
same(C.begun[7] > until, true);
await click(place("#graph [data-task='8']"));
same([from <= C.begun[7] && C.ended[7] <= until, title()], [true, "task 7 (work)"]);
same(tells("waited for task 5 (work)"), true);
await click(place("#story [data-task]"));
same(title(), "task 5 (work)");
await click(place("#fit"));
await fire("mousemove", boxOf(3));  // a mouse that rests on a box sees its name
const [name, duration] = find("#tip").innerText.split("\\n");
same([name, duration.endsWith("ms")], ["task 2 (work)", true]);
await fire("mousemove", place("#time", 0.01, 0.5));
same(find("#tip").style.display, "none");
await click(boxOf(1));
same([title(), tells("waited"), ...named("graph")], ["task 0 (rest)", false, 1]);
"""
    )


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_search_dims_all_else_and_enter_goes_on(shown):
    shown[1]("""
const search = find("#search"), [rest, work] = [1, 2].map(boxOf);
const was = [rest, work].map(colourAt);
search.value = "RES";
search.dispatchEvent(new Event("input", { bubbles: true }));
await settled();
same(colourAt(rest), was[0]);
same(String(colourAt(work)) === String(was[1]), false);
const places = [0, 3, 6, 9, 0, 3, 6, 9, 0];
for (const place of places) {
  await press("Enter", search);
  same(title(), `task ${place} (rest)`);
}
await click(place("tr[data-function=work]"));
same([search.value, ...colourAt(work)], ["work", ...was[1]]);
""")


@pytest.mark.long
@pytest.mark.spec("SEE-PAGE-4")
def test_in_a_small_window_all_parts_have_the_same_time_at_the_same_place(shown):
    shown[1]("""
await fire("wheel", place("#time"), { deltaY: -100 });
const before = view();
Object.assign(frameElement.style, { width: "320px", height: "500px" });
do await pause(); while (width !== Math.max(LEFT + 50, find("#lanes").clientWidth) || innerWidth !== 320);
await settled();
same(view(), before);
const sizes = ["axis", "time", "curves"].map(id => find("#" + id).clientWidth);
same([...sizes, sizes[0] > 160], [width, width, width, true]);
const fits = document.documentElement.scrollWidth <= innerWidth;
const right = one => one.getBoundingClientRect().right;
const wide = [...document.querySelectorAll("body *")].filter(one => right(one) > innerWidth);
same(fits ? [] : wide.map(one => one.outerHTML.slice(0, 80)), []);
const task = [...C.begun.keys()].find(i => C.begun[i] > from && C.ended[i] < until) + 1;
find("#lanes").scrollTop = 26 * laneOf(task);
find("#lanes").scrollIntoView();
await click(boxOf(task));
same(selected, task);
""")
