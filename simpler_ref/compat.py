"""Programs of the original, with no line changed: its packages under their own names.

``python -m simpler_ref.compat prog.py args…`` runs a program, ``python -m simpler_ref.compat -m pytest
…`` a module. A program may call `install` itself instead, before it imports them.

Rule     COMPAT-NAMES-1, COMPAT-RUN-1, COMPAT-RUN-4
"""

from __future__ import annotations

import functools
import importlib
import runpy
import sys
import types
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from .system import lazy

MODULES: Mapping[str, str] = {
    "_task_interface": "simpler_ref.task_interface",
    "simpler.callable_identity": "simpler_ref.callable_identity",
    "simpler.orchestrator": "simpler_ref.orchestrator",
    "simpler.remote_l3_protocol": "simpler_ref.remote_l3_protocol",
    "simpler.task_interface": "simpler_ref.task_interface",
    "simpler.worker": "simpler_ref.worker",
}
"""The original's names of modules, and what they stand for here."""
_USAGE = "usage: python -m simpler_ref.compat (program.py | -m module) [argument …]"


class _Package(types.ModuleType):
    """The package `simpler`: its modules, and the names of `simpler_ref`."""

    def __init__(self) -> None:
        super().__init__("simpler", __doc__)
        self.__path__: list[str] = []
        self.__spec__ = ModuleSpec("simpler", None, is_package=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module 'simpler' has no attribute {name!r}")
        module = "simpler.worker" if name == "Worker" else "simpler_ref"
        return getattr(importlib.import_module(module), name)


def install() -> None:
    """Make the original's packages importable; again and again is fine.

    Raises RuntimeError if the original itself, or something else of one of these names, is imported.
    """
    modules = _modules()
    package = sys.modules.get("simpler")
    if not isinstance(package, _Package):
        package = _Package()
    for name, module in {"simpler": package, **modules}.items():
        if sys.modules.get(name, module) is not module:
            origin = getattr(sys.modules[name], "__file__", None) or "an unknown place"
            raise RuntimeError(
                f"a module {name!r} is imported already, from {origin}: call "
                "simpler_ref.compat.install() before, or run the program under python -m "
                "simpler_ref.compat"
            )
    sys.modules.update(simpler=package, **modules)
    for name, module in modules.items():
        if name.startswith("simpler."):
            setattr(package, name.removeprefix("simpler."), module)


@functools.cache
def _modules() -> dict[str, Any]:
    """Return the modules by the original's names; those of the extra only if that is installed."""
    modules: dict[str, Any] = {name: importlib.import_module(one) for name, one in MODULES.items()}
    try:
        ports: Any = importlib.import_module(f"{lazy.load('scenes').__name__}.ports")
    except ModuleNotFoundError:
        return modules
    for name, more in ports.MORE.items():
        every = vars(modules[name]).items()  # and what finds names that are imported when asked for
        ours = {key: one for key, one in every if key == "__getattr__" or key[:2] != "__"}
        modules[name] = types.ModuleType(name, modules[name].__doc__)
        vars(modules[name]).update(ours, **more)
    modules.update(ports.modules())
    return modules


def is_installed() -> bool:
    """Say whether the original's packages are importable in this process."""
    return isinstance(sys.modules.get("simpler"), _Package)


def uninstall() -> None:
    """Undo `install`."""
    if is_installed():
        for name in ("simpler", *_modules()):
            sys.modules.pop(name, None)


def main(arguments: list[str]) -> int:
    """Run what the command line names; return the exit code."""
    if not arguments or (
        arguments[0].startswith("-") and (arguments[0] != "-m" or len(arguments) < 2)
    ):
        print(_USAGE, file=sys.stderr)
        return 2
    if arguments[0] != "-m" and not Path(arguments[0]).is_file():
        print(f"{_USAGE}\nthere is no file {arguments[0]}", file=sys.stderr)
        return 2
    install()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        _run_file(arguments)
    return 0


def _run_file(arguments: list[str]) -> None:
    """Run a file as Python does, which stays `__main__` for threads and functions of `atexit`."""
    file = Path(arguments[0])
    code = compile(file.read_bytes(), arguments[0], "exec")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main).update(__file__=arguments[0], __builtins__=__builtins__)
    sys.argv = arguments
    sys.path[0] = str(file.resolve().parent)
    exec(code, vars(main))


if __name__ == "__main__":
    # the module under its own name, so that a program that imports it finds what is installed
    raise SystemExit(importlib.import_module("simpler_ref.compat").main(sys.argv[1:]))
