"""HIER-API: the names a program uses."""

import ast
import importlib
import inspect
import re

import numpy as np
import pytest

from simpler_ref import RunTiming, Worker, callable_identity, task_interface
from simpler_ref.jit import layout as L
from simpler_ref.orchestrator import Orchestrator
from simpler_ref.task_interface import TensorArgType as T
from tests.spec_rules import tables
from tests.support import make_args

NAMES = [(module, n) for module, names in tables("HIER-API")[0] for n in re.findall(r"\w+", names)]
CALLS = [
    (kind, call)
    for row in tables("HIER-API")[1]
    for kind, call in zip((Worker, Orchestrator), row, strict=True)
]


@pytest.mark.spec("HIER-API-1")
@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_module_has_the_names_of_the_table(module, name):
    """Under each name stands what it names, and it comes with ``from module import *``, too."""
    there = importlib.import_module(f"simpler_ref.{module}")
    found = getattr(there, name)
    if name.isupper():
        assert isinstance(found, (int, str))
    elif name[0].isupper():
        assert inspect.isclass(found)
        assert found.__name__ == name
    else:
        assert inspect.isfunction(found)
        assert found.__name__ == name
    assert name in getattr(there, "__all__", [name])


@pytest.mark.spec("HIER-API-1")
def test_the_names_have_the_values_that_the_engine_uses():
    assert task_interface.CONTINUOUS_TENSOR_MAX_DIMS == 5
    assert task_interface.MAX_REGISTERED_CALLABLE_IDS == L.MAX_REGISTERED_CALLABLE_IDS
    assert task_interface.RunTiming is RunTiming
    names = [task_interface.arg_direction_name(i) for i in range(4)]
    assert names == ["SCALAR", "IN", "OUT", "INOUT"]
    assert callable_identity.CALLABLE_HASH_DIGEST_BYTES == 32
    assert callable_identity.CALLABLE_DESCRIPTOR_SCHEMA_VERSION == 1
    assert task_interface.COMM_MAX_RANK_NUM == 64
    for names, one in (
        ("CALLABLE_KIND", "CallableKind"),
        ("TARGET_NAMESPACE", "TargetNamespaceName"),
    ):
        kind = getattr(callable_identity, one)
        members = [
            value for name, value in vars(callable_identity).items() if name.startswith(names)
        ]
        assert set(members) == set(kind) and len(members) == 3


@pytest.mark.spec("HIER-API-2")
@pytest.mark.parametrize(("kind", "call"), CALLS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_method_has_the_parameters_of_the_table(kind, call):
    (wanted,) = ast.parse(f"def {call}: ...").body
    names = [one.arg for one in wanted.args.args]
    defaults = [ast.literal_eval(value) for value in wanted.args.defaults]
    only_by_name = {
        one.arg: ast.literal_eval(value)
        for one, value in zip(wanted.args.kwonlyargs, wanted.args.kw_defaults, strict=True)
    }
    _, *there = inspect.signature(getattr(kind, wanted.name)).parameters.values()
    by_position = [one for one in there if one.kind is one.POSITIONAL_OR_KEYWORD]
    assert [one.name for one in by_position] == names
    assert [one.default for one in by_position][len(names) - len(defaults) :] == defaults
    assert {one.name: one.default for one in there if one.kind is one.KEYWORD_ONLY} == only_by_name


@pytest.mark.spec("HIER-API-4")
def test_run_returns_two_times_and_what_there_was():
    with Worker(3, num_sub_workers=1) as w:
        x = w.share(np.zeros(1, np.int64))
        add = w.register(lambda args: np.add(x, 1, out=x))

        def orch_fn(orch, args, config):
            orch.alloc((5000,), np.uint8)
            for _ in range(3):
                orch.submit_sub(add, make_args((x, T.INOUT)))

        timing = w.run(orch_fn)
        assert timing.host_wall_ns > 0
        assert timing.device_wall_ns == 0, "there is no chip"
        assert (timing.tasks, timing.edges) == (4, 2)
        assert timing.ring_peak_bytes == (5 * 1024, 0, 0, 0)
    timing, nothing = RunTiming(1500, 250, 4, 2, (1024,)), RunTiming()
    assert (*timing, timing.host_wall_us, timing.device_wall_us) == (1500, 250, 1.5, 0.25)
    assert (*nothing, nothing.tasks, nothing.edges, nothing.ring_peak_bytes) == (0, 0, 0, 0, ())
    with pytest.raises(AttributeError):
        timing.tasks = 5
