"""FLAG-DEPS: the graph."""

import numpy as np
import pytest

from simpler_ref import ContinuousTensor, DataType
from simpler_ref import TensorArgType as T

from .conftest import make

N = 4


def cholesky():
    """Yield the tasks of a tiled Cholesky factorisation: function, and what it reads and writes."""
    for k in range(N):
        yield "potrf", [], (k, k)
        for i in range(k + 1, N):
            yield "trsm", [(k, k)], (i, k)
        for i in range(k + 1, N):
            for j in range(k + 1, i + 1):
                yield "gemm", [(i, k), (j, k)] if i != j else [(i, k)], (i, j)


def potrf(args): ...
def trsm(args): ...
def gemm(args): ...


def expected():
    """Return the edges by the rule of last writers: consumer, its argument, producer."""
    last, edges = {}, set()
    for number, (_, reads, writes) in enumerate(cholesky()):
        for index, one in enumerate([*reads, writes]):
            if one in last:
                edges.add((number, index, last[one]))
        last[writes] = number
    return edges


@pytest.mark.spec("FLAG-DEPS-1", "FLAG-DEPS-3")
def test_the_edges_of_a_cholesky_are_those_of_last_writers(flagged):
    def build(orch, x, *handles):
        named = dict(zip(("potrf", "trsm", "gemm"), handles, strict=True))
        for name, reads, (i, j) in cholesky():
            pairs = [(x[m, n : n + 1], T.INPUT) for m, n in reads]
            orch.submit_sub(named[name], make(*pairs, (x[i, j : j + 1], T.INOUT)))

    files = flagged(build, potrf, trsm, gemm, enable_dep_gen=1)
    deps, called = files.deps, [name for name, *_ in cholesky()]
    assert set(deps) == {"tasks", "tensors", "edges"}
    found = [(int(one["succ"]), one["arg"], int(one["pred"])) for one in deps["edges"]]
    assert len(found) == len(set(found)) and set(found) == expected()
    assert all(one["source"] == "tensormap" for one in deps["edges"])
    assert all(one["overlap"] == "covered" for one in deps["edges"])
    known = files.json("name_map_main.json")["callable_id_to_name"]
    kernels = [one["kernel_ids"] for one in deps["tasks"]]
    assert [known[str(second)] for _, second, _ in kernels] == called
    assert all((first, third) == (-1, -1) for first, _, third in kernels)
    assert [one["task_id"] for one in deps["tasks"]] == [str(i) for i in range(len(called))]
    assert {one["scope"] for one in deps["tasks"]} == {"auto"}
    assert len(deps["tensors"]) == N * (N + 1) // 2


@pytest.mark.spec("FLAG-DEPS-2")
def test_tensors_are_described_and_share_buffers_by_address(flagged):
    address = []

    def build(orch, x, handle):
        address.append(x.ctypes.data)
        orch.submit_sub(handle, make((x, T.INOUT)))
        orch.submit_sub(handle, make((x[:, ::2], T.INPUT), (x[::-1, 1:3], T.INOUT)))
        cube = ContinuousTensor.make(x.ctypes.data, (2, 1, 2, 3, 2), DataType.INT64)
        orch.submit_sub(handle, make((cube, T.INPUT), (x[1], T.INOUT)))

    deps = flagged(build, enable_dep_gen=1).deps
    args = [one for task in deps["tasks"] for one in task["args"]]
    told = [
        (one["idx"], one["type"], one["dtype"], one["shape"], one["start_offset"], one["strides"])
        for one in args
    ]
    assert told == [
        (0, "INOUT", "INT64", [4, 6], "0", [6, 1]),
        (0, "INPUT", "INT64", [4, 3], "0", [6, 2]),
        (1, "INOUT", "INT64", [4, 2], "18", [-6, 1]),
        (0, "INPUT", "INT64", [2, 1, 2, 3, 2], "0", [12, 12, 6, 2, 1]),
        (1, "INOUT", "INT64", [6], "0", [1]),
    ]
    buffers = {one["tensor_id"]: one for one in deps["tensors"]}
    whole, view, upside_down, cube, row = (buffers[one["tensor_id"]] for one in args)
    assert whole is view is cube
    assert whole == {
        "tensor_id": args[0]["tensor_id"],
        "buffer_addr": str(address[0]),
        "version": 0,
        "dtype": "INT64",
        "buffer_numel": "24",
    }
    assert upside_down["buffer_addr"] == str(address[0] + 8)
    assert row["buffer_addr"] == str(address[0] + 48)


@pytest.mark.spec("FLAG-DEPS-2")
def test_memory_that_is_handed_out_anew_has_another_version(flagged):
    def build(orch, x, handle):
        for _ in range(2):
            with orch.scope():
                buffer = orch.alloc((4,), np.int64)
                orch.submit_sub(handle, make((buffer, T.INOUT)))
            orch.drain()

    first, second = flagged(build, enable_dep_gen=1).deps["tensors"]
    assert first["buffer_addr"] == second["buffer_addr"]
    assert (first["version"], second["version"]) == (0, 1)


@pytest.mark.spec("FLAG-DEPS-1", "FLAG-DEPS-3")
def test_edges_to_memory_come_from_its_creator(flagged):
    def build(orch, x, handle):
        buffer = orch.alloc((4,), np.int64)
        orch.submit_sub(handle, make((buffer, T.INOUT)))
        orch.submit_sub(handle, make((x, T.INPUT), (buffer, T.INOUT)))

    deps = flagged(build, enable_dep_gen=1).deps
    assert [one["kernel_ids"][1] for one in deps["tasks"]] == [-1, 0, 0]
    edges = {(one["pred"], one["succ"], one["arg"], one["source"]) for one in deps["edges"]}
    creator = {("0", "1", 0, "creator"), ("0", "2", 1, "creator")}
    assert edges == {("1", "2", 1, "tensormap")} | creator
    mine = {"dtype", "shape", "start_offset", "strides"}
    for one in deps["edges"]:
        names = {"pred", "succ", "arg", "source", "tensor_id"} | {f"consumer_{n}" for n in mine}
        if one["source"] == "tensormap":
            names |= {"overlap"} | {f"producer_{name}" for name in mine}
        assert (set(one), one["consumer_shape"], one["consumer_strides"]) == (names, [4], [1])
