"""cloudpickle, which pickles functions and classes that other processes cannot import."""

from __future__ import annotations

from collections import ChainMap
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

_reduce = cloudpickle.Pickler.dispatch_table[CodeType]


def _code_of(filename: str, make: Any, parts: tuple[Any, ...]) -> CodeType:
    made: CodeType = make(*parts)
    return made.replace(co_filename=filename)


def _reduce_with_filename(code: CodeType) -> tuple[Any, ...]:
    return _code_of, ("".join(code.co_filename), *_reduce(code))


class ByValue(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, with the names of the files that functions are from.

    Tracebacks and compiled orchestration need them; cloudpickle 3.1.3 and later leave them out.

    Rule     FLOW-PAYLOAD-4
    """

    dispatch_table: ClassVar[Any] = ChainMap(
        {CodeType: _reduce_with_filename}, cloudpickle.Pickler.dispatch_table
    )
