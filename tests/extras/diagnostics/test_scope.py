"""FLAG-SCOPE: scopes."""

import numpy as np
import pytest

from simpler_ref import TensorArgType as T

from .conftest import flagging, make

COUNTERS = ("task_window", "heap", "dep_pool")
ALIGN = 1024


def program(orch, x, handle):
    """Hold two buffers in a scope, the second in one within it; then do the same once more."""
    for _ in range(2):
        with orch.scope():
            first = orch.alloc((4,), np.int64)
            orch.submit_sub(handle, make((first, T.INOUT)))
            with orch.scope():
                second = orch.alloc((ALIGN + 1,), np.uint8)
                orch.submit_sub(handle, make((first, T.INPUT), (second, T.INOUT)))
            orch.submit_sub(handle, make((first, T.INOUT)))
        orch.drain()


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    with flagging(lambda args: None) as run:
        return run(program, tmp_path_factory.mktemp("scopes"), enable_scope_stats=1).scopes


@pytest.mark.spec("FLAG-SCOPE-1")
def test_the_first_line_has_what_was_held_at_most(lines):
    first = lines[0]
    assert first == {
        "version": 6,
        "fatal": False,
        "dropped": 0,
        "total": 10,
        "task_window_max": [0, 3, 2, 0],
        "heap_max": [0, ALIGN, 2 * ALIGN, 0],
        "dep_pool_max": first["dep_pool_max"],
        "tensormap_max": 2,
    }
    assert len(lines) == 11
    # task 1 needs the first buffer's, task 3 the second's and task 1; task 4 task 1 and the buffer
    assert first["dep_pool_max"] == [0, 3, 3, 0]


@pytest.mark.spec("FLAG-SCOPE-2")
def test_each_boundary_has_its_line_depth_and_ring(lines):
    once = [("begin", 1), ("begin", 2), ("end", 2), ("end", 1)]
    phases = [(one["phase"], one["depth"]) for one in lines[1:]]
    assert phases == [("begin", 0), *once, *once, ("end", 0)]
    assert all(one["ring"] == one["depth"] for one in lines[1:])
    names = {"site", "phase", "depth", "ring", "tensormap"}
    names |= {f"{one}_{end}" for one in COUNTERS for end in ("start", "end")}
    assert all(set(one) == names for one in lines[1:])
    file, first = program.__code__.co_filename, program.__code__.co_firstlineno
    assert lines[2]["site"] == lines[6]["site"] == f"{file}:{first + 3}"
    assert lines[3]["site"] == f"{file}:{first + 6}"
    assert lines[1]["site"] == lines[-1]["site"] and ":" in lines[1]["site"]


@pytest.mark.spec("FLAG-SCOPE-2")
def test_counters_grow_and_say_what_is_held(lines):
    for ring in (0, 1, 2):
        mine = [one for one in lines[1:] if one["ring"] == ring]
        for name in COUNTERS:
            for end in ("start", "end"):
                values = [one[f"{name}_{end}"] for one in mine]
                assert values == sorted(values)
            assert all(one[f"{name}_start"] <= one[f"{name}_end"] for one in mine)
    outer = [one for one in lines[1:] if one["ring"] == 1]
    inner = [one for one in lines[1:] if one["ring"] == 2]
    assert [one["task_window_end"] for one in outer] == [0, 3, 3, 6]
    assert [one["heap_end"] for one in inner] == [0, 2 * ALIGN, 2 * ALIGN, 4 * ALIGN]
    assert outer[2]["task_window_start"] == 3 and outer[2]["heap_start"] == ALIGN
    assert lines[1]["tensormap"] == 0 and lines[3]["tensormap"] == 1 and lines[4]["tensormap"] == 2
