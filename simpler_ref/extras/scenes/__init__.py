"""Scene tests: a program with kernels, its inputs in several cases, and what must come out of it."""

from .case import (
    Scalar,
    SceneArgs,
    SceneTestCase,
    TaskArgsBuilder,
    Tensor,
    run_scenes,
    scene_test,
)

__all__ = [
    "Scalar",
    "SceneArgs",
    "SceneTestCase",
    "TaskArgsBuilder",
    "Tensor",
    "run_scenes",
    "scene_test",
]
