"""CALL-INNER: arrays and futures within arguments, and within functions."""

import functools
import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import simpler_ref as sr

from .tasks import fill, fill_at, have_others_run, opened, same, total, wait_at

pytestmark = pytest.mark.spec("CALL-INNER-1")


@dataclass
class Box:
    inside: Any


def objects(value):
    array = np.empty(2, object)
    array[1] = value
    return array


INSIDE = {
    "a list": (lambda x: [1, x], lambda v: v[1]),
    "a tuple, twice": (lambda x: (x, x), lambda v: v[1] if v[0] is v[1] else None),
    "a dict": (lambda x: {"x": x}, lambda v: v["x"]),
    "an object": (Box, lambda v: v.inside),
    "a list of dicts": (lambda x: [{"x": (x,)}], lambda v: v[0]["x"][0]),
    "a partial": (lambda x: functools.partial(same, x), lambda v: v.args[0]),
    "a closure": (lambda x: lambda: x, lambda v: v()),
    "elements": (objects, lambda v: v[1]),
}


@sr.task
def look_at(gate: sr.In, take, box):
    wait_at(gate)
    x = take(box)
    return float(x.sum()), x.flags.writeable


def test_calls_wait_for_writers_of_arrays_within_arguments_and_cannot_write_these(w, gate):
    x, is_open = w.zeros((len(INSIDE), 2)), w.share(np.ones(1, np.int32))
    fill_at(gate, x, 7)
    found = [
        w.submit(look_at, is_open, take, put(row))
        for row, (put, take) in zip(x, INSIDE.values(), strict=True)
    ]
    alone = w.submit(np.sum, objects(x[0])[1:])
    mapped = w.map(sum, [[x[0, 0], 1], [2, 3]])
    have_others_run(w)
    gate[0] = 1
    assert [one.result() for one in found] == [(14, False)] * len(INSIDE)
    assert alone.result().tolist() == [7, 7]
    assert list(mapped) == [1, 5], "a number of an array is a number"


def test_later_writers_wait_for_calls_with_arrays_within_arguments(w, gate):
    x = w.share(np.ones((len(INSIDE), 2)))
    kinds = list(zip(x, INSIDE.values(), strict=True))
    for row, (put, take) in kinds:
        gate[0] = 0
        found = w.submit(look_at, gate, take, put(row))
        fill(row, 9)
        have_others_run(w)
        gate[0] = 1
        assert found.result() == (2, False)
        assert total(row).result() == 18


def test_items_of_map_wait_for_what_they_have_within(w, gate):
    x = w.zeros(4)
    fill_at(gate, x, 3)
    items = [{"x": x}, {"x": np.ones(2)}, {"x": x[:1]}, {"x": w.submit(np.full, 5, 2.0)}]
    found = w.map(lambda item: float(item["x"].sum()), items)
    several = w.starmap(lambda a, b: float(a[0].sum()) + b, [([x], 1), ([x[1:]], 2)])
    have_others_run(w)
    gate[0] = 1
    assert list(found) == [12, 2, 3, 10]
    assert list(several) == [13, 11]


def test_futures_within_arguments_arrive_as_values(w, gate):
    values = [5, 2.5, None, "text", np.arange(3.0), [1, {"a": 2}]]
    for put, take in INSIDE.values():
        gate[0] = 0
        futures = [wait_at(gate, one) for one in values]
        found = [w.submit(lambda take, box: take(box), take, put(one)) for one in futures]
        gate[0] = 1
        assert list(map(repr, (one.result() for one in found))) == list(map(repr, values))
    ended = same(7)
    assert ended.result() == 7
    assert same([ended, (ended,)]).result() == [7, (7,)]
    with pytest.raises(TypeError, match="unsupported operand"):
        same([w.submit(divmod, 1, None)]).result()


@pytest.mark.spec("CALL-INNER-1", "CALL-INNER-2")
@pytest.mark.parametrize("number", [16, 17, 60])
def test_many_arrays_and_futures_are_right_too(w, number):
    x = w.zeros((number - 1, 3))

    def sums(rows, last):
        return [float(one.sum()) for one in (*rows, last[0])], any(
            one.flags.writeable for one in rows
        )

    for value in (1, 2):
        fill(x, value)
        made = w.submit(np.full, 3, 5)
        sent = sr.task(sums)(list(x), [made])
        assert sent.result() == ([3.0 * value] * (number - 1) + [15], False)
        assert list(w.map(len, [list(x), [made] * number])) == [number - 1, number]


class Derived(np.ndarray):
    """A class of the user's."""


class Column:
    """Memory that is pickled as a buffer, as columns of other libraries are."""

    def __init__(self, memory):
        self.memory = memory

    def __reduce_ex__(self, protocol):
        return bytes, (pickle.PickleBuffer(self.memory),)


COPIED = {
    "a masked array": (lambda x: np.ma.masked_array(x, [False] * 4), 4),
    "a mask": (lambda x: np.ma.masked_array([5] * 4, x.view(bool)[::8]), 0),
    "a class of the user's": (lambda x: x.view(Derived), 4),
    "some elements of it": (lambda x: x.view(Derived)[::2], 2),
    "a memoryview": (memoryview, 4),
    "a column": (Column, 4),
}
"""Of four numbers: other forms of their memory, and the sum of these once the numbers are 1."""


def sum_of(value):
    found = np.frombuffer(value, int) if isinstance(value, bytes) else value
    return int(np.ma.filled(found, 0).sum())


@pytest.mark.spec("CALL-INNER-2")
@pytest.mark.parametrize(("form", "expected"), COPIED.values(), ids=COPIED)
@pytest.mark.parametrize("take", [sum_of, lambda box: sum_of(box[0])], ids=["alone", "inside"])
def test_what_is_copied_from_shared_arrays_is_copied_once_these_are_written(
    w, gate, form, expected, take
):
    x = w.zeros(4, int)
    given = form(x)
    fill_at(gate, x, 1)
    threading.Timer(0.05, gate.__setitem__, (0, 1)).start()  # the submit waits for that
    assert w.submit(take, given if take is sum_of else [given]).result() == expected


@pytest.mark.slow("endpoints")
def test_arrays_and_futures_within_arguments_go_to_endpoints():
    with opened(2) as w:
        x = w.zeros(4)
        for value in (1, 2):
            fill(x, value)
            long = w.submit(np.full, 100_000, value)
            boxes = [put(x) for name, (put, _) in INSIDE.items() if name != "elements"]
            taken = [take for name, (_, take) in INSIDE.items() if name != "elements"]
            pairs = zip(boxes, taken, strict=True)
            found = [w.submit(lambda b, t: float(t(b).sum()), box, take) for box, take in pairs]
            sums = w.submit(
                lambda values: [float(one.sum()) for one in values], [long, x, 20 * [x]][:2]
            )
            assert [one.result() for one in found] == [4 * value] * len(found)
            assert sums.result() == [100_000 * value, 4 * value]
            assert w.submit(len, 20 * [x[:1]] + list(x)).result() == 24
            assert list(w.map(lambda box: float(box["x"][0]), [{"x": x}, {"x": [5]}])) == [value, 5]
