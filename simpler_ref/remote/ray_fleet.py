"""Sessions on the nodes of a Ray cluster, each started by an actor.

Neither the program nor a link connects to Ray, whose threads would not survive their forks. A process of
its own holds the placement group while the fleet is open. Another one stands for each session, like the
``ssh`` of a `ProcessFleet`: it takes the manifest from its standard input, and ends the session
when that ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from ..errors import RemoteError, describe_status
from .fleets import Fleet, session_command, this_python
from .hosting import SessionProcess, read_manifest
from .manifest import Manifest, to_line

NAMESPACE = "simpler_ref"
STOP_S = 5.0
GRACE_S = 30.0
"""How much longer than Ray's answer that of a process which connects to it may take."""
STRATEGIES = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
_A_NODE = "a node of Ray"
_PROGRAM = "from simpler_ref.remote.ray_fleet import main; main()"


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
        self.strategy, self.timeout_s = strategy, timeout_s
        self._group = ""
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
        self._group = f"simpler_ref-{secrets.token_hex(8)}"
        keeper = subprocess.Popen(
            self._command(_keep, endpoints),
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._keepers.append(keeper)
        assert keeper.stdout
        answer = b""
        if select.select([keeper.stdout], [], [], self.timeout_s + GRACE_S)[0]:
            answer = keeper.stdout.readline()
        if answer != b"ready\n":
            self.close()
            text = answer.decode(errors="replace").strip()
            raise RemoteError(f"{self!r}: {text or 'Ray does not answer; see what it has printed'}")

    def start(self, manifest: Manifest, endpoint: int) -> SessionProcess:
        """Have an actor start a session, and return where it is once it has announced itself."""
        if not self._group:
            raise RemoteError(f"{self!r} has no placement group: open it first")
        return SessionProcess(self._command(_stand_for, endpoint), manifest, _A_NODE).started()

    def close(self) -> None:
        """Free the placement groups."""
        self._group = ""
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

    def _command(self, role: Any, number: int) -> list[str]:
        options = {
            "address": self.address,
            "group": self._group,
            "resources": self.resources,
            "strategy": self.strategy,
            "timeout_s": self.timeout_s,
            "number": number,
        }
        return [*this_python(), "-c", _PROGRAM, role.__name__, json.dumps(options)]


# ---------------------------------------------------------------- in processes that connect to Ray
def main() -> None:
    """Do what the arguments say; what Ray prints goes to stderr."""
    with open(os.dup(1), "wb", 0) as channel:
        os.dup2(2, 1)
        roles = {role.__name__: role for role in (_keep, _stand_for)}
        code = roles[sys.argv[1]](channel, json.loads(sys.argv[2]))
    sys.stderr.flush()
    os._exit(code)  # another thread may wait for stdin


def _connect(options: Mapping[str, Any]) -> Any:
    import ray

    address = options["address"] or "auto"
    ray.init(address, namespace=NAMESPACE, logging_level="warning", log_to_driver=True)
    return ray


def _keep(channel: IO[bytes], options: Mapping[str, Any]) -> int:
    """Hold a placement group until stdin has something, or ends."""
    try:
        ray = _connect(options)
        from ray.util import placement_group

        bundles = [options["resources"]] * options["number"]
        group = placement_group(bundles, options["strategy"], name=options["group"])
        if not group.wait(options["timeout_s"]):
            raise RemoteError(
                f"the cluster did not have {options['number']} × {options['resources']} within "
                f"{options['timeout_s']} s; available are {ray.available_resources()}"
            )
    except Exception as error:
        channel.write(" ".join(str(error).split()).encode() + b"\n")
        return 1
    channel.write(b"ready\n")
    os.read(0, 1)
    ray.util.remove_placement_group(group)
    ray.shutdown()
    return 0


def _stand_for(channel: IO[bytes], options: Mapping[str, Any]) -> int:
    """Have an actor start a session, and end it when stdin ends."""
    line = sys.stdin.buffer.readline()
    ray = _connect(options)
    from ray.util import get_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = dict(options["resources"])
    # the number of an endpoint is among all workers of its parent, so any free bundle is meant
    where = PlacementGroupSchedulingStrategy(get_placement_group(options["group"]))
    actor = (
        ray.remote(Starter)
        .options(
            num_cpus=bundle.pop("CPU", 0),
            num_gpus=bundle.pop("GPU", 0),
            memory=bundle.pop("memory", None),
            resources=bundle,
            max_concurrency=2,
            scheduling_strategy=where,
        )
        .remote()
    )
    stopping = threading.Event()
    args = ray, actor, stopping
    threading.Thread(target=_stop_at_the_end, args=args, daemon=True).start()
    try:
        channel.write(ray.get(actor.start.remote(line)).encode() + b"\n")
        why = ray.get(actor.ended.remote())
    except Exception as error:
        why = str(getattr(error, "cause", None) or error)
    if not stopping.is_set() and not why.startswith(describe_status(0)):  # else it was told to end
        print(why, file=sys.stderr)
    return 1


def _stop_at_the_end(ray: Any, actor: Any, stopping: threading.Event) -> None:
    while os.read(0, 1 << 16):
        pass
    stopping.set()
    with suppress(Exception):
        ray.get(actor.stop.remote(STOP_S), timeout=2 * STOP_S)
    os._exit(0)


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
        """End the session."""
        if self._place:
            self._place.stop(timeout_s)
