"""The callables of a scene, from their descriptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...native_chip import ChipCallable, CoreCallable, compile_kernel
from ...native_chip.kernels import build_shared_object

_FORMS = (
    'a chip callable is {"orchestration": {"source": …, "function_name": …, "signature": […]}, '
    '"incores": [{"func_id": 0, "source": …, "signature": […]}]}, or {"kernel": …}'
)


def chip_callable(description: Mapping[str, Any], folder: Path, what: str) -> ChipCallable:
    """Return the chip callable of a description.

    Parameters
    ----------
    description : mapping
        ``"kernel"``: a ChipCallable, or a CoreCallable that is launched once; or ``"orchestration"`` and
        ``"incores"``, whose ``"source"`` is the text of a program in C or the name of its file.
    folder : Path
        Where the files are.
    what : str
        What messages call it.

    Raises
    ------
    ValueError, TypeError, OSError, KernelCompileError
        The description lacks something, a file cannot be read, or a source cannot be compiled.
    """
    kernel = description.get("kernel")
    if kernel is not None:
        if isinstance(kernel, CoreCallable):
            return ChipCallable.from_kernel(kernel)
        if isinstance(kernel, ChipCallable):
            return kernel
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

    Raises
    ------
    FileNotFoundError, KernelCompileError
        There is no such file; see `compile_kernel`.
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
        self._folder = folder
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
            self._add(one)

    def _add(self, description: Any) -> None:
        name = _entry(description, "name", "an entry of CALLABLE['callables']")
        if name in self.targets:
            raise ValueError(f"two callables of the scene have the name {name!r}")
        target = description.get("callable")
        if target is None:
            target = chip_callable(description, self._folder, f"callable {name!r}")
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


__all__ = ["Callables", "Programs", "chip_callable", "compile_file"]
