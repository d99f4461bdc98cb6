"""REMOTE-MEM: memory of endpoints."""

import json
import sys

import numpy as np
import pytest

from simpler_ref import ControlError, RemoteBufferHandle, RemoteTensorRef, RemoteWorkerSpec, Worker
from simpler_ref.remote import ProcessFleet
from tests import far_side
from tests.endpoints import COUNT, EXISTING, INOUT, INPUT, program, reference


@pytest.mark.spec("REMOTE-MEM-1")
def test_all_tasks_of_an_endpoint_and_their_workers_see_its_memory(two):
    two.handle(far_side.bump, inner=True)
    buffer = two.buffer(two.ids[1], np.arange(COUNT))
    assert isinstance(buffer, RemoteBufferHandle)
    assert (buffer.worker, buffer.owner, buffer.nbytes) == (two.ids[1], two.ids[1], 4 * COUNT)
    two.run(
        (far_side.add_one, two.args((buffer, INOUT))),
        (far_side.bump_there, two.args((buffer, INOUT))),
    )
    assert np.array_equal(two.values(buffer), np.arange(COUNT) + 2)


@pytest.mark.spec("REMOTE-MEM-1")
def test_tensors_depend_on_each_other_by_where_they_are(two):
    first, other = two.buffer(two.ids[0], np.zeros(2)), two.buffer(two.ids[1], np.zeros(2))
    assert first.generation != other.generation
    imported = two.worker.remote_import(two.worker.remote_export(first), worker=two.ids[1])
    tasks = []
    for _ in range(5):  # in turns on both endpoints: each adds to what the one before has left
        tasks.append((far_side.add_one, two.args((first, INOUT))))
        tasks.append((far_side.add_one, two.args((imported, INOUT))))
    two.run(*tasks)
    assert two.values(first).tolist() == [10, 10]


@pytest.mark.spec("REMOTE-MEM-2")
def test_what_was_released_or_freed_is_refused(two):
    buffer = two.buffer(two.ids[0], np.zeros(4))
    imported = two.worker.remote_import(two.worker.remote_export(buffer), worker=two.ids[1])
    two.worker.remote_release_import(imported)
    with pytest.raises(ValueError, match="freed or released"):
        two.worker.remote_release_import(imported)
    assert two.values(buffer).tolist() == [0] * 4
    tensor = reference(buffer)
    two.worker.remote_free(buffer)
    for use in (
        lambda: two.worker.remote_free(buffer),
        lambda: two.values(buffer),
        lambda: reference(buffer),
        lambda: two.worker.remote_export(buffer),
        lambda: two.run((far_side.add_one, two.args((tensor, INOUT)))),
    ):
        with pytest.raises(ValueError, match="freed or released"):
            use()


@pytest.mark.long
@pytest.mark.spec("REMOTE-MEM-2")
def test_a_buffer_of_another_worker_is_refused_and_stays_its_owners(two):
    buffer = two.buffer(two.ids[0], np.ones(4))
    with Worker(level=4) as other:
        other.add_remote_worker(RemoteWorkerSpec())
        for start in (lambda: None, other.start):
            start()
            for use in (other.remote_free, other.remote_export):
                with pytest.raises(ValueError, match="is another Worker's"):
                    use(buffer)
    assert two.values(buffer).tolist() == [1] * 4
    two.worker.remote_free(buffer)


@pytest.mark.spec("REMOTE-MEM-3")
def test_a_part_is_imported_with_the_access_that_both_name(two):
    buffer = two.buffer(two.ids[0], np.arange(8))
    exported = two.worker.remote_export(buffer, offset=8, nbytes=16, access="read")
    for more in ("write", "readwrite"):
        with pytest.raises(ValueError, match=rf"access='{more}' is more than was exported, 'read'"):
            two.worker.remote_import(exported, worker=two.ids[1], access=more)
    for offset in (buffer.nbytes, buffer.nbytes + 1):
        with pytest.raises(
            ValueError, match=rf"offset={offset} is not in .*: give one below {buffer.nbytes}"
        ):
            two.worker.remote_export(buffer, offset=offset)
    imported = two.worker.remote_import(exported, worker=two.ids[1])
    assert (imported.offset, imported.nbytes, imported.access) == (8, 16, 1)
    with pytest.raises(ValueError, match="write access"):
        two.run((far_side.add_one, two.args((imported, INOUT))))
    with pytest.raises(ValueError, match="not all in"):
        RemoteTensorRef(imported, 8, (3,), np.float32)
    for wrong in ("", 7, None, ["read"]):
        with pytest.raises(ValueError, match=r"access=.* 'read', 'write', 'readwrite'"):
            two.worker.remote_export(buffer, access=wrong)
    with pytest.raises(ValueError, match="its own handle"):
        two.worker.remote_import(exported, worker=two.ids[0])
    target = two.buffer(two.ids[1], np.zeros(4))
    two.run((far_side.copy, two.args((imported, INPUT), (target, EXISTING))))
    assert two.values(target).tolist() == [2, 3, 4, 5]


@pytest.mark.spec("REMOTE-MEM-4")
def test_bytes_move_between_the_two_endpoints_when_tasks_read_and_write(two):
    before, size = two.worker.transfers(), 1 << 20
    values = np.arange(size, dtype=np.float32)
    source, target = two.buffer(two.ids[0], values), two.buffer(two.ids[0], np.zeros(size))
    here = [
        two.worker.remote_import(two.worker.remote_export(one), worker=two.ids[1])
        for one in (source, target)
    ]
    two.run(
        (far_side.add_one, two.args((source, INOUT))),
        (far_side.copy, two.args((here[0], INPUT), (here[1], EXISTING))),
        (far_side.add_one, two.args((target, INOUT))),
    )
    assert np.array_equal(two.values(target), values + 2)
    after = two.worker.transfers()
    moved = [after[i]["bytes_in"] - before[i]["bytes_in"] for i in range(2)]
    assert moved == [0, values.nbytes]
    assert after[1]["bytes_out"] - before[1]["bytes_out"] == values.nbytes


@pytest.mark.spec("REMOTE-MEM-5")
def test_parts_are_copied_at_offsets_and_none_that_is_not_there(two):
    buffer = two.buffer(two.ids[0], np.arange(300_000))  # more than one part
    array = np.array([7, 8], np.float32)
    two.worker.remote_copy_to(buffer, array.ctypes.data, 8, offset=400_000)
    expected = np.arange(300_000, dtype=np.float32)
    expected[100_000:100_002] = 7, 8
    assert np.array_equal(two.values(buffer), expected)
    two.worker.remote_copy_from(buffer, array.ctypes.data, 8, offset=4)
    assert array.tolist() == [1, 2]
    for offset, nbytes in ((0, 1_200_001), (1_200_000, 1), (1 << 62, 8)):
        with pytest.raises(ValueError):
            two.worker.remote_copy_to(buffer, array.ctypes.data, nbytes, offset=offset)
    for copies in (two.worker.remote_copy_to, two.worker.remote_copy_from):
        for address in (4096, (1 << 64) - 8):
            with pytest.raises(ValueError, match=f"host_ptr={address:#x}: this process has no 8"):
                copies(buffer, address, 8)
    assert np.array_equal(two.values(buffer), expected)


@pytest.mark.spec("REMOTE-MEM-5")
@pytest.mark.parametrize(
    ("is_shared", "nbytes"),
    [(True, (1 << 16) - 1), (False, 1 << 16), (True, (1 << 16) + 1), (False, (2 << 20) + 3)],
)
def test_large_parts_move_in_chunks(two, is_shared, nbytes):
    worker = two.worker
    there = worker.remote_malloc(worker=two.ids[1], nbytes=nbytes + 8)
    make = worker.zeros if is_shared else np.zeros
    array, back = make(nbytes + 8, np.uint8), make(nbytes + 8, np.uint8)
    array[:] = np.arange(nbytes + 8) % 251
    for _ in range(2):
        worker.remote_copy_to(there, array[8:].ctypes.data, nbytes, offset=3)
        worker.remote_copy_from(there, back[1:].ctypes.data, nbytes, offset=3)
        assert np.array_equal(back[1 : nbytes + 1], array[8:])
        assert not back[0] and not back[nbytes + 1 :].any()
        array[:] += 1
    worker.remote_free(there)
    assert worker.transfers()[two.ids[1]]["exports"] == 0


@pytest.mark.spec("REMOTE-MEM-6")
def test_an_export_names_where_its_owner_is_reached(tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    hosts = ["127.0.0.2", "127.0.0.3"]
    fleet = ProcessFleet(hosts, python=sys.executable, interface="0.0.0.0", ssh=[str(ssh)])
    with program(fleet=fleet, modules=["tests"]) as two:
        there = two.buffer(two.ids[0], np.arange(3))
        exported = two.worker.remote_export(there)
        about = json.loads(exported.result.transport_descriptor)
        assert about["address"].startswith("tcp://127.0.0.2:")
        here = two.worker.remote_import(exported, worker=two.ids[1])
        two.run((far_side.add_one, two.args((here, INOUT))))
        assert two.values(there).tolist() == [1, 2, 3]


@pytest.mark.spec("REMOTE-MEM-1")
def test_an_endpoint_without_room_says_so(two):
    with pytest.raises(ControlError, match="no room"):
        two.worker.remote_malloc(worker=two.ids[0], nbytes=1 << 39)
    for wrong in (0, -1, "4", None):
        with pytest.raises((ValueError, TypeError), match="nbytes"):
            two.worker.remote_malloc(worker=two.ids[0], nbytes=wrong)
    with pytest.raises(ValueError, match="no endpoint"):
        two.worker.remote_malloc(worker=9, nbytes=4)
