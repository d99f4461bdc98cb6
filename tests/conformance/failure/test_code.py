"""FAIL-CODE: errors of callables."""

import re

import pytest

from simpler_ref import Worker
from simpler_ref.callable_identity import build_python_import_descriptor, validate_hashid
from simpler_ref.callables.pickling import parse_python_callable_payload
from simpler_ref.jit import layout as L
from tests.spec_rules import ROOT, tables

CODES = {code for code, _ in tables("FAIL-CODE")[0]}
WORDS = r"\"((?:HASHID|REGISTER|UNREGISTER|CALLABLE|LOCAL)_[A-Z]+_[A-Z]+)\""


@pytest.mark.spec("FAIL-CODE-1")
def test_the_codes_of_the_table_are_all_there_are():
    sources = [path.read_text() for path in (ROOT / "simpler_ref").rglob("*.py")]
    assert {code for text in sources for code in re.findall(WORDS, text)} == CODES


def too_many():
    w = Worker(3, num_sub_workers=1)
    for i in range(L.MAX_REGISTERED_CALLABLE_IDS + 1):
        w.register(lambda i=i: i)


@pytest.mark.spec("FAIL-CODE-1")
@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("HASHID_FORMAT_INVALID", lambda: validate_hashid("md5:0")),
        ("HASHID_DESCRIPTOR_MISMATCH", lambda: build_python_import_descriptor("a", "<locals>")),
        ("HASHID_DESCRIPTOR_MISMATCH", lambda: parse_python_callable_payload(b"SPYC")),
        ("CALLABLE_KIND_UNSUPPORTED", lambda: Worker(2, device_id=0).register(len)),
        ("LOCAL_SLOT_EXHAUSTED", too_many),
    ],
)
def test_an_exception_has_its_code_and_begins_with_it(monkeypatch, code, call):
    monkeypatch.setattr(L, "MAX_REGISTERED_CALLABLE_IDS", 3)
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    assert caught.value.code == code
    assert str(caught.value).startswith(f"{code}: ")
