"""SCENE-GOLDEN: what must come out."""

import numpy as np
import pytest

from simpler_ref.extras.scenes import SceneArgs, TaskArgsBuilder, Tensor, scene_test
from simpler_ref.extras.scenes.case import deviations
from simpler_ref.extras.scenes.plugin import RunOptions

from .programs import Adding


def compared(got, golden, rtol=0.0, atol=0.0):
    """Return what is said of one tensor, None if it is right."""
    lines = deviations({"x": np.asarray(got)}, SceneArgs({"x": np.asarray(golden)}, {}), rtol, atol)
    return lines[0].removeprefix("x: ") if lines else None


def add_one(orch, callables, args, config):
    args.a += 1


@scene_test(level=3)
class Counting(Adding):
    CALLABLE = {"orchestration": add_one}

    def compute_golden(self, args, params):
        args.a += 1


@pytest.mark.spec("SCENE-GOLDEN-1")
def test_each_round_starts_from_the_first_values_and_all_tensors_are_compared():
    (case,) = Counting.cases()
    outcome = Counting().run_case(case, RunOptions(rounds=3))
    assert outcome.deviations == [] and len(outcome.times_s) == 3
    scene = type("Forgetful", (Counting,), {"compute_golden": lambda self, args, params: None})
    (case,) = scene.cases()
    outcome = scene().run_case(case, RunOptions(rounds=3))
    assert len(outcome.times_s) == 1
    assert outcome.deviations[0].startswith("a: 10 of 10 elements differ")
    assert scene().run_case(case, RunOptions(skip_golden=True)).deviations == []


@pytest.mark.spec("SCENE-GOLDEN-1")
def test_what_generate_args_has_made_stays_as_it_is():
    array = np.zeros(2)
    builder = TaskArgsBuilder(Tensor("x", array))
    builder.golden().x[:] = 1
    arrays, args = builder.shared(np.copy)
    args.x[:] = 2
    assert arrays["x"].tolist() == [2, 2]
    builder.reset(arrays)
    assert arrays["x"].tolist() == array.tolist() == [0, 0]


@pytest.mark.spec("SCENE-GOLDEN-1")
@pytest.mark.parametrize(
    ("got", "golden", "rtol", "atol", "is_right"),
    [
        *((10.0, 10.1, 0.01, 0.0, True), (10.0, 10.2, 0.01, 0.0, False)),
        *((0.0, 0.1, 0.0, 0.1, True), (1.0 + 1j, 1.0 + 1.05j, 0.1, 0.0, True)),
        *((1.0 + 1j, 1.0 + 2j, 0.1, 0.0, False), (np.nan, np.nan, 0.0, 0.0, True)),
        *((np.nan, 0.0, 1.0, 1.0, False), (np.inf, np.inf, 0.0, 0.0, True)),
        *((100, 101, 1.0, 1.0, False), (True, False, 1.0, 1.0, False)),
    ],
)
def test_floats_may_differ_a_little_and_others_not(got, golden, rtol, atol, is_right):
    assert (compared([got], [golden], rtol, atol) is None) == is_right


@pytest.mark.spec("SCENE-GOLDEN-1")
def test_the_first_wrong_element_is_named_and_the_most_wrong_one():
    golden = np.zeros((2, 3))
    got = golden.copy()
    got[0, 2], got[1, 1] = 1, 5
    assert compared(got, golden, atol=0.5) == (
        "2 of 6 elements differ; the first is [0, 2]: got 1.0, not 0.0; the largest difference is at "
        "[1, 1]: got 5.0, not 0.0 (rtol=0, atol=0.5)"
    )


@pytest.mark.spec("SCENE-GOLDEN-1")
@pytest.mark.parametrize(
    ("got", "golden", "said"),
    [
        ([1.0, np.nan], [0.0, 0.0], "largest difference is at [1]: got nan"),
        (1, 2, "1 of 1 elements differ; the first is []: got 1, not 2"),
        (np.zeros(2), np.zeros(3), "the golden tensor has the shape (3,), not (2,)"),
        (np.zeros(2), np.zeros(2, int), "has elements of type int64, not float64"),
    ],
)
def test_other_deviations_are_named(got, golden, said):
    assert said in compared(got, golden)
