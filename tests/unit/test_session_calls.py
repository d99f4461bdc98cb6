"""What a session takes as a call."""

import numpy as np
import pytest

from simpler_ref.calls.forms import ARRAY, VALUE, head_words
from simpler_ref.jit import layout as L
from simpler_ref.remote.copies import CopiedTensor
from simpler_ref.remote.session_calls import CallWork
from simpler_ref.remote.task_messages import ANY_SUB_WORKER, Call, Run

ARRAYS = (CopiedTensor(7, 1, 0, "", "[\"'<f8'\", [2], [8]]"),)
HEAD = [L.SIGNED] * 2
BLOCK = L.FETCHED | L.VALUE_BLOCK


def work(codes, kinds, *, tensors=(), values=()):
    words = [*head_words(5, codes, 0), *range(codes.count(VALUE))]
    call = Call(bytes(32), ANY_SUB_WORKER, np.array(words, np.int64).tobytes())
    return CallWork(1, Run(b"", kinds=bytes(kinds), tensors=tensors), call, values, None)


def test_a_call_has_as_many_arrays_and_values_as_its_words_say():
    found = work([VALUE, ARRAY, VALUE], [*HEAD, L.FLOAT64, BLOCK], tensors=ARRAYS, values=[b"v"])
    assert (found.sizes, found.form.key, found.form.has_items) == ([16], 5, False)


@pytest.mark.parametrize(
    ("codes", "kinds", "more"),
    [
        ([VALUE], HEAD, {}),
        ([VALUE], [*HEAD, BLOCK], {}),
        ([VALUE], [*HEAD, L.SIGNED], {"values": [b"v"]}),
        ([VALUE], [*HEAD, L.SIGNED], {"tensors": ARRAYS}),
        ([ARRAY, ARRAY], HEAD, {"tensors": ARRAYS}),
        ([VALUE], [*HEAD, L.FUTURE], {}),
        ([VALUE], [*HEAD, L.PAYLOAD], {}),
        ([VALUE], [*HEAD, BLOCK + 1], {}),
    ],
)
def test_words_that_would_name_something_of_this_machine_are_refused(codes, kinds, more):
    with pytest.raises(ValueError, match="do not fit its arrays and values"):
        work(codes, kinds, **more)
