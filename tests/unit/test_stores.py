"""The memory of a session, without a parent."""

import dataclasses

import numpy as np
import pytest

from simpler_ref.remote import tasks
from simpler_ref.remote.mover import Mover
from simpler_ref.remote.stores import Stores

HERE, THERE = 3, 4


def test_only_its_importer_releases_an_import():
    mover = Mover("tcp://127.0.0.1:*")
    try:
        owner, importer = (
            Stores(one, mover, lambda n: np.zeros(n, np.uint8)) for one in (HERE, THERE)
        )
        made = owner.alloc(8)
        part = tasks.ExportBufferRequest(HERE, made.buffer_id, made.generation, 0, 8, 1)
        imported = importer.take(tasks.ImportBufferRequest(THERE, 1, owner.export(part)))
        names = [one.name for one in dataclasses.fields(tasks.ReleaseImportRequest)]
        release = tasks.ReleaseImportRequest(*(getattr(imported, one) for one in names))
        with pytest.raises(ValueError, match="importer 3 is not this endpoint, 4"):
            importer.release(dataclasses.replace(release, importer_endpoint_id=HERE))
        for wrong in ({"generation": release.generation + 1}, {"import_id": 7}):
            with pytest.raises(KeyError, match="is not a live import of endpoint 4"):
                importer.release(dataclasses.replace(release, **wrong))
        importer.release(release)
        assert importer.counts()["imports"] == 0
    finally:
        mover.close()
