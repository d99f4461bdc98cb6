"""What a parent hands to a session, and what the session announces: the contents of one line each.

They travel over a channel that the fleet trusts, a pipe or a connection of its own, never over the
connections that they describe.

Rule     REMOTE-LINK-6
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from .limits import ANY_MODULE

T = TypeVar("T")


@dataclass(frozen=True)
class Manifest:
    """What a session needs to know to begin.

    Attributes
    ----------
    session_id : int
        Unlike that of any other session; never 0.
    endpoint_id : int
        The endpoint's number among the next-level workers of the parent.
    version : str
        The parent's version of this package.
    parent_key, group_key, group_secret : str
        CURVE keys, 40 characters each: the public key of the parent, which alone may command the session;
        the pair that all endpoints of the parent share, to move tensors between them. Empty if the
        connections are in the open.
    worker : dict
        Keyword arguments of the session's level 3 Worker.
    modules : list of str
        The modules that callables may be imported from; with each, those below it.
    serialized : bool
        Whether serialised callables are accepted.
    before : int or None
        On the parent's machine, how many workers of its other endpoints get a core before the first of
        this session; see `RemoteWorkerSpec.workers_before`.
    path : list of str
        Where modules are looked for first; of sessions on the parent's machine.
    original_names : bool
        Whether modules find the original's packages there under their own names; see `compat.install`.
    start_timeout_s, silence_s : float
        How long the start may take until the session is ready; after how long without a sign of life the
        other side is given up.
    """

    session_id: int
    endpoint_id: int
    version: str
    parent_key: str = ""
    group_key: str = ""
    group_secret: str = field(default="", repr=False)
    worker: dict[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    serialized: bool = False
    before: int | None = None
    path: tuple[str, ...] = ()
    original_names: bool = False
    start_timeout_s: float = 60.0
    silence_s: float = 2.0

    @property
    def is_secure(self) -> bool:
        """Whether the connections are encrypted and authenticated."""
        return bool(self.parent_key)


@dataclass(frozen=True)
class Announcement:
    """Where a session is reached, once its sockets are open; it may not be ready yet.

    Attributes
    ----------
    frames, health, tensors : str
        ZeroMQ addresses: of tasks and requests, of signs of life, of tensors.
    key : str
        The session's public CURVE key; empty in the open.
    host, pid : str, int
        For messages.
    """

    frames: str
    health: str
    tensors: str
    key: str = ""
    host: str = ""
    pid: int = 0


def allows(upper: str, module: str) -> bool:
    """Say whether one of a manifest's modules is a module, or above it, or any."""
    return upper in (ANY_MODULE, module) or module.startswith(upper + ".")


def to_line(value: Manifest | Announcement) -> str:
    """Return it as one line of JSON, without the end of the line."""
    return json.dumps(asdict(value), separators=(",", ":"))


def from_line(kind: type[T], line: str | bytes) -> T:
    """Return what a line says; `ValueError` if it is no JSON, lacks a field, or has another one."""
    try:
        values = json.loads(line)
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"no {kind.__name__.lower()}: {error}: {line[:200]!r}") from None
