"""Sessions on the nodes of a Ray cluster, each started by an actor.

Neither the program nor a link connects to Ray, whose threads would not survive their forks. A process of
its own, the keeper, holds the placement group while the fleet is open, and an actor for each endpoint.
Another one stands for each session, like the ``ssh`` of a `ProcessFleet`: it takes the manifest from its
standard input to the keeper, and the announcement back; the session ends when that input does.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import socket as sockets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from ...errors import RemoteError, describe_status
from ...remote.fleets import (
    Fleet,
    Manifest,
    SessionProcess,
    read_manifest,
    session_command,
    this_python,
    to_line,
)
from ...system.polling import other_end, wait_readable
from ...system.values import positive_seconds

NAMESPACE = "simpler_ref"
STOP_S = 5.0
GRACE_S = 30.0
"""How much longer than Ray's answer that of a process which connects to it may take."""
STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_A_NODE = "a node of Ray"
_PACKAGES = "simpler_ref", "simpler_ref.remote"
_PROGRAM = f"""
import json, sys, types
for name, folders in json.loads(sys.argv[2]).items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = folders
from {__name__} import main
main()
"""
"""The keeper. It imports this module and the few that this one needs, but not the whole package, which
takes longer than all else that comes before the start of actors."""
_STAND = """
import os, select, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect(chr(0) + sys.argv[1])
ends, announced = select.poll(), False
ends.register(0, select.POLLIN)
ends.register(door, select.POLLIN)
while True:
    for end, _ in ends.poll():
        read = os.read(end, 1 << 16)
        if end == 0 and read:
            door.sendall(read)
        elif end == 0:
            ends.unregister(0)
            door.shutdown(socket.SHUT_WR)
        elif not read:
            sys.exit(1)
        elif not announced and read.startswith(b"{"):
            announced = True
            os.write(1, read)
        else:
            os.write(2, read)
"""
"""What stands for a session: it starts at once, since it imports nothing of this package, nor Ray."""


class RayFleet(Fleet):
    """Sessions are on nodes of a Ray cluster, in a placement group with a bundle for each.

    The nodes have the same version of this package, and reach each other and the program at any port.

    Parameters
    ----------
    address : str, optional
        The cluster's, such as ``head:6379``. None: the one that this machine is in. How Ray authenticates
        is Ray's matter: the program's environment variables count.
    resources : mapping, optional
        What each endpoint needs, by Ray's names, such as ``{"CPU": 4, "NPU": 2}``. None: one CPU.
    strategy : {"SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"}
        Whether endpoints are on different nodes, as far as possible, or on as few as possible.
    timeout_s : float
        How long to wait until the cluster has the resources.

    Raises
    ------
    TypeError, ValueError
        Resources that are no numbers, or another strategy.
    """

    def __init__(
        self,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        *,
        strategy: str = "SPREAD",
        timeout_s: float = 60.0,
    ) -> None:
        self.address = address
        self.resources = {"CPU": 1.0} if resources is None else dict(resources)
        for name, number in self.resources.items():
            if not isinstance(number, (int, float)) or not number > 0:
                raise ValueError(
                    f"resources= has {name!r}: {number!r}, which is no positive number"
                )
        if not self.resources:
            raise ValueError("resources={}: name what an endpoint needs, such as {'CPU': 1}")
        if strategy not in STRATEGIES:
            raise ValueError(f"strategy={strategy!r} is none of {', '.join(STRATEGIES)}")
        self.strategy = strategy
        self.timeout_s = positive_seconds("timeout_s", timeout_s)
        self._door = ""
        """The name of the keeper's socket."""
        self._keepers: list[subprocess.Popen[bytes]] = []

    def __repr__(self) -> str:
        return f"RayFleet({self.address!r}, {self.resources})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the processes that keep placement groups."""
        return {**vars(self), "_keepers": []}

    def open(self, endpoints: int) -> None:
        """Reserve a bundle of resources for each endpoint; those of endpoints from before are kept.

        Raises
        ------
        RemoteError
            Ray is not installed or not there, or has not had these resources in time.
        """
        if importlib.util.find_spec("ray") is None:
            raise RemoteError("RayFleet needs Ray: pip install 'simpler_ref[ray]'")
        options = {
            "address": self.address,
            "resources": self.resources,
            "strategy": self.strategy,
            "timeout_s": self.timeout_s,
            "number": endpoints,
        }
        folders = {name: list(sys.modules[name].__path__) for name in _PACKAGES}
        keeper = subprocess.Popen(
            [*this_python(), "-c", _PROGRAM, json.dumps(options), json.dumps(folders)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keepers.append(keeper)
        assert keeper.stdout
        answer = b""
        if wait_readable([keeper.stdout.fileno()], self.timeout_s + GRACE_S):
            answer = keeper.stdout.readline()
        word, _, self._door = answer.decode(errors="replace").strip().partition(" ")
        if word != "ready" or not self._door:
            self.close()
            text = answer.decode(errors="replace").strip()
            raise RemoteError(f"{self!r}: {text or 'Ray does not answer; see what it has printed'}")

    def start(self, manifest: Manifest, endpoint: int) -> SessionProcess:
        if not self._door:
            raise RemoteError(f"{self!r} has no placement group: open it first")
        command = [*this_python(), "-S", "-c", _STAND, self._door]
        return SessionProcess(command, manifest, _A_NODE).started()

    def close(self) -> None:
        self._door = ""
        while self._keepers:
            keeper = self._keepers.pop()
            assert keeper.stdin and keeper.stdout
            with keeper.stdin as stdin, suppress(BrokenPipeError):
                stdin.write(b"\n")  # children of the program may have the pipe, so it need not end
            try:
                keeper.wait(STOP_S)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
            keeper.stdout.close()


# ---------------------------------------------------------------- in the keeper, which connects to Ray
def main() -> None:
    """Be the keeper of a fleet; what Ray prints goes to stderr."""
    with open(os.dup(1), "wb", 0) as channel:
        os.dup2(2, 1)
        code = _keep(channel, json.loads(sys.argv[1]))
    sys.stderr.flush()
    os._exit(code)  # other threads may wait for sessions


def _keep(channel: IO[bytes], options: Mapping[str, Any]) -> int:
    """Hold a placement group and start sessions in it, until stdin has something, or ends."""
    try:
        import ray
        from ray.util import placement_group, remove_placement_group

        address = options["address"] or "auto"
        ray.init(address, namespace=NAMESPACE, logging_level="warning", log_to_driver=True)
        bundles = [options["resources"]] * options["number"]
        group = placement_group(bundles, options["strategy"])
        if not group.wait(options["timeout_s"]):
            raise RemoteError(
                f"the cluster did not have {options['number']} × {options['resources']} within "
                f"{options['timeout_s']} s; available are {ray.available_resources()}"
            )
        keeper = _Keeper(ray, group, options)
    except Exception as error:
        channel.write(" ".join(str(error).split()).encode() + b"\n")
        return 1
    channel.write(f"ready {keeper.name}\n".encode())
    os.read(0, 1)
    remove_placement_group(group)
    ray.shutdown()
    return 0


class _Keeper:
    """Has an actor start a session for each process that connects to its socket, as the same user.

    The socket has no file that could be left behind.
    """

    def __init__(self, ray: Any, group: Any, options: Mapping[str, Any]) -> None:
        self._ray, self._group, self._resources = ray, group, options["resources"]
        # actors get what they need of this package by value: its import takes longer than all else
        ray.cloudpickle.register_pickle_by_value(sys.modules[_PACKAGES[0]])
        self._idle = [self._actor() for _ in range(options["number"])]  # they start meanwhile
        self.name = f"simpler_ref-{secrets.token_hex(16)}"
        self._socket = sockets.socket(sockets.AF_UNIX)
        self._socket.bind("\0" + self.name)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _actor(self) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = dict(self._resources)
        return (
            self._ray.remote(Starter)
            .options(
                num_cpus=bundle.pop("CPU", 0),
                num_gpus=bundle.pop("GPU", 0),
                memory=bundle.pop("memory", None),
                resources=bundle,
                max_concurrency=2,
                # the number of an endpoint is among all workers of its parent: any free bundle is meant
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
            )
            .remote()
        )

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if other_end(connection)[1] != os.getuid():
                connection.close()
                continue
            threading.Thread(target=self._stand_for, args=(connection,), daemon=True).start()

    def _stand_for(self, connection: sockets.socket) -> None:
        """Start a session, and end it when the connection ends."""
        with connection, connection.makefile("rb") as incoming:
            line = incoming.readline()
            try:
                actor = self._idle.pop()
            except IndexError:
                actor = self._actor()
            stopping = threading.Event()
            args = actor, incoming, stopping
            threading.Thread(target=self._stop_at_the_end, args=args, daemon=True).start()
            try:
                self._tell(connection, self._ray.get(actor.start.remote(line)))
                why = self._ray.get(actor.ended.remote())
            except Exception as error:
                why = str(getattr(error, "cause", None) or error)
            if not stopping.is_set() and not why.startswith(describe_status(0)):
                self._tell(connection, why)  # else it was told to end
            self._ray.kill(actor)
            with suppress(OSError):
                connection.shutdown(sockets.SHUT_RDWR)  # the other thread reads from it

    @staticmethod
    def _tell(connection: sockets.socket, text: str) -> None:
        with suppress(OSError):  # it may have ended
            connection.sendall(text.encode() + b"\n")

    def _stop_at_the_end(self, actor: Any, incoming: IO[bytes], stopping: threading.Event) -> None:
        with suppress(OSError, ValueError):
            incoming.read()
        stopping.set()
        with suppress(Exception):
            self._ray.get(actor.stop.remote(STOP_S), timeout=2 * STOP_S)
            return
        with suppress(Exception):
            self._ray.kill(actor)


class Starter:
    """An actor that starts a session on its node; the session ends with it."""

    def __init__(self) -> None:
        self._place: SessionProcess | None = None

    def start(self, line: bytes) -> str:
        """Start a session, and return its announcement as a line."""
        from ray.util import get_node_ip_address

        command = session_command(get_node_ip_address())
        self._place = SessionProcess(command, read_manifest(line))
        return to_line(self._place.started().announcement)

    def ended(self) -> str:
        """Wait for the end of the session, and return why it has ended."""
        assert self._place
        while not self._place.wait(1.0):
            pass
        return self._place.why()

    def stop(self, timeout_s: float) -> None:
        if self._place:
            self._place.stop(timeout_s)
