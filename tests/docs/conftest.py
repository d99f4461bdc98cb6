"""What the tests of the pages share."""

import importlib
import sys

import pytest

from tests.spec_rules import ROOT


@pytest.fixture
def extension(monkeypatch):
    """Return a function that gives a Sphinx extension of the pages by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/_ext"))
    return importlib.import_module


@pytest.fixture(autouse=True)
def _kept_workers():
    """Close what the backend of joblib keeps for the next program of a page."""
    yield
    if backend := sys.modules.get("simpler_ref.adapters.joblib_backend"):
        backend.close()
