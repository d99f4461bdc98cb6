"""The arguments of a scene: tensors and scalars with names, and what came out beside what should have.

Rule     SCENE-GOLDEN-1
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...model.arguments import TaskArgs
from ...model.enums import ArgDirection, TensorArgType
from ...system.types import Array


class Tensor(NamedTuple):
    """A tensor of a scene: its name, and its values at the start."""

    name: str
    value: Any
    """A numpy array, or what numpy can make one of without a copy, such as a tensor of torch."""


class Scalar(NamedTuple):
    """A scalar of a scene: its name, and its value."""

    name: str
    value: Any


class SceneArgs:
    """Arguments by name: ``args.x`` is an array, or a scalar's value.

    Iterating gives the names, tensors first.
    """

    def __init__(self, tensors: dict[str, Any], scalars: dict[str, Any]) -> None:
        vars(self).update(tensors, **scalars)
        self._tensors = tensors
        self._scalars = scalars

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(self) if "_tensors" in vars(self) else ""
        raise AttributeError(f"the scene has no argument {name!r}; it has {known}")

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from self._scalars

    @property
    def specs(self) -> list[Tensor | Scalar]:
        """The tensors, then the scalars, with their names."""
        tensors = [Tensor(*one) for one in self._tensors.items()]
        return [*tensors, *(Scalar(*one) for one in self._scalars.items())]

    def to_task_args(self, *tags: TensorArgType) -> TaskArgs:
        """Return all tensors, then all scalars, as the arguments of a task.

        Parameters
        ----------
        *tags : TensorArgType
            One for each tensor; without any, all are INOUT.
        """
        if tags and len(tags) != len(self._tensors):
            raise ValueError(
                f"{len(tags)} tags for {len(self._tensors)} tensors ({', '.join(self._tensors)}): give "
                "one for each, or none"
            )
        args = TaskArgs()
        for i, tensor in enumerate(self._tensors.values()):
            args.add_tensor(tensor, tags[i] if tags else TensorArgType.INOUT)
        for scalar in self._scalars.values():
            args.add_scalar(scalar)
        return args


_TAGS = {
    ArgDirection.IN: TensorArgType.INPUT,
    ArgDirection.OUT: TensorArgType.OUTPUT_EXISTING,
    ArgDirection.INOUT: TensorArgType.INOUT,
}


def task_args_by(args: SceneArgs, signature: Sequence[ArgDirection]) -> tuple[TaskArgs, list[str]]:
    """Return arguments, tagged by a signature of tensors, and the names of those that are written."""
    directions = [one for one in signature if one != ArgDirection.SCALAR]
    names = [one.name for one in args.specs if isinstance(one, Tensor)]
    written = [
        name
        for name, one in zip(names, directions, strict=False)
        if one in (ArgDirection.OUT, ArgDirection.INOUT)
    ]
    return args.to_task_args(*(_TAGS[ArgDirection(one)] for one in directions)), written


class TaskArgsBuilder:
    """What `generate_args` returns: the tensors and scalars of a case, in order.

    Parameters
    ----------
    *specs : Tensor or Scalar
        Tensors come first.

    Raises
    ------
    TypeError, ValueError
        One is neither, a tensor is no array, a name is there twice or is no name, or a tensor comes after
        a scalar.
    """

    def __init__(self, *specs: Tensor | Scalar) -> None:
        self.tensors: dict[str, Any] = {}
        self.scalars: dict[str, Any] = {}
        for spec in specs:
            self._add(spec)

    def _add(self, spec: Any) -> None:
        if not isinstance(spec, (Tensor, Scalar)):
            raise TypeError(f"the arguments of a scene are Tensor and Scalar, got {spec!r:.60}")
        name, value = spec
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{name!r:.60} cannot be the name of an argument: give an identifier")
        if name in self.tensors or name in self.scalars:
            raise ValueError(f"two arguments of the scene have the name {name!r}")
        if isinstance(spec, Scalar):
            self.scalars[name] = value
        elif self.scalars:
            raise ValueError(f"tensor {name!r} comes after a scalar: give all tensors first")
        else:
            if np.asarray(value).dtype.hasobject:
                raise TypeError(f"tensor {name!r} has elements that are Python objects")
            self.tensors[name] = value

    @property
    def _args(self) -> SceneArgs:
        return SceneArgs(self.tensors, self.scalars)

    @property
    def specs(self) -> list[Tensor | Scalar]:
        """What it was made of."""
        return self._args.specs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("tensors", "scalars"):  # not made yet
            raise AttributeError(name)
        return getattr(self._args, name)

    def golden(self) -> SceneArgs:
        """Return copies, for `compute_golden` to change."""
        tensors = {name: copy.deepcopy(value) for name, value in self.tensors.items()}
        return SceneArgs(tensors, dict(self.scalars))

    def shared(self, share: Callable[[Array], Array]) -> tuple[dict[str, Array], SceneArgs]:
        """Return copies that workers see: as arrays by name, and as the kind that they were."""
        arrays = {name: share(np.asarray(value)) for name, value in self.tensors.items()}
        tensors = {name: _like(value, arrays[name]) for name, value in self.tensors.items()}
        return arrays, SceneArgs(tensors, dict(self.scalars))

    def reset(self, arrays: dict[str, Array]) -> None:
        """Give shared arrays the values of the start again."""
        for name, value in self.tensors.items():
            arrays[name][...] = np.asarray(value)


def _like(value: Any, array: Array) -> Any:
    """Return an array as a tensor of torch over the same memory, if the value was one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.from_numpy(array)
    return array


# ---------------------------------------------------------------- what is wrong
def deviations(arrays: dict[str, Array], golden: SceneArgs, rtol: float, atol: float) -> list[str]:
    """Return a line for each tensor that differs from the golden one; it names the first wrong element.

    Floats and complex numbers may differ by ``atol + rtol * abs(golden)``, and a NaN is equal to a NaN.
    Others are equal or not.
    """
    found = {
        name: _deviation(got, np.asarray(getattr(golden, name)), rtol, atol)
        for name, got in arrays.items()
    }
    return [f"{name}: {line}" for name, line in found.items() if line]


def _deviation(got: Array, wanted: Array, rtol: float, atol: float) -> str | None:
    if got.shape != wanted.shape:
        return f"the golden tensor has the shape {wanted.shape}, not {got.shape}"
    if got.dtype != wanted.dtype:
        return f"the golden tensor has elements of type {wanted.dtype}, not {got.dtype}"
    is_inexact = got.dtype.kind in "fc"
    equal = np.isclose(got, wanted, rtol, atol, equal_nan=True) if is_inexact else got == wanted
    wrong = ~np.asarray(equal)
    if not wrong.any():
        return None

    def pair(index: tuple[Any, ...]) -> str:
        where = ", ".join(str(int(one)) for one in index)
        return f"[{where}]: got {got[index]}, not {wanted[index]}"

    first = np.unravel_index(int(np.argmax(wrong)), got.shape)
    count = np.count_nonzero(wrong)
    text = f"{count} of {got.size} elements differ; the first is {pair(first)}"
    if is_inexact:
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(wrong, np.abs(got - wanted), -1.0)
        worst = np.unravel_index(int(np.nanargmax(np.nan_to_num(error, nan=np.inf))), got.shape)
        if worst != first:
            text += f"; the largest difference is at {pair(worst)}"
        text += f" (rtol={rtol:g}, atol={atol:g})"
    return text
