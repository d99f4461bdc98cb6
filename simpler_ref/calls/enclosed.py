"""What arguments have within them: shared arrays and futures in lists, dicts and other objects.

The pickler takes them out as it meets them. The call has them beside its arguments, so it waits for who
writes the arrays and for the futures, and the worker puts them back: the arrays themselves, which it
cannot write, and the futures' values.

Rule     CALL-ARRAY-8; CALL-INNER-1 to -3
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numpy import asarray, generic, ndarray

from ..jit import layout as L
from ..model.scalars import INTEGER
from ..model.wire import with_tag
from .current import here
from .forms import INNER_ARRAY, INNER_VALUE
from .futures import Future
from .leases import Lease

MOST = 16
"""More arrays and futures than these are not taken out: the call waits for all others."""
_INPUT = with_tag(b"", L.INPUT)


class TooManyError(Exception):
    """Arguments enclose more than fits beside them."""


class RefusedError(Exception):
    """What is within an argument cannot be sent, and `error` says why; it is no failure to pickle.

    The call of a future has failed, an array must not be used, or there is no room for its layout.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Enclosed:
    """What is taken out of the arguments of a call.

    Parameters
    ----------
    wire : Callable
        Returns the tensor of an array, without a tag; it raises TypeError or ValueError if workers do not
        share that.
    futures_of : object
        The arrays of the stream; futures of others are asked for their values.
    most : int
        How much may be taken out; 0: all is copied.

    Attributes
    ----------
    codes, parts, scalars, futures : list
        As those of arguments; see `Packer.pack`.
    """

    def __init__(self, wire: Callable[[Any], bytes], futures_of: Any, most: int = MOST) -> None:
        self._wire, self._futures_of, self._most = wire, futures_of, most
        self.reducers: dict[type, Callable[[Any], Any]] = {
            ndarray: self._array,
            Future: self._future,
            Lease: self._lease,
        }
        self.begin()

    def begin(self) -> None:
        """Begin to pickle: nothing is taken out yet."""
        self.codes: list[int] = []
        self.parts: list[bytes] = []
        self.scalars: list[bytes] = []
        self.futures: list[tuple[Future, int]] = []

    def _array(self, found: Any) -> Any:
        try:
            wire = self._wire(found)
        except (TypeError, ValueError):  # it is copied, as any object is
            return found.__reduce_ex__(5)
        except (RuntimeError, MemoryError) as error:
            raise RefusedError(error) from None
        if not self._most:
            return _read_only, (found.copy(),)
        self.parts += wire, _INPUT
        return self._take_out(INNER_ARRAY)

    def _future(self, future: Future) -> Any:
        stream, slot = future._stream, future._slot
        if not slot or stream is None or stream._arrays is not self._futures_of or not self._most:
            try:
                return _itself, (future.result(),)
            except Exception as error:
                raise RefusedError(error) from None
        self.scalars.append(INTEGER.pack(slot, L.FUTURE))
        self.futures.append((future, slot))
        return self._take_out(INNER_VALUE)

    def _lease(self, lease: Lease) -> Any:
        self.scalars.append(INTEGER.pack(lease.offset, L.FETCHED | L.VALUE_BLOCK))
        return self._take_out(INNER_VALUE)

    def _take_out(self, code: int) -> Any:
        if len(self.codes) >= self._most:
            raise TooManyError
        self.codes.append(code)
        return _taken_out, (len(self.codes) - 1,)


# ---------------------------------------------------------------- lists and tables for `In`
_LIKE_ARRAYS = "__array__", "__array_interface__", "__dlpack__"


def is_like_an_array(value: Any) -> bool:
    """Say whether numpy makes an array of something as a rule: a list, a column, a table."""
    if isinstance(value, list | tuple | range | memoryview | array):
        return True
    return not isinstance(value, generic) and any(hasattr(value, name) for name in _LIKE_ARRAYS)


class Viewed:
    """An argument for `In` that the worker makes an array of: what is within it may be shared."""

    def __init__(self, name: str, value: Any) -> None:
        self._about = name, asarray(value) if isinstance(value, memoryview) else value

    def __reduce__(self) -> Any:
        return _viewed, self._about


def _viewed(name: str, value: Any) -> Any:
    try:
        found = asarray(value)
    except ValueError as error:
        raise ValueError(f"{name}: numpy makes no array of it: {error}") from None
    if found.dtype.hasobject:
        raise TypeError(f"{name}: numpy makes an array of Python objects of it, not of numbers")
    return found


# ---------------------------------------------------------------- in the worker
def _itself(value: Any) -> Any:
    return value


def _read_only(found: Any) -> Any:
    found.flags.writeable = False
    return found


def _taken_out(number: int) -> Any:
    """Return, in a worker, what was taken out."""
    return here.enclosed[number]


def load(
    data: Any, codes: Iterable[int], arrays: Iterator[Any], values: Iterator[Any]
) -> tuple[tuple[str, ...], list[Any]]:
    """Return the names and the arguments that were pickled, and put back what was taken out of them."""
    try:
        here.enclosed = [next(arrays if code == INNER_ARRAY else values) for code in codes]
        names, items = pickle.loads(data)
    finally:
        here.enclosed = ()
    return names, items
