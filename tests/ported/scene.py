"""Scenes of a chip and of several tasks; the golden function is a module beside the program."""

import numpy as np
from simpler.task_interface import ArgDirection as D
from simpler_setup import Scalar, SceneTestCase, TaskArgsBuilder, Tensor, scene_test
from simpler_setup.goldens.sums import compute_golden as golden_of
from simpler_setup.scene_test import _build_l3_task_args

SIGNATURE = [D.IN, D.IN, D.OUT]
ADD = {
    "orchestration": {
        "source": "sources/launch.cpp",
        "function_name": "aicpu_orchestration_entry",
        "signature": SIGNATURE,
    },
    "incores": [{"func_id": 0, "source": "sources/plain.cpp", "core_type": "aiv", "signature": ()}],
}


def run_dag(orch, callables, task_args, config):
    args, outputs = _build_l3_task_args(task_args, callables.add_sig)
    assert outputs == ["f"] and task_args.factor == 1
    callables.keep(args)
    orch.submit_next_level(callables.add, args, config, worker=0)


class Sums(SceneTestCase):
    CASES = [{"name": "small", "platforms": ["a2a3sim"], "params": {"size": 64}}]

    def generate_args(self, params):
        values = np.arange(params["size"], dtype=np.float32)
        args = TaskArgsBuilder(
            Tensor("a", values),
            Tensor("b", values + 1),
            Tensor("f", values * 0),
            Scalar("factor", 1),
        )
        assert args.a is values and args.factor == 1
        return args

    def compute_golden(self, args, params):
        tensors = {one.name: one.value for one in args.specs if isinstance(one, Tensor)}
        golden_of(tensors, params)


@scene_test(level=2, runtime="host_build_graph")
class TestOneChip(Sums):
    CALLABLE = ADD


@scene_test(level=3, runtime="tensormap_and_ringbuffer")
class TestSeveralTasks(Sums):
    CALLABLE = {"orchestration": run_dag, "callables": [{"name": "add", **ADD}]}


if __name__ == "__main__":
    SceneTestCase.run_module(__name__)
