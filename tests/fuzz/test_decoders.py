"""Whatever the bytes: decoders in Python make something of them that encodes to them, or refuse them."""

import itertools

import pytest

from simpler_ref.jit import layout as L
from simpler_ref.task_interface import ContinuousTensor, DataType

from ..support import unmap
from . import decoders
from .decoders import TARGETS, run_fixed_and_new

EXAMPLES = 30


@pytest.fixture(autouse=True, scope="module")
def _engine():
    engine = decoders.shared_engine()
    yield
    unmap(engine)
    decoders.shared_engine.cache_clear()


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_become_something_that_encodes_to_them_or_are_refused(name):
    run_fixed_and_new(TARGETS[name], EXAMPLES)


def test_tensors_that_are_read_only_or_that_a_layout_describes_say_so():
    wire = bytearray(ContinuousTensor.make(4096, [2], DataType.FLOAT32)._wire)
    for mark in (0, 1, L.TENSOR_READ_ONLY):
        wire[33] = mark
        TARGETS["tensor"].check(bytes(wire))
    wire[33] = L.TENSOR_READ_ONLY | 1
    with pytest.raises(ValueError, match="is no tensor"):
        ContinuousTensor._from_wire(bytes(wire))
    extents, ranks = (-1, 0, 64, (1 << 62) - 1, 1 << 62), (0, 5, 6, 0xFF, 0xFFFFFFFF)
    others = [(64, ndims, dtype) for ndims in ranks for dtype in (0, 0xFE)]
    for extent, ndims, dtype in [*itertools.product(extents, ranks, [0xFF]), *others]:
        wire = bytearray(40)
        decoders.DESCRIBED.pack_into(wire, 0, extent, ndims, dtype)
        wire[34] = L.OUTPUT
        TARGETS["submit"].check((1, 0, bytes(wire)))
