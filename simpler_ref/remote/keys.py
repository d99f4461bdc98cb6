"""Who may connect: pairs of CURVE keys, and the clients that a server admits.

A server proves with its secret key that it is the one whose public key the client has; a client proves
with its own that it is one of those that the server admits. Everything between them is encrypted.

Rule     REMOTE-TRUST-1, REMOTE-TRUST-2
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from .connection import zmq

if TYPE_CHECKING:
    from zmq import Context, Socket

LOGGER = logging.getLogger("simpler_ref")
ZAP_ADDRESS = "inproc://zeromq.zap.01"


class KeyPair(NamedTuple):
    """A public and a secret CURVE key, of 40 characters each."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=…)"


def new_pair() -> KeyPair:
    """Return a pair that nobody else has."""
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def write_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Make a pair, and write its secret key into a new file that only this user can read."""
    pair = new_pair()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(pair.secret + "\n")
    return pair


def read_pair(path: str | os.PathLike[str]) -> KeyPair:
    """Return the pair whose secret key is in a file, which nobody else may read."""
    mode = os.stat(path).st_mode & 0o777
    if mode & 0o077:
        raise PermissionError(
            f"others can read the secret key in {os.fspath(path)} (mode {mode:04o}): chmod 600 it, or"
            " make another with python -m simpler_ref.endpoint --make-keys FILE"
        )
    secret = Path(path).read_text(errors="replace").strip()
    try:
        return KeyPair(zmq.curve_public(secret.encode("ascii")).decode(), secret)
    except (ValueError, zmq.ZMQError):
        raise ValueError(
            f"no key of 40 characters in {os.fspath(path)} ({len(secret)} characters): make one with"
            " python -m simpler_ref.endpoint --make-keys FILE"
        ) from None


def secure_server(socket: Socket[Any], pair: KeyPair, admitted: Collection[str]) -> None:
    """Let a socket admit only clients that have one of some keys; to be called before it is bound.

    Clients in the open are refused as well. `admitted` is looked at whenever a client connects: one that
    is removed from a set is refused from then on, but keeps the connection it has.
    """
    socket.curve_secretkey = pair.secret.encode()
    socket.curve_publickey = pair.public.encode()
    socket.curve_server = True
    socket.zap_domain = doorkeeper(socket.context).guard(admitted).encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody is admitted when nobody answers


def secure_client(socket: Socket[Any], pair: KeyPair, server_key: str) -> None:
    """Let a socket connect to one server only, which must admit its key; to be called before it does."""
    socket.curve_secretkey = pair.secret.encode()
    socket.curve_publickey = pair.public.encode()
    socket.curve_serverkey = server_key.encode()


class Doorkeeper:
    """Answers the question of a context's servers whether a client may connect (ZeroMQ RFC 27).

    Its thread ends with the context.
    """

    def __init__(self, context: Context[Any]) -> None:
        self._admitted: dict[str, Collection[str]] = {}
        self._numbers = count(1)
        # destroy() closes the sockets of the context itself, which only their own thread may
        questions: Socket[Any] = zmq.Context.shadow(context.underlying).socket(zmq.REP)
        questions.linger = 0
        questions.bind(ZAP_ADDRESS)
        threading.Thread(
            target=self._answer, args=(questions,), name="simpler-keys", daemon=True
        ).start()

    def guard(self, admitted: Collection[str]) -> str:
        """Return the name of a new domain, of which clients with these keys are admitted."""
        domain = f"simpler_ref-{next(self._numbers)}"
        self._admitted[domain] = admitted
        return domain

    def _answer(self, questions: Socket[Any]) -> None:
        try:
            while True:
                version, request, domain, address, _, mechanism, *key = questions.recv_multipart()
                ok = mechanism == b"CURVE" and self._admits(domain.decode(), address.decode(), key)
                verdict = [b"200", b"OK"] if ok else [b"400", b"not admitted"]
                questions.send_multipart([version, request, *verdict, b"", b""])
        except zmq.ZMQError:
            questions.close()  # the context is being terminated, which waits for this

    def _admits(self, domain: str, address: str, key: list[bytes]) -> bool:
        from zmq.utils import z85

        public = z85.encode(key[0]).decode()
        if public in self._admitted.get(domain, ()):
            return True
        LOGGER.warning("refused a connection from %s: the key %s is not admitted", address, public)
        return False


_LOCK = threading.Lock()
_DOORKEEPERS: WeakKeyDictionary[Context[Any], Doorkeeper] = WeakKeyDictionary()


def doorkeeper(context: Context[Any]) -> Doorkeeper:
    """Return the one of a context."""
    with _LOCK:
        if context not in _DOORKEEPERS:
            _DOORKEEPERS[context] = Doorkeeper(context)
        return _DOORKEEPERS[context]
