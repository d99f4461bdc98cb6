"""The class of a scene test, how its cases run, its arguments, and what came out beside what should have.

Rule     SCENE-CASE-1, SCENE-GOLDEN-1, SCENE-RUN-1
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ...model.arguments import TaskArgs
from ...model.config import CallConfig
from ...model.enums import ArgDirection, TensorArgType
from ...native_chip import ChipCallable, CoreCallable, compile_kernel
from ...native_chip.kernels import build_shared_object
from ...system.types import Array
from ...worker import Worker
from .plugin import SIMULATED, RunOptions, from_command_line, options_of

_Scene = TypeVar("_Scene", bound="type[SceneTestCase]")
_CONFIG = frozenset(CallConfig._NAMES)


# ---------------------------------------------------------------- arguments
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
        self._tensors, self._scalars = tensors, scalars

    def __getattr__(self, name: str) -> Any:
        known = vars(self).get("_tensors", {}) | vars(self).get("_scalars", {})
        if name in known:
            return known[name]
        raise AttributeError(f"the scene has no argument {name!r}; it has {', '.join(known)}")

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


class TaskArgsBuilder(SceneArgs):
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
        super().__init__({}, {})
        self.tensors, self.scalars = self._tensors, self._scalars
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


# ---------------------------------------------------------------- programs
_FORMS = (
    'a chip callable is {"orchestration": {"source": …, "function_name": …, "signature": […]}, '
    '"incores": [{"func_id": 0, "source": …, "signature": […]}]}, or {"kernel": …}'
)


def chip_callable(description: Mapping[str, Any], folder: Path, what: str) -> ChipCallable:
    """Return the chip callable of a description, which messages call `what`.

    It has a ``"kernel"``: a ChipCallable, or a CoreCallable that is launched once; or ``"orchestration"``
    and ``"incores"``, whose ``"source"`` is the text of a program in C, or names its file in a folder.
    """
    kernel = description.get("kernel")
    if isinstance(kernel, CoreCallable):
        return ChipCallable.from_kernel(kernel)
    if isinstance(kernel, ChipCallable):
        return kernel
    if kernel is not None:
        raise TypeError(
            f"the kernel of {what} is {kernel!r:.60}, no CoreCallable and no ChipCallable"
        )
    main = _entry(description, "orchestration", what)
    children = [
        (_entry(one, "func_id", what), _core(one, folder, what))
        for one in description.get("incores", ())
    ]
    return ChipCallable.build(
        signature=list(main.get("signature", ())),
        func_name=_entry(main, "function_name", what),
        binary=_binary(main, folder, what),
        children=children,
        config_name=main.get("config_name", ""),
    )


def _core(description: Mapping[str, Any], folder: Path, what: str) -> CoreCallable:
    kernel = description.get("kernel")
    if isinstance(kernel, CoreCallable):
        return kernel
    return CoreCallable.build(
        signature=list(description.get("signature", ())), binary=_binary(description, folder, what)
    )


def _binary(description: Mapping[str, Any], folder: Path, what: str) -> bytes:
    source = str(_entry(description, "source", what))
    flags: Sequence[str] = description.get("extra_flags", ("-lm",))
    if "\n" in source:
        return compile_kernel(source, extra_flags=flags)
    return compile_file(folder / source, extra_flags=flags)


def compile_file(
    path: str | os.PathLike[str],
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    extra_flags: Sequence[str] = ("-lm",),
) -> bytes:
    """Return the bytes of a shared object, compiled from a file in C (``.c``) or C++.

    The compiler looks for headers in the file's folder, in those of `include_dirs`, and for this
    package's. What the chip calls is ``extern "C"``.
    """
    file = Path(path).resolve()
    folders = [file.parent, *(Path(one).resolve() for one in include_dirs)]
    runtime = [] if file.suffix == ".c" else ["-lstdc++"]
    flags = [*(f"-I{one}" for one in folders), *extra_flags, *runtime]
    return build_shared_object({f"kernel{file.suffix}": file.read_bytes()}, flags)


def _entry(description: Any, key: str, what: str) -> Any:
    if not isinstance(description, Mapping) or key not in description:
        raise ValueError(f"{what} has no {key!r} in {description!r:.80}; {_FORMS}")
    return description[key]


class Programs:
    """The callables of a scene, compiled once for all its cases."""

    def __init__(self, description: Mapping[str, Any], folder: Path, level: int) -> None:
        self.orchestrate: Callable[..., Any] | None = None
        self.targets: dict[str, Any] = {}
        """By name: what is registered."""
        self.signatures: dict[str, list[Any]] = {}
        if level == 2:
            self.targets["main"] = chip_callable(description, folder, "CALLABLE")
            return
        self.orchestrate = description.get("orchestration")
        if not callable(self.orchestrate):
            raise TypeError(
                "CALLABLE['orchestration'] of a level 3 scene is a function "
                f"(orch, callables, args, config), got {self.orchestrate!r:.60}"
            )
        for one in description.get("callables", ()):
            name = _entry(one, "name", "an entry of CALLABLE['callables']")
            if name in self.targets:
                raise ValueError(f"two callables of the scene have the name {name!r}")
            target = one.get("callable")
            if target is None:
                target = chip_callable(one, folder, f"callable {name!r}")
            if isinstance(target, ChipCallable):
                self.signatures[name] = [target.sig(i) for i in range(target.sig_count)]
            self.targets[name] = target


class Callables:
    """What an orchestration function gets: ``callables.add`` is a handle, ``add_sig`` its signature."""

    _kept: tuple[Any, ...] = ()

    def __init__(self, handles: Mapping[str, Any], signatures: Mapping[str, list[Any]]) -> None:
        vars(self).update(handles)
        vars(self).update({f"{name}_sig": one for name, one in signatures.items()})

    def __getattr__(self, name: str) -> Any:
        known = ", ".join(vars(self)) or "none"
        raise AttributeError(f"the scene has no callable {name!r}; it has {known}")

    def keep(self, *objects: Any) -> None:
        """Keep objects for as long as the callables; arguments of tasks need not be kept."""
        self._kept += objects


class CaseOutcome(NamedTuple):
    """How a case went."""

    times_s: list[float]
    """How long each round took."""
    deviations: list[str]
    """Of the first round that differed from what it should."""


class Case(NamedTuple):
    """A case of a scene."""

    name: str
    platforms: tuple[str, ...]
    params: Mapping[str, Any]
    config: Mapping[str, Any]
    """Fields of CallConfig, options of Worker, and how many chips: "device_count"."""
    manual: bool
    tolerances: tuple[float, float]

    def call_config(self, options: RunOptions, scene: str) -> CallConfig:
        fields = {key: value for key, value in self.config.items() if key in _CONFIG}
        fields |= dict(options.diagnostics)
        if options.diagnostics:
            fields.setdefault("output_prefix", f"{options.output_prefix}/{scene}_{self.name}")
        return CallConfig(**fields)


class SceneTestCase:
    """A scene: callables, cases, inputs, and the golden function that says what must come out.

    A subclass stands under `scene_test`. pytest runs each case as a test; ``SceneTestCase.run_module``
    runs a file's scenes from the command line.

    Attributes
    ----------
    CALLABLE : dict
        At level 2 a chip callable: ``"orchestration"`` (``"source"``, ``"function_name"``,
        ``"signature"``) and ``"incores"`` (each with ``"func_id"``, ``"source"``, ``"signature"``), or a
        ``"kernel"``. At level 3 ``"orchestration"``, a function ``(orch, callables, args, config)``, and
        ``"callables"``: for each its ``"name"`` and a Python function as ``"callable"``, or a chip
        callable as above.
    CASES : list of dict
        For each its ``"name"``; ``"params"``, for the two methods below; ``"config"``: fields of
        CallConfig, options of Worker, and ``"device_count"``; ``"platforms"``; ``"manual"``;
        ``"rtol"`` and ``"atol"``.
    RTOL, ATOL : float
        By how much floats may differ, where a case says nothing.
    """

    CALLABLE: ClassVar[Mapping[str, Any]] = {}
    CASES: ClassVar[Sequence[Mapping[str, Any]]] = ()
    RTOL: ClassVar[float] = 1e-5
    ATOL: ClassVar[float] = 1e-5
    _level: ClassVar[int] = 0
    _runtime: ClassVar[str | None] = None
    _programs: ClassVar[Programs | None] = None

    # ------------------------------------------------------------ written by the user
    def generate_args(self, params: Mapping[str, Any]) -> TaskArgsBuilder:
        """Return the arguments of a case."""
        raise NotImplementedError(f"{type(self).__name__} has no generate_args(self, params)")

    def compute_golden(self, args: SceneArgs, params: Mapping[str, Any]) -> None:
        """Write into ``args`` what must come out, in place."""
        raise NotImplementedError(
            f"{type(self).__name__} has no compute_golden(self, args, params)"
        )

    # ------------------------------------------------------------ run
    @classmethod
    def cases(cls) -> list[Case]:
        """Return the cases."""
        return [_case(cls, one) for one in cls.CASES]

    @classmethod
    def programs(cls) -> Programs:
        """Return the callables, compiled at the first use."""
        if cls._programs is None:
            try:
                folder = Path(inspect.getfile(cls)).resolve().parent  # its files are beside its own
            except (TypeError, OSError):  # it was typed in at the prompt
                folder = Path.cwd()
            cls._programs = Programs(cls.CALLABLE, folder, cls._level)
        return cls._programs

    def open_worker(self, case: Case, options: RunOptions) -> Worker:
        """Return the Worker that a case runs on, not initialised yet."""
        more: dict[str, Any] = {"platform": options.platform, "runtime": self._runtime}
        more |= {key: value for key, value in case.config.items() if key not in _CONFIG}
        count = more.pop("device_count", None)
        if self._level == 2:
            return Worker(level=2, device_id=options.devices[0], **more)
        if count is None:
            count = 1 if self.programs().signatures else 0
        return Worker(level=3, device_ids=options.devices_for(count), **more)

    def run_case(self, case: Case, options: RunOptions) -> CaseOutcome:
        """Run a case, as many rounds as wanted, and compare what comes out of each."""
        builder = self.generate_args(case.params)
        if not isinstance(builder, TaskArgsBuilder):
            raise TypeError(f"generate_args returns a TaskArgsBuilder, got {builder!r:.60}")
        golden = builder.golden()
        if not options.skip_golden:
            self.compute_golden(golden, case.params)
        config = case.call_config(options, type(self).__name__)
        times: list[float] = []
        with self.open_worker(case, options) as worker:
            run = self._prepared(worker)
            arrays, args = builder.shared(worker.share)
            for _ in range(options.rounds):
                builder.reset(arrays)
                start = time.perf_counter()
                run(args, config)
                times.append(time.perf_counter() - start)
                wrong = [] if options.skip_golden else deviations(arrays, golden, *case.tolerances)
                if wrong:
                    return CaseOutcome(times, wrong)
        return CaseOutcome(times, [])

    def _prepared(self, worker: Worker) -> Callable[[SceneArgs, CallConfig], Any]:
        """Register the callables; return what runs them."""
        programs = self.programs()
        handles = {name: worker.register(one) for name, one in programs.targets.items()}
        if programs.orchestrate is None:
            main = handles["main"]
            return lambda args, config: worker.run(main, args.to_task_args(), config)
        callables, orchestrate = Callables(handles, programs.signatures), programs.orchestrate

        def run(args: SceneArgs, config: CallConfig) -> Any:
            return worker.run(
                lambda orch, _, given: orchestrate(orch, callables, args, given), None, config
            )

        return run

    # ------------------------------------------------------------ pytest
    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Have pytest run `test_run` for each case."""
        if "scene_case" in metafunc.fixturenames:
            cases = type(self).cases()
            metafunc.parametrize("scene_case", cases, ids=[case.name for case in cases])

    def test_run(self, scene_case: Case, request: Any) -> None:
        """Run a case, and fail with its deviations."""
        import pytest

        get = request.config.getoption
        options = options_of(get) if get("platform", None) else RunOptions()
        if options.platform not in scene_case.platforms:
            pytest.skip(f"not for platform {options.platform}")
        if not options.wants(type(self).__name__, scene_case.name, scene_case.manual):
            pytest.skip("manual" if scene_case.manual else "not chosen by --case")
        outcome = self.run_case(scene_case, options)
        if outcome.deviations:
            pytest.fail("\n".join(outcome.deviations), pytrace=False)

    # ------------------------------------------------------------ command line
    @staticmethod
    def run_module(name: str, arguments: list[str] | None = None) -> int:
        """Run the scenes of a module, as the command line says, and return the exit code.

        Parameters
        ----------
        name : str
            The module's ``__name__``. If it is the program's, this ends it with the exit code.
        arguments : list of str, optional
            In the place of the command line; then the program goes on.
        """
        module = sys.modules[name]
        scenes = [
            one
            for one in vars(module).values()
            if inspect.isclass(one) and issubclass(one, SceneTestCase) and one._level
        ]
        code = run_scenes(scenes, arguments, inspect.getdoc(module) or "Scene tests.")
        if name == "__main__" and arguments is None:
            sys.exit(code)
        return code


def scene_test(*, level: int, runtime: str | None = None) -> Callable[[_Scene], _Scene]:
    """Make a subclass of `SceneTestCase` a scene.

    Parameters
    ----------
    level : int
        2: one chip, which runs CALLABLE. 3: an orchestration function over chips and sub workers.
    runtime : str, optional
        The `runtime` of the Worker.

    Raises
    ------
    TypeError, ValueError
        The class is no SceneTestCase, there is no such level, or CALLABLE or CASES do not say what they
        should.
    """
    if level not in (2, 3):
        raise ValueError(f"a scene is of level 2 or 3, got {level!r}")

    def wrap(scene: _Scene) -> _Scene:
        if not (inspect.isclass(scene) and issubclass(scene, SceneTestCase)):
            raise TypeError(f"scene_test expects a subclass of SceneTestCase, got {scene!r:.60}")
        if not isinstance(scene.CALLABLE, Mapping) or not scene.CALLABLE:
            raise TypeError(
                f"{scene.__name__}.CALLABLE is a dict of callables, got {scene.CALLABLE!r:.60}"
            )
        scene._level, scene._runtime, scene._programs = level, runtime, None
        names = [case.name for case in scene.cases()]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two cases of {scene.__name__} have the name {twice.pop()!r}")
        return scene

    return wrap


_KEYS = {"name", "platforms", "params", "config", "manual", "rtol", "atol"}


def _case(scene: type[SceneTestCase], given: Any) -> Case:
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise TypeError(f"a case of {scene.__name__} is a dict with a name, got {given!r:.80}")
    unknown = set(given) - _KEYS
    if unknown:
        raise ValueError(
            f"case {given['name']!r} of {scene.__name__} has no entry {sorted(unknown)[0]!r}; there are "
            f"{', '.join(sorted(_KEYS))}"
        )
    return Case(
        given["name"],
        tuple(given.get("platforms", SIMULATED)),
        given.get("params", {}),
        given.get("config", {}),
        bool(given.get("manual", False)),
        (float(given.get("rtol", scene.RTOL)), float(given.get("atol", scene.ATOL))),
    )


def run_scenes(
    scenes: Sequence[type[SceneTestCase]],
    arguments: list[str] | None = None,
    about: str = "Scene tests.",
) -> int:
    """Run scenes, as the command line says, and return the exit code.

    Parameters
    ----------
    scenes : sequence of classes
        Which ones.
    arguments : list of str, optional
        In the place of the command line.
    about : str
        What ``--help`` says.
    """
    options, only_list = from_command_line(arguments, about)
    passed = failed = 0
    for scene in scenes:
        for case in scene.cases():
            name = f"{scene.__name__}::{case.name}"
            if only_list:
                print(f"{name}{' (manual)' if case.manual else ''}")
                continue
            if options.platform not in case.platforms or not options.wants(
                scene.__name__, case.name, case.manual
            ):
                continue
            print(f"{name} … ", end="", flush=True)
            try:
                outcome = scene().run_case(case, options)
            except Exception:
                failed += 1
                print("ERROR")
                traceback.print_exc()
                continue
            if outcome.deviations:
                failed += 1
                print(f"FAILED in round {len(outcome.times_s)}")
                print("".join(f"  {line}\n" for line in outcome.deviations), end="")
            else:
                passed += 1
                best, rounds = f"{min(outcome.times_s) * 1e3:.2f} ms", len(outcome.times_s)
                print(f"passed, {best if rounds == 1 else f'{rounds} rounds, the shortest {best}'}")
    if only_list:
        return 0
    if not passed + failed:
        print(f"no case runs on platform {options.platform} with these options; see --list")
        return 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
