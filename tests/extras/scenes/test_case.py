"""SCENE-CASE: what a scene is."""

import numpy as np
import pytest

from simpler_ref.extras.scenes import Scalar, TaskArgsBuilder, Tensor, scene_test
from simpler_ref.extras.scenes.plugin import RunOptions

from .programs import FROM_SOURCES, Adding, FromSources, OverTwoKinds, add

OPTIONS = RunOptions()


def outcome_of(scene, options=OPTIONS):
    (case,) = scene.cases()
    return scene().run_case(case, options)


def with_case(scene, **entries):
    """Return the scene with another case."""
    case = {"name": "other", "params": {"size": 10}} | entries
    return type(scene.__name__, (scene,), {"CASES": [case]})


OfAKernel = scene_test(level=2)(type("OfAKernel", (Adding,), {"CALLABLE": {"kernel": add}}))


@pytest.mark.spec("SCENE-CASE-1")
@pytest.mark.parametrize("scene", [FromSources, OverTwoKinds, OfAKernel])
def test_a_program_is_a_kernel_or_sources_or_an_orchestration_function(scene):
    assert outcome_of(scene).deviations == []


@pytest.mark.spec("SCENE-CASE-1")
def test_sources_are_files_beside_the_scene(tmp_path):
    from simpler_ref.extras.scenes.case import chip_callable

    main, core = dict(FROM_SOURCES["orchestration"]), dict(FROM_SOURCES["incores"][0])
    for entry, name in ((main, "main.c"), (core, "core.c")):
        (tmp_path / name).write_text(entry["source"])
        entry["source"] = name
    made = chip_callable({"orchestration": main, "incores": [core]}, tmp_path, "it")
    assert made == chip_callable(FROM_SOURCES, tmp_path, "it")


class Seen(Adding):
    """Notes the configuration that its orchestration function gets."""

    CALLABLE = {"orchestration": lambda orch, callables, args, config: Seen.configs.append(config)}
    configs: list = []

    def compute_golden(self, args, params):
        pass


@pytest.mark.spec("SCENE-CASE-1")
def test_the_configuration_of_a_case_reaches_the_run_and_the_worker():
    scene = scene_test(level=3)(
        with_case(Seen, config={"block_dim": 3, "num_sub_workers": 2, "device_count": 2})
    )
    (case,) = scene.cases()
    with scene().open_worker(case, RunOptions(devices=(4, 7, 9))) as worker:
        assert "2 next-level workers, 2 sub workers" in repr(worker)
    Seen.configs.clear()
    outcome_of(scene)
    (config,) = Seen.configs
    assert config.block_dim == 3
    with pytest.raises(TypeError, match="block_dimension"):
        outcome_of(scene_test(level=3)(with_case(Seen, config={"block_dimension": 3})))


@pytest.mark.spec("SCENE-CASE-1")
@pytest.mark.parametrize(
    ("devices", "count", "chosen"),
    [((0,), 3, [0, 1, 2]), ((4, 2), 1, [4]), ((4, 2), 3, [4, 2, 5]), ((4,), 0, [])],
)
def test_chips_are_taken_from_those_of_the_options_and_counted_on(devices, count, chosen):
    assert RunOptions(devices=devices).devices_for(count) == chosen


def defined(level=3, **entries):
    """Define a scene."""
    return scene_test(level=level)(type("Bad", (Adding,), {"CALLABLE": {"kernel": add}} | entries))


UNNAMED = {"orchestration": print, "callables": [{"callable": print}]}
REFUSED = [
    (lambda: defined(4), ValueError, "level 2 or 3, got 4"),
    (lambda: defined(CALLABLE={}), TypeError, "CALLABLE"),
    (lambda: defined(CASES=[{"name": "a", "parameters": {}}]), ValueError, "no entry 'parameters'"),
    (lambda: defined(CASES=[{"name": "a"}] * 2), ValueError, "two cases of Bad"),
    (lambda: defined(2, CALLABLE={"orchestration": {}}).programs(), ValueError, "'function_name'"),
    (lambda: defined(CALLABLE={"orchestration": 3}).programs(), TypeError, "orch, callables, args"),
    (lambda: defined(CALLABLE=UNNAMED).programs(), ValueError, "'name'"),
    (lambda: TaskArgsBuilder(3), TypeError, "got 3"),
    (lambda: TaskArgsBuilder(Tensor("a b", np.zeros(1))), ValueError, "'a b'"),
    (lambda: TaskArgsBuilder(Scalar("a", 1), Scalar("a", 2)), ValueError, "two arguments"),
    (lambda: TaskArgsBuilder(Scalar("a", 1), Tensor("b", [1])), ValueError, "all tensors first"),
    (lambda: TaskArgsBuilder(Tensor("a", np.array([None]))), TypeError, "Python objects"),
]


@pytest.mark.spec("SCENE-CASE-1")
@pytest.mark.parametrize(("make", "error", "named"), REFUSED)
def test_scenes_callables_and_arguments_are_refused_where_they_are_made(make, error, named):
    with pytest.raises(error, match=named):
        make()
