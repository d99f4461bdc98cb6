"""FLAG-DUMP: arguments."""

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType, TaskArgs
from simpler_ref import TensorArgType as T

from .conftest import make

NAMES = {
    *("task_id", "func_id", "role", "stage", "arg_index", "kind", "dtype", "shape", "strides"),
    *("start_offset", "is_contiguous", "truncated", "overwritten", "bin_offset", "bin_size"),
}
BEFORE, AFTER = "before_dispatch", "after_completion"


def shift(args):
    """Write the first tensor, plus the first scalar, into the second; add 1 to the third."""
    args.tensor(1).numpy()[:] = args.tensor(0).numpy() + args.scalar(0)
    args.tensor(2).numpy()[:] += 1


def nothing(args):
    pass


def program(mark):
    def build(orch, x, handle):
        x[:] = np.arange(24).reshape(4, 6)
        out = ContinuousTensor.make(0, (6,), DataType.INT64)
        args = make((x[0], T.INPUT), (out, T.OUTPUT), (x[1], T.INOUT))
        args.add_scalar(100)
        args.add_scalar(2.5)
        mark(args, x)
        orch.submit_sub(handle, args)

    return build


def seen(files):
    """Return each entry as stage, number, role and elements."""
    return [
        (one["stage"], one["arg_index"], one["role"], files.elements(one).tolist())
        for one in sorted(files.dump["args"], key=lambda a: (a["stage"] == AFTER, a["arg_index"]))
    ]


READ, WRITTEN = list(range(6)), list(range(100, 106))
OLD, NEW = list(range(6, 12)), list(range(7, 13))


@pytest.mark.spec("FLAG-DUMP-1")
def test_what_is_read_is_dumped_before_and_what_is_written_after(flagged):
    files = flagged(program(lambda *_: None), shift, enable_dump_tensor=2)
    assert seen(files) == [
        *((BEFORE, 0, "input", READ), (BEFORE, 2, "inout", OLD), (BEFORE, 3, "input", 100)),
        *((BEFORE, 4, "input", 2.5), (AFTER, 1, "output", WRITTEN), (AFTER, 2, "inout", NEW)),
    ]
    manifest = files.dump
    for one in manifest["args"]:
        assert set(one) == NAMES | ({"value"} if one["kind"] == "scalar" else set())
    assert [one["value"] for one in manifest["args"] if "value" in one] == [100, 2.5]
    assert all(one["task_id"] == "0x0" and one["func_id"] == 0 for one in manifest["args"])
    assert not any(one["truncated"] or one["overwritten"] for one in manifest["args"])
    assert [one["dtype"] for one in manifest["args"]].count("INT64") == 5
    assert (manifest["bin_file"], manifest["dump_tensor_level"]) == ("args.bin", 2)
    assert [manifest[f"total_{one}"] for one in ("args", "tensors", "scalars")] == [6, 4, 2]


@pytest.mark.spec("FLAG-DUMP-1")
def test_members_of_a_group_have_the_numbers_of_the_whole_task(flagged):
    def build(orch, x, handle):
        x[:] = 7
        orch.submit_sub(handle, make((x[0], T.NO_DEP), (x[1], T.OUTPUT_EXISTING)))
        orch.submit_sub_group(handle, [make((x[i], T.INOUT)) for i in range(2)])

    entries = seen(flagged(build, nothing, child_mode="process", enable_dump_tensor=2))
    assert all(elements == [7] * 6 for *_, elements in entries)
    assert [one[:3] for one in entries if one[2] != "inout"] == [
        (BEFORE, 0, "input"),  # of NO_DEP
        (AFTER, 1, "output"),
    ]
    of_group = [one[:2] for one in entries if one[2] == "inout"]
    assert of_group == [(stage, i) for stage in (BEFORE, AFTER) for i in range(2)]


@pytest.mark.spec("FLAG-DUMP-1")
@pytest.mark.parametrize("level", [2, 3])
def test_scalars_of_a_group_follow_the_tensors_of_all_members(flagged, level):
    def build(orch, x, handle):
        members = [make((x[i], T.INOUT)) for i in range(2)]
        for i, args in enumerate(members):
            for value in (-5 - i, 0.5 + i):
                args.add_scalar(value)
        orch.submit_sub_group(handle, members)

    files = flagged(build, nothing, child_mode="process", enable_dump_tensor=level)
    scalars = {one["arg_index"]: one["value"] for one in files.dump["args"] if "value" in one}
    assert scalars == {2: -5, 3: 0.5, 4: -6, 5: 1.5}


@pytest.mark.spec("FLAG-DUMP-1")
def test_element_types_beyond_the_documents_have_numpys_name_in_capital_letters(flagged):
    def build(orch, x, handle):
        views = (x.view(np.float64)[0], x.view(np.complex128)[1], x.view("S8")[2])
        orch.submit_sub(handle, make(*((one, T.INPUT) for one in views)))

    files = flagged(build, nothing, enable_dump_tensor=2)
    assert [one["dtype"] for one in files.dump["args"]] == ["FLOAT64", "COMPLEX128", "|S8"]


@pytest.mark.spec("FLAG-DUMP-2")
@pytest.mark.parametrize(
    ("mark", "found"),
    [
        (lambda args, x: args.dump(0, 2), [(BEFORE, 0), (BEFORE, 2), (AFTER, 2)]),
        (lambda args, x: args.dump(x[0], x[1]), [(BEFORE, 0), (BEFORE, 2), (AFTER, 2)]),
        (lambda args, x: args.dump(), [(BEFORE, 0), (BEFORE, 2), (AFTER, 1), (AFTER, 2)]),
        (lambda *_: None, []),
    ],
)
def test_only_marked_tensors_are_dumped_at_level_1(flagged, mark, found):
    files = flagged(program(mark), shift, enable_dump_tensor=1)
    assert ([one[:2] for one in seen(files)], files.dump["total_scalars"]) == (found, 0)


@pytest.mark.spec("FLAG-DUMP-2")
def test_a_mark_on_what_is_not_there_is_refused():
    args = make((ContinuousTensor.make(64, (4,), DataType.UINT8), T.INPUT))
    before = list(args._tensors)
    with pytest.raises(IndexError, match="tensor index 1 is out of range: there are 1"):
        args.dump(0, 1)
    with pytest.raises(ValueError, match="not among these arguments: add it before dump"):
        args.dump(ContinuousTensor.make(128, (4,), DataType.UINT8))
    with pytest.raises(TypeError):
        args.dump("first")
    assert args._tensors == before
    TaskArgs().dump()  # all of none


@pytest.mark.spec("FLAG-DUMP-3")
def test_views_are_dumped_row_by_row_and_an_address_that_is_only_a_key_not(flagged):
    def build(orch, x, handle):
        x[:] = np.arange(24).reshape(4, 6)
        key = ContinuousTensor.make(0xDEADBEEF00, (4,), DataType.UINT8)
        views = (x[:, ::2], x[::-1, 1], x[0])
        orch.submit_sub(handle, make((key, T.INPUT), *((one, T.INPUT) for one in views)))

    files = flagged(build, nothing, enable_dump_tensor=2)
    whole = np.arange(24).reshape(4, 6)
    key, first, second, row = files.dump["args"]
    assert (key["truncated"], key["bin_size"], files.dump["truncated_args"]) == (True, 0, 1)
    assert files.elements(first).tolist() == whole[:, ::2].tolist()
    assert files.elements(second).tolist() == whole[::-1, 1].tolist()
    assert (first["strides"], first["start_offset"], first["is_contiguous"]) == ([6, 2], 0, False)
    assert (second["strides"], second["start_offset"]) == ([-6], 18)
    assert (row["truncated"], files.elements(row).tolist()) == (False, whole[0].tolist())


@pytest.mark.spec("FLAG-DUMP-1")
def test_level_3_has_the_same_without_bytes_and_leaves_none_of_an_earlier_run(flagged):
    told = []
    for level in (2, 3):
        files = flagged(program(lambda *_: None), shift, enable_dump_tensor=level)
        entries = sorted(files.dump["args"], key=lambda one: (one["stage"], one["arg_index"]))
        told.append([one | {"bin_offset": 0, "bin_size": 0} for one in entries])
    assert told[0] == told[1] and files.dump["bin_file"] is None
    assert all(one["bin_size"] == 0 for one in files.dump["args"])
    assert "args_dump/args.bin" not in files.names()
