"""What a parent asks of the link of an endpoint, as bytes in shared memory.

Rule     REMOTE-REG-9, REMOTE-MEM-2
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import astuple, dataclass, replace
from functools import cached_property

from . import callables
from .buffers import IDENTITY, RemoteAddressSpace, decode_import_buffer_result
from .frames import ControlName
from .tasks import RemoteTensorDesc

MOST_INLINE_BLOB = 8 << 20
"""The most bytes of a chip callable that travel in its registration; a frame must have room for it."""


@dataclass(frozen=True)
class Request:
    """A request that a link sends on.

    Attributes
    ----------
    view_base, view_offset, view_nbytes : int
        Where references to the memory that it provides will be, and which part of its buffer that is; a
        base of 0: it provides none.
    drops : int
        The base of references that end with it, or 0.
    """

    name: ControlName
    payload: bytes
    view_base: int = 0
    view_offset: int = 0
    view_nbytes: int = 0
    drops: int = 0


@dataclass(frozen=True)
class Registration:
    """A callable for endpoints: which, and the command that registers it there.

    Attributes
    ----------
    workers : tuple of int
        The endpoints.
    command : bytes
        PREPARE_REGISTER_CALLABLE.
    blob : bytes
        A chip callable's that is too large for the command, which has a token then; see `naming`.
    """

    workers: tuple[int, ...]
    command: bytes
    blob: bytes = b""

    @property
    def is_of_calls(self) -> bool:
        """Whether its tasks are calls, each of which names its function; see `remote.link_calls`."""
        return not self.command

    def naming(self, token: bytes) -> bytes:
        """Return the command for an endpoint where the blob is staged under a token."""
        one = self._told
        chip = replace(
            callables.decode_remote_chip_callable_payload(one.payload),
            blob_location=callables.ChipCallableBlobLocation.STAGED_BLOB,
            inline_blob=b"",
            staged_blob_token=token,
        )
        return callables.encode_register_callable_command(
            *astuple(replace(one, payload=callables.encode_remote_chip_callable_payload(chip)))
        )

    @cached_property
    def _told(self) -> callables.RegisterCallableCommand:
        return callables.decode_register_callable_command(self.command)

    @cached_property
    def digest_command(self) -> bytes:
        """The command that names it by its digest."""
        one = self._told
        return callables.encode_digest_callable_command(
            one.target_registry, one.callable_kind, one.digest
        )

    @property
    def digest(self) -> bytes:
        """What tasks name it by."""
        return self._told.digest

    @property
    def is_inner(self) -> bool:
        """Whether it is for the inner Workers."""
        return self._told.target_registry == callables.RemoteRegistryTarget.INNER_L3_WORKER


@dataclass(frozen=True)
class View:
    """Memory that a session has, by the addresses that references to it have.

    `token` is the import, 0 for a buffer of its own; `offset` is where it begins in its buffer.
    """

    base: int
    nbytes: int
    owner: int
    buffer_id: int
    generation: int
    offset: int
    token: int

    def describe(self, address: int, nbytes: int) -> RemoteTensorDesc:
        """Return the descriptor of some of its bytes."""
        space = RemoteAddressSpace.REMOTE_WINDOW if self.token else RemoteAddressSpace.REMOTE_DEVICE
        return RemoteTensorDesc(
            space,
            self.owner,
            self.buffer_id,
            self.offset + address - self.base,
            nbytes,
            0,
            self.token,
            self.generation,
        )


class Views:
    """The memory of a session, by the addresses that references to it have."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._views: list[View] = []

    def add(self, view: View) -> None:
        """Note memory that the session has."""
        at = bisect(self._bases, view.base)
        self._bases.insert(at, view.base)
        self._views.insert(at, view)

    def drop(self, base: int) -> None:
        """Forget memory that it had."""
        at = self._bases.index(base)
        del self._bases[at], self._views[at]

    def find(self, address: int, nbytes: int) -> View:
        """Return the buffer or import that memory is in."""
        at = bisect(self._bases, address) - 1
        if at >= 0:
            view = self._views[at]
            if address + nbytes <= view.base + view.nbytes:
                return view
        raise ValueError(
            "a reference is to memory that this session of the endpoint does not have: it was freed, or "
            "the endpoint was lost and has started anew"
        )


def view_from(request: Request, result: bytes) -> View:
    """Return the view that a request has provided."""
    if request.name == ControlName.IMPORT_BUFFER:
        found = decode_import_buffer_result(result)
        owner, token = found.owner_endpoint_id, found.import_id
        identity = found.buffer_id, found.generation
    else:
        made = IDENTITY.decode(result)
        owner, token = made.owner_endpoint_id, 0
        identity = made.buffer_id, made.generation
    return View(
        request.view_base, request.view_nbytes, owner, *identity, request.view_offset, token
    )
