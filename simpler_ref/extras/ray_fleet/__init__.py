"""Sessions on the nodes of a Ray cluster: an actor for each runs a daemon that starts it.

Neither the program nor a link connects to Ray, whose threads would not survive their forks. A process of
its own, the keeper, holds the placement group while the fleet is open, and the actors. A link asks it
for the address of one, over a socket; the actor is the link's until that connection ends.
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
import types
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from ...errors import RemoteError
from ...remote.connection import KeyPair, new_pair
from ...remote.daemon import DaemonPlace
from ...remote.fleets import Fleet, Manifest, this_python
from ...system.polling import other_end, wait_readable
from ...system.values import positive_seconds

NAMESPACE = "simpler_ref"
STOP_S = 5.0
GRACE_S = 30.0
"""How much longer than Ray's answer that of a process which connects to it may take."""
STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_PACKAGES = "simpler_ref", "simpler_ref.remote"
_PROGRAM = f"""
import json, sys, types
for name, folders in json.loads(sys.argv[1]).items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = folders
from {__name__} import main
main()
"""
"""The keeper. It imports this module and the few that this one needs, but not the whole package, which
takes longer than all else that comes before the start of actors."""


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
        self._pair: KeyPair
        """The keys of the daemons."""
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
        self._pair = new_pair()
        options = {
            "address": self.address,
            "resources": self.resources,
            "strategy": self.strategy,
            "timeout_s": self.timeout_s,
            "number": endpoints,
            "keys": self._pair,
        }
        folders = {name: list(sys.modules[name].__path__) for name in _PACKAGES}
        keeper = subprocess.Popen(
            [*this_python(), "-c", _PROGRAM, json.dumps(folders)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keepers.append(keeper)
        assert keeper.stdin and keeper.stdout
        keeper.stdin.write(json.dumps(options).encode() + b"\n")
        answer = b""
        if wait_readable([keeper.stdout.fileno()], self.timeout_s + GRACE_S):
            answer = keeper.stdout.readline()
        word, _, self._door = answer.decode(errors="replace").strip().partition(" ")
        if word != "ready" or not self._door:
            self.close()
            text = answer.decode(errors="replace").strip()
            raise RemoteError(f"{self!r}: {text or 'Ray does not answer; see what it has printed'}")

    def start(self, manifest: Manifest, endpoint: int) -> DaemonPlace:
        if not self._door:
            raise RemoteError(f"{self!r} has no placement group: open it first")
        line = sockets.socket(sockets.AF_UNIX)
        line.settimeout(manifest.start_timeout_s)
        try:
            line.connect("\0" + self._door)
            with line.makefile() as answers:
                said = answers.readline().strip()
        except OSError as error:
            said = str(error)
        if not said.startswith("tcp://"):
            line.close()
            raise RemoteError(f"{self!r}: {said or 'it has been closed'}")
        return DaemonPlace(said, self._pair, manifest, line).started()

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
    with open(os.dup(1), "wb", 0) as channel, open(0, "rb", 0, closefd=False) as said:
        os.dup2(2, 1)
        code = _keep(channel, json.loads(said.readline()))
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
    """Lends an actor to each process that connects to its socket, as the same user, while it does.

    The socket has no file that could be left behind.
    """

    def __init__(self, ray: Any, group: Any, options: Mapping[str, Any]) -> None:
        self._ray, self._group, self._resources = ray, group, options["resources"]
        self._keys = options["keys"]
        # else actors would import the package, which takes longer than all else
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._idle = [self._actor() for _ in range(options["number"])]  # they start meanwhile
        self.name = f"simpler_ref-{secrets.token_hex(16)}"
        self._socket = sockets.socket(sockets.AF_UNIX)
        self._socket.bind("\0" + self.name)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _actor(self) -> tuple[Any, Any]:
        """Return a new actor, and what will be the address of its daemon."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = dict(self._resources)
        actor = (
            self._ray.remote(Starter)
            .options(
                num_cpus=bundle.pop("CPU", 0),
                num_gpus=bundle.pop("GPU", 0),
                memory=bundle.pop("memory", None),
                resources=bundle,
                # the number of an endpoint is among all workers of its parent: any free bundle is meant
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group),
            )
            .remote()
        )
        return actor, actor.listen.remote(self._keys)

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if other_end(connection)[1] != os.getuid():
                connection.close()
                continue
            threading.Thread(target=self._lend, args=(connection,), daemon=True).start()

    def _lend(self, connection: sockets.socket) -> None:
        try:
            actor, address = self._idle.pop()
        except IndexError:
            actor, address = self._actor()
        try:
            said = self._ray.get(address)
        except Exception as error:
            said = " ".join(str(getattr(error, "cause", None) or error).split())
        with connection, suppress(OSError):
            connection.sendall(said.encode() + b"\n")
            connection.recv(1)
        self._ray.kill(actor)


class Starter:
    """An actor that runs a daemon on its node, whose sessions end with it."""

    def listen(self, keys: tuple[str, str]) -> str:
        """Start the daemon, and return its address."""
        from ray.util import get_node_ip_address

        for name in _PACKAGES:  # the daemon imports a few modules of them
            found = importlib.util.find_spec(name)
            assert found is not None
            package = sys.modules[name] = types.ModuleType(name)
            package.__path__ = list(found.submodule_search_locations or ())
        from ...remote.connection import KeyPair
        from ...remote.daemon import Daemon
        from ...remote.limits import ANY_MODULE

        address = f"tcp://{get_node_ip_address()}:*"
        daemon = Daemon(
            address, KeyPair(*keys), modules=(ANY_MODULE,), serialized=True, insecure=True
        )
        threading.Thread(target=daemon.serve, daemon=True).start()
        return daemon.address
