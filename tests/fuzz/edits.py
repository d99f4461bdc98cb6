"""Bytes that are nearly right: what a decoder must not believe."""

import struct

from hypothesis import strategies as st

_EDGES = (0, 1, 2, 3, 5, 6, 11, 12, 127, 128, 129, 255, 1023, 1024, 1025, 4096, 15024, 16384)
NUMBERS = sorted({*_EDGES, *((1 << bits) + d for bits in (31, 32, 62, 63, 64) for d in (-1, 0, 1))})
"""Values at which something in a layout changes."""
_FORMATS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}


@st.composite
def edited(draw, valid, most=4):
    """Draw bytes of `valid`, changed in up to so many places: numbers, bits, cuts, insertions, copies."""
    raw = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, most))):
        at = draw(st.integers(0, len(raw)))
        how = draw(st.sampled_from(("number", "number", "bits", "cut", "insert", "remove", "copy")))
        if how == "number":
            size = draw(st.sampled_from(tuple(_FORMATS)))
            value = draw(st.one_of(st.sampled_from(NUMBERS), st.integers(0, (1 << 64) - 1)))
            at -= at % size if draw(st.booleans()) else 0
            wire = struct.pack(_FORMATS[size], value & (1 << 8 * size) - 1)
            end = min(at + size, len(raw))
            raw[at:end] = wire[: end - at]
        elif how == "bits" and at < len(raw):
            raw[at] ^= draw(st.integers(1, 255))
        elif how == "cut":
            del raw[at:]
        elif how == "insert":
            raw[at:at] = draw(st.binary(max_size=16))
        elif how == "remove":
            del raw[at : at + draw(st.integers(1, 64))]
        elif how == "copy":
            start = draw(st.integers(0, len(raw)))
            raw[at:at] = raw[start : start + draw(st.integers(1, 64))]
    return bytes(raw)


def edited_in_place(valid, most=4):
    """Draw the same with as many bytes as before, as a reader of a fixed place finds them."""

    def fit(pair):
        before, after = pair
        return (after + bytes(len(before)))[: len(before)]

    return valid.flatmap(lambda raw: st.tuples(st.just(raw), edited(st.just(raw), most))).map(fit)
