"""Memory in files."""

import platform
import tempfile

import pytest

from simpler_ref.system.regions import spilled


def test_a_file_for_which_there_is_no_room_is_refused_with_its_folder_and_what_to_do(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(OSError, match=rf" in {tmp_path} on {platform.node()}: make room .* TMPDIR"):
        spilled(1 << 62)
    assert spilled(4096).sum() == 0
