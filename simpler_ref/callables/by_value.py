"""cloudpickle, which pickles functions and classes that other processes cannot import."""

from __future__ import annotations

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


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with the names of the files that functions are from.

    Tracebacks and compiled orchestration need them; cloudpickle 3.1.3 and later leave them out.
    Functions of the global generators, such as `random.random`, are methods. They go by name, so that
    each worker draws from its own.

    Rule     FLOW-PAYLOAD-4; WM-RANDOM-1
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled in another way than usual."""
        if isinstance(obj, BuiltinMethodType | MethodType) and (module := module_with(obj)):
            return getattr, (module, obj.__name__)
        return super().reducer_override(obj)

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_with_filename}, cloudpickle.Pickler.dispatch_table
    )
