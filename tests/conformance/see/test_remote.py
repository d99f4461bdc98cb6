"""SEE-REMOTE: endpoints in a trace."""

import itertools
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref import RemoteCallable, RemoteWorkerSpec, Trace, Worker, WorkerLostError
from simpler_ref.errors import TransferError
from simpler_ref.jit import layout as L
from simpler_ref.remote import traces
from simpler_ref.remote.connection import new_pair
from simpler_ref.remote.frames import OwnFrameType
from simpler_ref.remote.mover import Mover
from simpler_ref.trace import TraceFileError
from simpler_ref.trace.tables import NOTE, Clock, TraceFile, head_of, text_notes
from tests import far_side
from tests.conformance.see.conftest import main, make
from tests.conformance.see.test_page import contents
from tests.endpoints import INOUT, Tower, program
from tests.raw_session import session
from tests.support import wait_until

TASKS = (2, 64)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A trace of three tasks at two encrypted endpoints."""
    path = str(tmp_path_factory.mktemp("traced") / "a.trace")
    with Worker(level=4, trace=path) as w:
        for _ in range(2):
            w.add_remote_worker(RemoteWorkerSpec(num_sub_workers=1))
        w.register(RemoteCallable(far_side.name(far_side.bump)), inner=True)
        bump = w.register(RemoteCallable(far_side.name(far_side.bump_there)))
        x = w.zeros(1 << 16, np.int64)  # too long for a frame

        def orch_fn(orch, args, config):
            for place in (0, 1, 0):
                orch.submit_next_level(bump, make((x, INOUT)), worker=place)

        w.run(orch_fn)
        assert x[0] == 3
    return Trace.open(path)


@pytest.fixture
def copied(traced, tmp_path):
    """Return a function that copies files of the trace, by how their names end, and tells where to."""

    def copy(*ends):
        for end in ("", *ends):
            (tmp_path / f"a.trace{end}").write_bytes(Path(traced.path + end).read_bytes())
        return tmp_path / "a.trace"

    return copy


@pytest.fixture(scope="module")
def two():
    """Two endpoints, with a sub worker each, that run before they are traced."""
    with program(2, num_sub_workers=1) as made:
        made.run((far_side.nothing, None))
        yield made


@pytest.mark.spec("SEE-REMOTE-1", "SEE-REMOTE-3")
def test_the_workers_of_endpoints_are_traced_with_their_parent_by_one_clock(traced):
    assert traced.about["children"] == ["a.trace.0", "a.trace.1"]
    assert [one.name for one in traced.children] == ["endpoint 0", "endpoint 1"]
    below = [one.trace for one in traced.children]
    assert [len(one.ran) for one in below] == [2, 1]
    assert all(name.endswith("bump") for one in below for name in one.functions())
    assert all(one.is_whole for one in below) and not traced.problems()
    assert len({one.about["pid"] for one in (traced, *below)}) == 3
    assert [one.trace.error_ns for one in traced.children] == [0, 0] and "±" not in traced.summary()
    for which in (0, 1):
        clocks = TraceFile(traced.path).clocks()[traced.children[which].worker]
        assert clocks and all(abs(ahead) <= half for _, ahead, half in clocks)


@pytest.mark.spec("SEE-REMOTE-1")
def test_a_block_traces_endpoints_that_run_already_and_nothing_else(two, tmp_path):
    for turn in (1, 2):
        path = str(tmp_path / f"{turn}.trace")
        with two.worker.trace(path, detail="tasks"):
            two.run(*[(far_side.nothing, None, {"worker": i}) for i in (0, 1, 1)])
        two.run((far_side.nothing, None))
        trace = Trace.open(path)
        assert [len(one.trace.runs) for one in trace.children] == [1, 2]
        assert all(one.trace.is_whole for one in trace.children)
        assert sorted(trace.whole.within.tolist()) == [0, 1, 2, 3]


# ---------------------------------------------------------------- one timeline
@pytest.mark.spec("SEE-REMOTE-2")
def test_the_whole_has_the_rows_of_all_workers_in_one_time(traced):
    whole = traced.whole
    names = [whole.worker_name(lane) for lane in whole.rows]
    for which in (0, 1):
        assert f"endpoint {which} of this machine" in names
        assert f"endpoint {which} › Orch thread" in names
        assert f"endpoint {which} › sub_worker 0" in names
    assert len(names) == len(set(names)) == 2 + 2 + 2 * 3, "and no places where nobody is"
    assert len(whole.tasks) == 6 and len(whole.runs) == 4
    same = [name for name in whole.tasks.dtype.names if name != "function"]
    assert whole.tasks[:3][same].tolist() == traced.tasks[:3][same].tolist()
    for run, number in enumerate(whole.within.tolist()):
        if number:
            outer, inner = whole.task(number), whole.runs[run]
            assert outer.begun < inner["begin"] < inner["end"] < outer.ended
    assert sorted(whole.within.tolist()) == [0, 1, 2, 3]


@pytest.mark.spec("SEE-REMOTE-2")
def test_transfers_say_from_where_to_where_how_much_and_when(traced):
    moved = sorted(traced.whole.transfers(), key=lambda one: one.begin)
    ways = [(one.source, one.target) for one in moved]
    assert ways == [
        ("", "endpoint 0"),
        ("endpoint 0", "endpoint 1"),
        ("endpoint 1", "endpoint 0"),
        ("endpoint 0", ""),
    ]
    assert {one.nbytes for one in moved} == {524288}
    assert all(one.begin < one.end for one in moved)
    assert all(before.end <= after.begin for before, after in itertools.pairwise(moved))


@pytest.mark.spec("SEE-REMOTE-2")
def test_the_page_json_and_the_table_are_of_the_whole(traced, tmp_path):
    traced.write_page(tmp_path / "page.html")
    about, columns = contents((tmp_path / "page.html").read_text(encoding="utf-8"))
    names = [row[0] for row in about["rows"]]
    assert names == [traced.whole.worker_name(lane) for lane in traced.whole.rows]
    assert about["tasks"] == 6 and about["own"] == 3 and len(columns["ranTask"]) == 6
    lanes = {row[0]: row[2] for row in about["rows"]}
    texts = [about["marks"][i] for i in columns["markText"]]
    there = columns["markLane"] == lanes["endpoint 1 › Orch thread"]
    assert any(
        "524288 bytes from endpoint 0 to endpoint 1" in texts[i] for i in np.flatnonzero(there)
    )
    assert any("DONE received" in line for line in about["journeys"]["2"])

    traced.write_chrome(tmp_path / "a.json")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    workers = [one["args"]["name"] for one in events if one["name"] == "process_name"]
    assert workers == ["this machine", "endpoint 0", "endpoint 1"]
    boxes = [one for one in events if one["ph"] == "X" and one["name"].endswith("bump")]
    assert sorted(one["pid"] for one in boxes) == [2, 2, 3]
    flows = [one for one in events if one.get("cat") == "frame"]
    assert len(flows) == 2 * len(traced.whole.frame_pairs())

    traced.write_csv(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert len(lines) == 7 and sum("endpoint 0 › sub_worker 0" in line for line in lines) == 2


@pytest.mark.long
@pytest.mark.spec("SEE-REMOTE-2")
def test_endpoints_of_child_workers_are_in_the_whole_too(tmp_path):
    tower, path = Tower(), str(tmp_path / "a.trace")
    with tower.worker as w:
        x = w.zeros(16, np.float32)
        w.start()
        with w.trace(path):
            w.run(lambda orch, args, config: tower.submit(orch, 1, x, 0, 2))
    whole = Trace.open(path).whole
    names = [part.name for part in whole.parts]
    assert len(names) == 7 and "child_worker 1 › endpoint 1" in names
    assert not whole.problems()
    (outer,) = np.flatnonzero(whole.tasks["worker"] == 1) + 1
    runs = [run for run, number in enumerate(whole.within) if number == outer]
    assert len(runs) == 1 and (whole.tasks["run"] == runs[0]).sum() >= 3


# ---------------------------------------------------------------- clocks
def answers(ahead, *trips, when=0):
    """Return what a clock that is ahead so much tells, by how long question and answer took."""
    told = []
    for there, back in trips:
        when += 1_000_000
        what, _, at, value = traces.clock_note(when, when + there + ahead, when + there + back)
        told.append((at, value, what >> 8))
    return told


@pytest.mark.spec("SEE-REMOTE-3")
def test_a_clock_is_known_as_well_as_its_answers_were_quick_and_followed_if_it_is_fast():
    for ahead in (0, 5, -123456789, 10**15):
        clock = Clock(answers(ahead, (900, 100), (100, 100), (100, 5000)))
        found = int(clock.to_parent(np.array([7_000_000 + ahead]))[0])
        assert clock.error_ns <= 101 and abs(found - 7_000_000) <= clock.error_ns
    told, drift = [], 40  # ns in each ms: 40 ppm
    for i in range(0, 60_000, 20):
        told += answers(10**12 + i * drift, (200, 300), when=i * 1_000_000)
    clock = Clock(told)
    for i in (0, 100, 30_000, 59_000):
        at = i * 1_000_000
        found = int(clock.to_parent(np.array([at + 10**12 + i * drift]))[0])
        assert abs(found - at) <= clock.error_ns
    assert clock.error_ns < 300_000


def rewritten(path, change, **about):
    """Have a trace hold other notes: `change` is given those of each journal."""
    file = TraceFile(path)
    os.rename(path, f"{path}.old")  # which is mapped
    with open(path, "wb") as out:
        out.write(head_of({**file.about, "ended": False, **about}))
        for journal, found in file.journals.items():
            notes = found.copy()
            change(journal, notes)
            head = [(L.NOTED_CHUNK | journal << 8, len(notes), 0, 0)]
            out.write(np.array(head, NOTE).tobytes() + notes.tobytes())
        out.write(text_notes({"ended": True}))


def shifted(path, which, by):
    """Have the trace of an endpoint be one of a machine whose clock is ahead so much."""
    times = {L.NOTED_RAN, L.NOTED_PARKED, L.NOTED_REQUEST, L.NOTED_WAITED, L.NOTED_PLAYED}
    times |= {L.NOTED_PASSES, L.NOTED_SUBMIT, L.NOTED_MOVED}
    once = {*range(16), L.NOTED_HELD, L.NOTED_SCOPE, L.NOTED_AHEAD, L.NOTED_RUN}
    once |= {L.NOTED_FRAME}
    worker = Trace.open(path).children[which].worker

    def shift(_journal, notes):
        kinds = notes["what"] & 0xFF
        notes["time"] += by * np.isin(kinds, [*times, *once])
        notes["value"] += by * np.isin(kinds, [*times])

    def tell(journal, notes):
        if journal == L.JOURNALS_OF_WORKERS + worker:
            notes["value"] += by * (notes["what"] & 0xFF == L.NOTED_CLOCK)

    rewritten(f"{path}.{which}", shift, clock="another")
    rewritten(path, tell)


@pytest.mark.spec("SEE-REMOTE-3")
def test_nothing_is_received_before_it_was_sent_whatever_the_clocks_say(copied):
    path, hours = copied(".0", ".1"), 3600 * 10**9
    shifted(path, 0, 7 * hours)
    shifted(path, 1, -hours // 3600)
    trace = Trace.open(path)
    errors = {one.name: one.trace.error_ns for one in trace.children}
    assert all(0 < error < hours for error in errors.values())
    whole = trace.whole
    pairs = whole.frame_pairs()
    assert len([one for one, _ in pairs if one["type"] in TASKS]) == 3
    for sent, got in pairs:
        assert sent["exchange"] == got["exchange"] and sent["nbytes"] == got["nbytes"] > 40
        far = max(whole.part_of(int(one["lane"])) for one in (sent, got))
        assert got["time"] - sent["time"] >= -errors[whole.parts[far].name]
    for run, number in enumerate(whole.within.tolist()):
        if number:
            error = max(errors.values())
            outer, inner = whole.task(number), whole.runs[run]
            assert outer.begun - error <= inner["begin"] <= inner["end"] <= outer.ended + error
    assert sorted(whole.within.tolist()) == [0, 1, 2, 3]
    told = trace.summary()
    assert all(f"{one}, process" in told for one in errors) and "times ± " in told


# ---------------------------------------------------------------- what is missing
@pytest.mark.long
@pytest.mark.spec("SEE-REMOTE-4")
def test_an_endpoint_that_cannot_be_traced_is_told_of_by_what_its_parent_has(tmp_path, monkeypatch):
    refusal = traces.TraceAnswer(0, error="no room for a file")
    monkeypatch.setattr(traces.LinkTrace, "_ask", lambda *_: refusal)
    path = str(tmp_path / "a.trace")
    with program(1) as one, one.worker.trace(path):
        one.run((far_side.nothing, None))
    trace = Trace.open(path)
    assert trace.about["children"] == [] and os.listdir(tmp_path) == ["a.trace"]
    (problem,) = trace.problems()
    assert problem.startswith("endpoint 0: it was not traced: no room for a file")
    assert problem in trace.summary()
    told = trace.task(1).why()
    assert "TASK sent" in told and "DONE received" in told


@pytest.mark.long
@pytest.mark.spec("SEE-REMOTE-4")
def test_what_had_come_of_a_lost_endpoint_stays(tmp_path):
    path = str(tmp_path / "a.trace")
    with program(2, num_sub_workers=1) as two, two.worker.trace(path):
        two.run((far_side.nothing, None, {"worker": 0}))
        until_there(f"{path}.0", lambda trace: len(trace.runs) == 1)
        os.kill(two.worker.endpoints()[0]["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            two.run((far_side.nothing, None, {"worker": 0}))
        two.run(*[(far_side.nothing, None, {"worker": i}) for i in (0, 0, 1)])
    trace = Trace.open(path)
    assert trace.about["children"] == ["a.trace.0", "a.trace.1", "a.trace.0-2"]
    assert [len(one.trace.runs) for one in trace.children] == [1, 1, 2]
    (problem,) = trace.problems()
    assert problem.startswith("endpoint 0: its records are cut off") and problem in trace.summary()
    assert len(set(trace.whole.about["workers"])) == len(trace.whole.about["workers"])
    assert sorted(trace.whole.within.tolist())[-4:] == [1, 3, 4, 5]


def until_there(path, is_there):
    """Wait until a file has what is expected, while the trace goes on."""
    wait_until(lambda: os.path.getsize(path) and is_there(Trace.open(path)))


@pytest.mark.spec("SEE-REMOTE-4")
def test_a_file_that_is_gone_is_named_and_notes_that_were_dropped_there_are_counted(copied):
    path = copied(".0")
    trace = Trace.open(path)
    assert trace.problems() == ["endpoint 1: a.trace.1 is missing: No such file or directory"]
    assert len(trace.whole.ran) == 5 and "a.trace.1 is missing" in trace.summary()
    copied(".1")
    with open(f"{path}.1", "ab") as file:
        file.write(chunk((L.NOTED_HELD, 0, 0, 0), journal=L.JOURNAL_OF_ORCH, dropped=17))
    trace = Trace.open(path)
    assert trace.dropped == 0 and trace.whole.dropped == 17
    assert "17 notes were dropped there" in trace.summary()


# ---------------------------------------------------------------- how they travel
@pytest.mark.spec("SEE-REMOTE-6")
def test_records_come_in_pieces_while_a_run_goes_on_and_all_of_them(two, tmp_path):
    path = str(tmp_path / "a.trace")

    def orch_fn(orch, args, config):
        for _ in range(4):
            orch.submit_next_level(two.handle(far_side.many_buffers), worker=1)
        until_there(f"{path}.1", lambda trace: len(trace.runs) >= 1)

    with two.worker.trace(path):
        two.worker.run(orch_fn)
    _, below = Trace.open(path).children
    assert not below.problem and not below.trace.dropped
    assert os.path.getsize(below.trace.path) > 2 * traces.PIECE
    assert len(below.trace.tasks) == 4 * far_side.MANY


@pytest.mark.spec("SEE-REMOTE-6")
def test_pieces_are_for_who_has_keys_and_key_and_at_most_so_large():
    pair = new_pair()
    with session(pair) as (place, connect):
        client = connect()
        client.greet()
        asked = traces.TRACE.encode(traces.TraceDetail.ALL)
        told = traces.TRACE_ANSWER.decode(client.ask(OwnFrameType.TRACE, asked).payload)
        assert not told.error
        question = traces.RECORDS.encode(0)
        pieces = []
        for keys, key in (
            (place.group, told.key),
            (place.group, told.key + 1),
            (new_pair(), told.key),
        ):
            mover = Mover("tcp://127.0.0.1:*", keys, 1.0)
            with suppress(TransferError):
                raw = mover.ask(place.announcement.tensors, key, question)
                pieces.append(traces.RECORDS_ANSWER.decode(raw))
            mover.close()
    (piece,) = pieces
    assert piece.data.startswith(b"simpler_ref trace") and piece.time_ns > 0
    assert len(piece.data) <= traces.PIECE == 1 << 18


# ---------------------------------------------------------------- what comes is checked
def chunk(*notes, journal=0, count=None, dropped=0):
    head = (L.NOTED_CHUNK | journal << 8, len(notes) if count is None else count, 9, dropped)
    return np.array([head, *notes], NOTE).tobytes()


HEAD = {"version": 1, "by": "x", "pid": 5, "host": "h", "program": "p", "clock": "c", "more": [1]}
HEAD = head_of(HEAD)
GOOD = chunk((L.NOTED_HELD, 0, 1, 2), (L.NOTED_RUN | 1 << 8, 1, 3, 0), journal=1)


@pytest.mark.spec("SEE-REMOTE-6")
def test_what_has_come_is_read_wherever_it_was_cut_off(tmp_path):
    told = {"functions": {"5": "f"}, "lines": [["a.py", 3, "g"]], "ended": True}
    raw, path = HEAD + GOOD + text_notes(told) + GOOD, tmp_path / "a"
    for end in range(len(HEAD), len(raw) + 1):
        path.write_bytes(raw[:end])
        Trace.open(path)
    file = TraceFile(path)
    assert file.journals[1]["what"].tolist() == [L.NOTED_HELD, L.NOTED_RUN | 1 << 8] * 2
    assert file.about["functions"] == {"5": "f"} and file.about["lines"] == [["a.py", 3, "g"]]


@pytest.mark.spec("SEE-REMOTE-6")
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"no trace at all", "does not begin as one"),
        (b"simpler_ref trace\n" + b"x" * (1 << 17), "does not begin as one"),
        (b"simpler_ref trace\n[1, 2]\n", "in place of an object"),
        (HEAD.replace(b'"version": 1', b'"version": 7'), "version 7"),
        (HEAD + chunk(journal=1 << 20, count=1), "journal 1048576"),
        (HEAD + chunk(count=-1), "-1 notes"),
        (HEAD + chunk((L.NOTED_RAN, 1 << 40, 0, 0), journal=3), "task 1099511627776 in 1 notes"),
        (HEAD + np.array([(L.NOTED_TEXT, 1, 0, -9)], NOTE).tobytes(), "-9 bytes"),
        (HEAD + text_notes({"functions": {"f": "f"}}), "as functions"),
        (HEAD + text_notes({"lines": [["a.py", "3", "g"]]}), "as lines"),
        (HEAD + text_notes({"child_workers": [-1]}), "as child_workers"),
        (HEAD + text_notes({"untraced": [1]}), "as untraced"),
        (HEAD + text_notes({"layouts": {"1": [8, [2], "x"]}}), "as layouts"),
    ],
)
def test_what_is_no_record_is_refused(raw, why, tmp_path):
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(TraceFileError) as refused:
        Trace.open(tmp_path / "a")
    assert why in str(refused.value)


@pytest.mark.spec("SEE-REMOTE-6")
def test_an_endpoints_trace_that_is_wrong_or_names_one_above_is_told_of(copied):
    path = copied(".0", ".1")
    with open(f"{path}.0", "ab") as file:
        file.write(chunk(journal=1 << 20))
    with open(f"{path}.1", "ab") as file:
        file.write(text_notes({"children": ["../a.trace"], "child_workers": [0], "ended": True}))
    trace = Trace.open(path)
    wrong, circle = trace.problems()
    assert wrong.startswith("endpoint 0: a.trace.0 is missing") and "journal 1048576" in wrong
    assert circle.startswith("endpoint 1 › ") and "a Worker above" in circle
    assert len(trace.whole.ran) == 4


@pytest.mark.spec("SEE-REMOTE-6")
def test_no_more_comes_than_the_session_has_announced_or_a_disk_should_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_BYTES", 100)

    def answer(kind, raw):
        size = 60 if traces.TRACE.decode(raw) == traces.TraceDetail.OFF else 0
        return SimpleNamespace(payload=traces.TRACE_ANSWER.encode(traces.TraceAnswer(1, 5, size)))

    for pieces, why in (([70, 70], "140 bytes"), ([50, 0], "50 bytes"), ([50, 11], "61 bytes")):
        left = iter(pieces)

        def ask(_address, key, _question, left=left):
            assert key == 5
            return traces.RECORDS_ANSWER.encode(traces.RecordsAnswer(9, bytes(next(left))))

        frames = SimpleNamespace(
            exchange=answer,
            mailbox=SimpleNamespace(note=lambda *_: None),
            place=SimpleNamespace(name="x"),
        )
        memory = SimpleNamespace(address="", mover=SimpleNamespace(ask=ask))
        trace = traces.LinkTrace(frames, memory)
        asked = json.dumps({"file": str(tmp_path / "a"), "detail": "all"}).encode()
        assert json.loads(trace.answer(asked)) == {"why": ""}
        if why.startswith("140"):
            trace.poll()
        told = json.loads(trace.answer(b'{"wait_s": 1}'))
        assert told["left"] == 0 and why in told["why"]


@pytest.mark.long
@pytest.mark.spec("SEE-REMOTE-4")
def test_records_that_end_before_the_trace_does_are_told_of(tmp_path, monkeypatch):
    said = "on purpose"

    def refuse(self, file):
        raise ValueError(said)

    monkeypatch.setattr(traces.LinkTrace, "_fetch", refuse)  # links are forked from here
    path = str(tmp_path / "a.trace")
    with program(1) as one:
        with one.worker.trace(path):
            one.run((far_side.nothing, None))
        one.run((far_side.nothing, None))
    (problem,) = Trace.open(path).problems()
    assert problem == f"endpoint 0: a.trace.0 is missing: {said}"


# ---------------------------------------------------------------- stories
STEPS = (
    *("began on endpoint 1", "TASK sent", "TASK received at endpoint 1"),
    *("524288 bytes from endpoint 0", "a run of 1 task begins there", "the run has ended there"),
    *("DONE sent at endpoint 1", "DONE received", "ended after"),
)


@pytest.mark.spec("SEE-REMOTE-7")
def test_the_story_of_a_task_tells_its_way_to_the_endpoint_and_back(traced):
    texts = [line.split(None, 2)[-1].strip() for line in traced.task(2).why().splitlines()]
    at = [next(i for i, text in enumerate(texts) if text.startswith(one)) for one in STEPS]
    assert at == sorted(at)
    assert "524288 bytes from this machine to endpoint 0" in traced.whole.task(1).why()


@pytest.mark.spec("SEE-REMOTE-7")
def test_a_task_there_names_the_task_above_whose_critical_path_goes_through_it(traced, capsys):
    whole = traced.whole
    (number,) = (i for i in (4, 5, 6) if whole.side(whole.task(i).worker) == "endpoint 1")
    story = whole.task(number).why().splitlines()
    assert story[0].startswith("task 0 (") and story[0].endswith("bump_there) at endpoint 1")
    assert ", in task 1 (" in story[0]
    assert any("began on endpoint 1 › sub_worker 0" in line for line in story)
    assert traced.critical_path == [1, 2, 3]
    path = whole.critical_path
    assert [one for one in path if one <= 3] == [1, 2, 3] and len(path) == 6
    for outer, inner in zip(path[::2], path[1::2], strict=True):
        assert whole.within[whole.task(inner).run] == outer
    assert main(["trace", traced.path, "--why", "1"]) == 0
    assert "TASK received at endpoint 1" in capsys.readouterr().out
