"""cloudpickle, which pickles functions and classes that other processes cannot import.

Rule     FLOW-PAYLOAD-4; WM-RANDOM-1
"""

from __future__ import annotations

import functools
import sys
from collections import ChainMap
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, ClassVar

import cloudpickle

_reduce = cloudpickle.Pickler.dispatch_table[CodeType]


def _code_of(filename: str, make: Any, parts: tuple[Any, ...]) -> CodeType:
    made: CodeType = make(*parts)
    return made.replace(co_filename=filename)


def _reduce_with_filename(code: CodeType) -> tuple[Any, ...]:
    return _code_of, ("".join(code.co_filename), *_reduce(code))


def module_with(method: Any) -> Any:
    """Return the module whose global generator a method is of; None if it is of none."""
    owner = getattr(method, "__self__", None)
    for name, attribute in (("random", "_inst"), ("numpy.random.mtrand", "_rand")):
        module = sys.modules.get(name)
        if owner is not None and module is not None and owner is getattr(module, attribute, None):
            return module
    return None


# ---------------------------------------------------------------- functools.lru_cache
_Remembering = type(functools.cache(len))


def _is_importable(function: Any) -> bool:
    """Say whether pickle finds a function by its name in any process."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function and function.__module__ != "__main__"


def _remembering(parameters: dict[str, Any], name: str, qualname: str) -> Any:
    """Return a function that remembers its values; what it calls comes later, as it may refer to it."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return vars(wrapped)["function"](*args, **kwargs)

    wrapped.__name__, wrapped.__qualname__ = name, qualname
    return functools.lru_cache(**parameters)(wrapped)


def _complete(made: Any, function: Any) -> None:
    made.__wrapped__.function = function


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with the names of the files that functions are from.

    Tracebacks need them; cloudpickle 3.1.3 and later leave them out.
    Functions of the global generators, such as `random.random`, are methods. They go by name, so that
    each worker draws from its own.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled in another way than usual."""
        if isinstance(obj, BuiltinMethodType | MethodType) and (module := module_with(obj)):
            return getattr, (module, obj.__name__)
        if type(obj) is _Remembering and not _is_importable(obj):
            about = obj.cache_parameters(), obj.__name__, obj.__qualname__
            return _remembering, about, obj.__wrapped__, None, None, _complete
        return super().reducer_override(obj)

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_with_filename}, cloudpickle.Pickler.dispatch_table
    )
