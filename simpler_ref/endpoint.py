"""``python -m simpler_ref.endpoint``: a session, or what starts sessions when a parent asks for them.

Without options but ``--interface`` it is a session of a parent that has started it: the manifest comes
from stdin, whose end of file ends the session. With ``--listen`` it waits for parents: see `HostFleet`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from .errors import RemoteError, WorkerStartError
from .remote.connection import read_pair, write_pair
from .remote.daemon import Daemon
from .remote.fleets import Announcement, read_manifest, to_line
from .remote.limits import ANY_MODULE

FROM_SSH = "ssh"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; return the exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        if given.make_keys:
            write_pair(given.make_keys)
            return 0
        if given.listen:
            return listen(parser, given)
    except (RemoteError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if os.isatty(0):
        parser.error("sessions are started by their parent: give --listen to wait for one")
    return run_session(given.interface)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simpler_ref.endpoint",
        description="Run a session of an endpoint, started by its parent; or wait for parents.",
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="wait for parents at tcp://0.0.0.0:5555, for example"
    )
    parser.add_argument("--keys", metavar="FILE", help="the keys of this side and of parents")
    parser.add_argument(
        "--make-keys", metavar="FILE", help="write new keys into a new file, for both sides"
    )
    parser.add_argument(
        "--module",
        action="append",
        default=[],
        metavar="NAME",
        help="a module that callables may be imported from, with those below it; '*' is any",
    )
    parser.add_argument(
        "--allow-serialized",
        action="store_true",
        help="accept serialised callables, and chips with theirs, which can do anything",
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="let parents ask for sessions with connections in the open",
    )
    parser.add_argument(
        "--interface",
        default="127.0.0.1",
        help="the address that a session listens at; 'ssh': the one that ssh has reached",
    )
    return parser


def listen(parser: argparse.ArgumentParser, given: argparse.Namespace) -> int:
    """Start sessions for parents until Ctrl-C or SIGTERM."""
    if not given.keys:
        parser.error("give --keys FILE (--make-keys makes one)")
    for name in given.module:
        if name != ANY_MODULE and find_spec(name.partition(".")[0]) is None:
            parser.error(
                f"--module {name}: there is no such module here: install it, or set PYTHONPATH"
            )
    daemon = Daemon(
        given.listen,
        read_pair(given.keys),
        modules=given.module,
        serialized=given.allow_serialized,
        insecure=given.insecure,
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: daemon.end())
    try:
        print(f"listening at {daemon.address}", flush=True)
        daemon.serve()
    finally:
        daemon.close()
    return 0


def run_session(interface: str) -> int:
    """Be a session: read the manifest, announce, serve until stdin ends.

    The channel is moved away from the standard streams first, so that no task reads or writes it.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what starts it may have blocked some
    ended, channel = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    def announce(announcement: Announcement) -> None:
        os.write(channel, to_line(announcement).encode() + b"\n")
        os.close(channel)

    try:
        with open(ended, "rb", 0, closefd=False) as said:
            line = said.readline()
        if not line.endswith(b"\n"):
            raise RemoteError("the parent has gone before it has said what to do")
        manifest = read_manifest(line)
        sys.path[:0] = [one for one in manifest.path if one not in sys.path]
        if manifest.original_names:
            from .compat import install

            install()
        from .remote.session import serve
        from .worker import Worker

        serve(manifest, announce, ended, listening_address(interface), Worker)
    except (RemoteError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except (ImportError, MemoryError, OSError, WorkerStartError) as error:
        # a line says what is missing here; where in this package that was noticed helps nobody
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def listening_address(interface: str) -> str:
    """Return the address to listen at."""
    if interface != FROM_SSH:
        return interface
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        raise RemoteError(
            f"SSH_CONNECTION={' '.join(words)!r} does not say at which address ssh has reached this "
            "host: give the fleet interface="
        )
    return words[2]


if __name__ == "__main__":
    raise SystemExit(main())
