"""The arrays of calls at endpoints: which copies of them are still right.

What a call writes is in the program's memory when the call has ended, so that memory always has the
current version. An endpoint may keep its copy for later calls as long as nobody else can have written the
array: the program may once all calls that use it have ended.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from ..engine.memory import Engine
from ..jit import layout as L
from ..model.tensor import ContinuousTensor, share_bytes, view_memory
from ..model.wire import (
    RIGHTS,
    SHAPE_AT,
    TAG_AT,
    Layout,
    has_layout,
    layout_number,
    row_major,
    span_of,
)
from ..system.types import Array
from .directory import HOME, MOST_DROPPED
from .far_values import Value, ValueUse
from .layouts import layout_text
from .plans import CopyPlan

_MOST_WORK = 1 << 12
"""Of numpy's search for a byte that two arrays share; beyond that they count as sharing some."""
_MOST_KNOWN = 1 << 14
_FEW = 64


def is_whole(layout: Layout) -> bool:
    """Say whether all bytes that an array spans are its own, and none lies below its first element."""
    below, extent = span_of(layout)
    return not below and extent == math.prod(layout[1]) * layout[0].itemsize


def copied_layout(layout: Layout) -> Layout:
    """Return the layout of an array's copy: its own, or that of its elements in C order."""
    if is_whole(layout):
        return layout
    dtype, shape, _ = layout
    return dtype, shape, row_major(shape, dtype.itemsize)


class Kept:
    """An array of which endpoints may have copies.

    Attributes
    ----------
    view : ndarray
        It.
    key, version : int
        The name of its copies, and which version is current once what was submitted has ended.
    holders, places : set of int
        The endpoints that have that then; those that have, or had, any version.
    maker, turn : int
        Who makes it, and which of that endpoint's calls.
    users : list
        The calls that use it: slot and number of each.
    """

    __slots__ = (
        *("holders", "key", "maker", "most", "places", "span", "turn", "users", "version", "view"),
    )

    def __init__(self, view: Array, span: tuple[int, int]) -> None:
        self.view, self.span = view, span
        self.key, self.version = secrets.randbits(62) | 1, 1
        self.holders, self.places = set[int](), set[int]()
        self.maker, self.turn = HOME, 0
        self.users: list[tuple[int, int]] = []
        self.most = _FEW
        """How many users there may be before those are left out whose calls have ended."""

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return int(self.view.nbytes)

    def shares(self, other: Kept) -> bool:
        """Say whether two arrays may share a byte."""
        return share_bytes(self.view, other.view, _MOST_WORK)


class Use:
    """What a call does with an array; `makes` is the version that it makes, or 0."""

    __slots__ = ("kept", "makes", "reads", "writes")

    def __init__(self, kept: Kept, rights: int) -> None:
        self.kept = kept
        self.reads, self.writes = bool(rights & L.TENSOR_READ), bool(rights & L.TENSOR_WRITE)
        self.makes = 0

    @property
    def plan(self) -> CopyPlan:
        """What the link is told."""
        if not self.kept.view.nbytes:
            return CopyPlan()
        return CopyPlan(self.kept.key, self.kept.version if self.reads else 0, self.makes)


class FarArrays:
    """The arrays of a stream's calls.

    Rule     CALL-FAR-3, -4, -11
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kept: dict[tuple[Any, ...], Kept] = {}
        self._spans: list[tuple[int, int, int]] = []
        """First byte, how many, and the key of each."""
        self._by_key: dict[int, tuple[tuple[Any, ...], Kept]] = {}
        self._longest = 0
        self._names: dict[bytes, tuple[tuple[Any, ...], Layout, int]] = {}
        self._epoch = -1
        self._retired: deque[Kept] = deque()
        self._dropped: dict[int, list[int]] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.__init__(self._engine)  # type: ignore[misc]

    # ------------------------------------------------------------ before a submit
    def uses_of(self, wires: Iterable[bytes]) -> list[Use]:
        """Return what a call does with its arrays.

        Raises
        ------
        ValueError
            Two of them share some bytes, but are not the same, and one is written.
        TypeError
            The type of its elements cannot be written into a message.
        """
        found: dict[tuple[Any, ...], Kept] = {}
        uses = [Use(self._find(wire, found), RIGHTS[wire[TAG_AT]]) for wire in wires]
        for i, one in enumerate(uses):
            for k in range(i):
                other = uses[k]
                if (one.writes or other.writes) and one.kept is not other.kept:
                    self._require_apart(k, other, i, one)
        written = {use.kept.key for use in uses if use.writes}
        for use in uses:
            use.makes = use.kept.version + 1 if use.kept.key in written else 0
        return uses

    @staticmethod
    def _require_apart(i: int, one: Use, k: int, other: Use) -> None:
        if one.kept.shares(other.kept):
            raise ValueError(
                f"arrays {i} and {k} of the call share some bytes, and are not the same, so an endpoint "
                "would get a copy of each: give the call one array that has all of the bytes"
            )

    def _find(self, wire: bytes, found: dict[tuple[Any, ...], Kept]) -> Kept:
        """Return the array of a tensor, and note that the call has it."""
        name, layout, start = self._name(wire)
        if name not in found:
            found[name] = self._current(wire, name, layout, start)
        return found[name]

    def _current(self, wire: bytes, name: tuple[Any, ...], layout: Layout, start: int) -> Kept:
        """Return what is known of an array; if no call uses it, the program may have changed it."""
        kept = self._kept.get(name)
        if kept is not None and self._is_used(kept):
            return kept
        if kept is not None:
            self._retire(kept)
        address = int.from_bytes(wire[:SHAPE_AT], "little")
        layout_text(copied_layout(layout))
        view = view_memory(address, layout[1], layout[0], strides=layout[2])
        made = Kept(view, (start, span_of(layout)[1]))
        self._kept[name] = made
        self._by_key[made.key] = name, made
        insort(self._spans, (*made.span, made.key))
        self._longest = max(self._longest, made.span[1])
        return made

    def _name(self, wire: bytes) -> tuple[tuple[Any, ...], Layout, int]:
        """Return what is the same for the same memory, the layout, and the first byte."""
        epoch = self._engine.layouts.epoch
        if epoch != self._epoch or len(self._names) > _MOST_KNOWN:
            self._names.clear()
            self._epoch = epoch
        found = self._names.get(wire[:TAG_AT])
        if found is None:
            layout = layout_of(self._engine.layouts, wire)
            below, extent = span_of(layout)
            start = int.from_bytes(wire[:SHAPE_AT], "little") - below
            name: tuple[Any, ...] = start, extent
            if not is_whole(layout):
                name = start, extent, below, *layout
            found = self._names[wire[:TAG_AT]] = name, layout, start
        return found

    def _is_used(self, kept: Kept) -> bool:
        """Say whether calls use an array that have not ended."""
        is_under_way = self._engine.view.is_under_way
        users = kept.users
        while users and not is_under_way(*users[-1]):
            users.pop()
        return bool(users)

    @staticmethod
    def outlook(uses: Iterable[Use | ValueUse], where: int) -> tuple[list[Kept | Value], int]:
        """Return what a call reads and others make, and how many bytes would have to move.

        Those that it also writes count twice: they may be needed there next.
        """
        needed: list[Kept | Value] = []
        total = 0
        for use in uses:
            if use.reads:
                needed.append(use.kept)
                if where not in use.kept.holders:
                    total += use.kept.nbytes * (2 if use.writes else 1)
        return needed, total

    def dropped(self, where: int) -> Sequence[int]:
        """Return copies that an endpoint may forget."""
        while self._retired and not self._is_used(self._retired[0]):
            kept = self._retired.popleft()
            for one in kept.places:
                self._dropped.setdefault(one, []).append(kept.key)
        return self._dropped.get(where, [])[:MOST_DROPPED]

    # ------------------------------------------------------------ after a submit
    def note(self, uses: Sequence[Use], where: int, user: tuple[int, int], turn: int) -> None:
        """Note what a call that was submitted will have done."""
        del self._dropped.get(where, [])[:MOST_DROPPED]
        for use in uses:
            kept = use.kept
            kept.users.append(user)
            kept.places.add(where)
            if len(kept.users) > kept.most:
                is_under_way = self._engine.view.is_under_way
                kept.users = [one for one in kept.users if is_under_way(*one)]
                kept.most = max(_FEW, 2 * len(kept.users))
            if use.makes:
                kept.version, kept.maker, kept.turn = use.makes, where, turn
                kept.holders = {where}
                self._change(kept)
            else:
                kept.holders.add(where)

    def _change(self, kept: Kept) -> None:
        """Forget the copies of what shares bytes with an array that is written."""
        start, nbytes = kept.span
        at = bisect_left(self._spans, (start - self._longest, 0, 0))
        for first, size, key in self._spans[at:]:
            if first >= start + nbytes:
                break
            other = self._by_key[key][1]
            if other is not kept and first + size > start and other.shares(kept):
                self._retire(other)

    def _retire(self, kept: Kept) -> None:
        name, _ = self._by_key.pop(kept.key)
        del self._kept[name]
        del self._spans[bisect_left(self._spans, (*kept.span, kept.key))]
        self._retired.append(kept)


def layout_of(layouts: Any, wire: bytes) -> Layout:
    """Return element type, shape and strides of a tensor."""
    if has_layout(wire):
        found: Layout = layouts.read(layout_number(wire))
        return found
    array = ContinuousTensor._from_wire(wire).numpy()
    return array.dtype, array.shape, array.strides
