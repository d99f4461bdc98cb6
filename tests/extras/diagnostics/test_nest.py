"""FLAG-NEST: tasks with flags."""

import numpy as np
import pytest

from simpler_ref import TensorArgType as T
from simpler_ref import Worker
from tests import far_side
from tests.endpoints import INOUT, program

from .conftest import ALL, Files, increase, make


def tree(children, leaf=increase):
    """Return a Worker with children, and their handles of a function."""
    w = Worker(4, num_sub_workers=1)
    below = [Worker(3, num_sub_workers=1) for _ in range(children)]
    handles = [one.register(leaf) for one in below]
    for one in below:
        w.add_worker(one)
    return w, handles


@pytest.mark.spec("FLAG-NEST-1")
def test_flags_of_a_task_hold_for_the_childs_run(tmp_path):
    mine, theirs = Files(tmp_path / "mine"), Files(tmp_path / "theirs")
    w, (inner,) = tree(1)

    def child(orch, args, config):
        for i in range(args.tensor_count()):
            orch.submit_sub(inner, make((args.tensor(i), T.INOUT)))

    def main(orch, *_):
        args = make((x[0], T.INOUT), (x[1], T.INOUT))
        orch.submit_next_level(below, args, theirs.config(**ALL))
        orch.submit_sub(plain, make((x[2], T.INOUT)))
        orch.submit_next_level(below, make((x[2], T.INOUT)))

    with w:
        x = w.zeros((3, 4), np.int64)
        below, plain = w.register(child), w.register(increase)
        w.run(main, None, mine.config(**ALL))
        assert x.tolist() == [[1] * 4, [1] * 4, [2] * 4]
    assert [one["args"][0]["shape"] for one in theirs.deps["tasks"]] == [[4], [4]]
    assert theirs.json("name_map_child.json")["level"] == 3
    assert sorted(one[1] for one in theirs.swimlane["aicore_tasks"]) == [0, 1]
    assert theirs.swimlane["metadata"]["num_cores"] == 1
    assert len(theirs.pmu) == 2 and len(theirs.dump["args"]) == 4
    assert mine.json("name_map_main.json")["level"] == 4
    assert [len(one["args"]) for one in mine.deps["tasks"]] == [2, 1, 1]
    assert sorted(one[1] for one in mine.swimlane["aicore_tasks"]) == [0, 1, 2]
    assert [one["task_id"] for one in mine.pmu] == ["0x1"]  # tasks of children have their own flags
    assert {one["task_id"] for one in mine.dump["args"]} == {"0x1"}


@pytest.mark.spec("FLAG-NEST-1")
def test_of_tasks_with_one_prefix_whole_files_remain(tmp_path):
    files = Files(tmp_path / "out")
    w, inner = tree(2, lambda args: None)

    def child(orch, args, config):
        for i in range(args.tensor_count()):
            try:
                orch.submit_sub(inner[0], make((args.tensor(i), T.INPUT)))
            except KeyError:  # it is the other child
                orch.submit_sub(inner[1], make((args.tensor(i), T.INPUT)))

    def main(orch, *_):
        flags = {"enable_dump_tensor": 2, "enable_dep_gen": 1, "enable_scope_stats": 1}
        for i in range(8):
            args = make(*((row, T.INPUT) for row in x[: 2 + i % 2]))
            orch.submit_next_level(below, args, files.config(**flags))

    with w:
        x, below = w.share(np.repeat([[1], [2], [3]], 4, axis=1)), w.register(child)
        w.run(main)
    assert len(files.deps["tasks"]) in (2, 3)
    assert files.scopes[0]["total"] == 2 and len(files.scopes) == 3
    raw = (files.folder / "args_dump" / "args.bin").read_bytes()
    entries = files.dump["args"]
    assert len(entries) in (2, 3)
    assert sum(one["bin_size"] for one in entries) == len(raw)
    for i, one in enumerate(sorted(entries, key=lambda one: int(one["task_id"], 16))):
        assert files.elements(one).tolist() == 4 * [i + 1]


@pytest.mark.spec("FLAG-NEST-1")
def test_an_endpoint_writes_the_files_of_its_task_where_it_is(tmp_path):
    files = Files(tmp_path / "out")
    with program(endpoints=1, num_sub_workers=1) as made:
        buffer, handle = made.buffer(0, np.arange(4)), made.handle(far_side.add_one)

        def orch_fn(orch, args, config):
            orch.submit_next_level(handle, made.args((buffer, INOUT)), files.config(**ALL))

        made.worker.run(orch_fn)
        assert made.values(buffer).tolist() == [1, 2, 3, 4]
        made.worker.run(lambda orch, *_: orch.submit_next_level(handle, made.args((buffer, INOUT))))
    names = [one for one in files.names() if one.startswith("name_map")]
    assert [files.json(one)["level"] for one in names] == [3]
    assert files.scopes[0]["total"] == 2 and files.swimlane["l2_swimlane_level"] == 4
