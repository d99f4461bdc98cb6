"""CHIP-BLOB: callables as bytes."""

import ctypes
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpler_ref.native_chip import ChipCallable, ChipStatus, CoreCallable
from simpler_ref.task_interface import ArgDirection
from tests.chip_kernels import D

from .conftest import refused

CORE = CoreCallable.build([D.IN, D.SCALAR], b"core")
EMPTY = CoreCallable.build(signature=[D.IN], binary=b"")
"""A kernel alone may have an empty binary."""

CHIP = ChipCallable.build([D.IN, D.OUT, D.SCALAR], "entry", b"chip", [(7, CORE), (0, CORE)], "cfg")


@pytest.mark.spec("CHIP-BLOB-3", "CHIP-BLOB-4")
def test_everything_given_can_be_read_back_travels_and_cannot_be_changed():
    assert (CHIP.sig_count, CHIP.sig(0), CHIP.sig(2)) == (3, D.IN, D.SCALAR)
    assert (CHIP.child_count, CHIP.child_func_id(0), CHIP.child(1)) == (2, 7, CORE)
    assert (CHIP.func_name, CHIP.config_name, CHIP.binary) == ("entry", "cfg", b"chip")
    assert (CORE.sig_count, CORE.sig(1), CORE.binary) == (2, D.SCALAR, b"core")
    assert (EMPTY.binary, EMPTY.sig_count) == (b"", 1)
    assert repr(CORE) == "<CoreCallable (IN, SCALAR), sig_count=2, binary_size=4>"
    assert "sig_count=3, binary_size=4" in repr(CHIP)
    for i in (-1, 3):
        for read in (CHIP.sig, CHIP.child, CHIP.child_func_id, CORE.sig, CHIP.child_offset):
            with pytest.raises(IndexError, match="out of range: there are"):
                read(i)
    for what in (CORE, EMPTY, CHIP):
        there = pickle.loads(pickle.dumps(what))
        assert (there, hash(there)) == (what, hash(what))
        with pytest.raises(AttributeError, match="cannot assign to field 'binary'"):
            what.binary = b""
        with pytest.raises(AttributeError, match="cannot delete field 'binary'"):
            del what.binary


directions = st.sampled_from(ArgDirection)
binaries = st.binary(min_size=1, max_size=40)
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
cores = st.builds(CoreCallable.build, st.lists(directions, max_size=16), binaries)
chips = st.builds(
    ChipCallable.build,
    st.lists(directions, max_size=128),
    names,
    binaries,
    st.dictionaries(st.integers(0, 2**31 - 1), cores, max_size=3).map(dict.items),
    st.one_of(st.just(""), names),
)


@pytest.mark.spec("CHIP-BLOB-1")
@given(made=chips)
def test_a_blob_reads_back_as_what_it_was_made_from(made):
    read = ChipCallable.from_bytes(made.to_bytes())
    assert read == made
    assert (read.signature, read.func_name, read.config_name, read.children) == (
        *(made.signature, made.func_name, made.config_name, made.children),
    )


core, chip_of = CoreCallable.build, ChipCallable.build
REFUSED = [
    (ValueError, "argument 1 .* direction 9", lambda: core([1, 9], b"x")),
    (ValueError, "at most 16", lambda: core([1] * 17, b"x")),
    (ValueError, "at most .* 32", lambda: core([0] * 33, b"x")),
    (ValueError, "empty", lambda: chip_of([], "f", b"", [])),
    (ValueError, "kernel 3 is empty", lambda: chip_of([], "f", b"x", [(3, core([], b""))])),
    (ValueError, "128", lambda: chip_of([1] * 129, "f", b"x", [])),
    (ValueError, "128", lambda: chip_of([0] * 129, "f", b"x", [])),
    (ValueError, "func_name is empty", lambda: chip_of([], "", b"x", [])),
    (ValueError, "printable", lambda: chip_of([], "a\0b", b"x", [])),
    (ValueError, "config_name", lambda: chip_of([], "f", b"x", [], "ö")),
    (ValueError, "func_id 3 is there twice", lambda: chip_of([], "f", b"x", [(3, CORE)] * 2)),
    (ValueError, "func_id -1", lambda: chip_of([], "f", b"x", [(-1, CORE)])),
    (TypeError, "no CoreCallable", lambda: chip_of([], "f", b"x", [(1, b"")])),
]


@pytest.mark.spec("CHIP-BLOB-3")
@pytest.mark.parametrize(("kind", "words", "build"), REFUSED)
def test_what_cannot_be_is_refused_with_words(kind, words, build):
    with pytest.raises(kind, match=words):
        build()


def spoil(at, replacement):
    blob = bytearray(CHIP.to_bytes())
    blob[at : at + len(replacement)] = replacement
    return bytes(blob)


MALFORMED = {
    "magic": (spoil(0, b"X"), "SIMPCHIP"),
    "version": (spoil(8, b"\3"), "version 3; this is version 2"),
    "count": (spoil(12, b"\xff\xff\xff\xff"), "4294967295 arguments"),
    "direction": (spoil(16, b"\4"), "argument 0 has direction 4"),
    "name length": (spoil(28, b"\xff\xff\xff\xff"), "func_name has 4294967295"),
    "binary length": (spoil(44, b"\xff" * 8), "within its binary"),
    "alignment": (spoil(CHIP.child_offset(1) - 1, b"?"), "aligns a child in it is not zero"),
    "rest": (CHIP.to_bytes() + b"?", "1 bytes follow"),
    "an end before the last byte": (None, "it ends at byte"),
}


@pytest.mark.spec("CHIP-BLOB-1")
@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_blob_is_refused_by_python_and_by_the_chip_which_says_why(chip, what):
    one, words = MALFORMED[what]
    ends = [CHIP.to_bytes()[:size] for size in range(1, CHIP.buffer_size())]
    for blob in ends if one is None else [one]:
        with pytest.raises(ValueError, match="no ChipCallable"):
            ChipCallable.from_bytes(blob)
        with refused(ChipStatus.BLOB, f"no ChipCallable: .*{words}"):
            chip.prepare(0, blob)


@pytest.mark.spec("CHIP-BLOB-5")
def test_kernels_and_callables_tell_where_their_bytes_are():
    cores = [CoreCallable.build([D.IN] * i, b"core" * (i + 1)) for i in range(3)]
    numbered = [(7 * i, core) for i, core in enumerate(cores)]
    whole = ChipCallable.build([D.INOUT], "entry", b"binary", numbered, "name")
    assert whole.binary_size == 6 and [core.binary_size for core in cores] == [4, 8, 12]
    blob = ctypes.string_at(whole.buffer_ptr(), whole.buffer_size())
    assert blob == whole.to_bytes()
    before = blob.index(b"binary") + len(b"binary") + 4
    for i, core in enumerate(cores):
        part = ctypes.string_at(core.buffer_ptr(), core.buffer_size())
        at = whole.child_offset(i)
        assert (blob[at : at + len(part)], at % 64) == (part, 0)
        assert blob[before : before + 4] == (7 * i).to_bytes(4, "little")
        assert not any(blob[before + 4 : at])
        before = at + len(part)
        assert part.endswith(core.binary)
    assert whole.child_offset(2) + cores[2].buffer_size() == len(blob)
