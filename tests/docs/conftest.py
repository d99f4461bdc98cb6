"""What the tests of the pages share."""

import importlib

import pytest

from tests.spec_rules import ROOT


@pytest.fixture
def extension(monkeypatch):
    """Return a function that gives a Sphinx extension of the pages by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_ext"))
    return importlib.import_module
