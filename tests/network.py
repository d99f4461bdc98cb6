"""Hosts for tests: network namespaces that share nothing but the network with this one.

Each host has processes, a /dev/shm and addresses of its own. Links between them are cut without a trace,
as by a firewall that drops, or made to lose packets. Rules are in the hosts' namespaces only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from simpler_ref.remote import keys

from .spec_rules import ROOT

DEADLINE_S = 60.0
TOOLS = ("ip", "nft", "unshare")
NUMBERS = itertools.count(os.getpid() % 1000 * 8)
DAEMON = (
    "mount -t tmpfs none /dev/shm && mount -t proc proc /proc && "
    'exec "$0" -m simpler_ref.endpoint --listen "$1" --keys "$2" --module tests'
)
RULES = """
flush ruleset
table ip test {
  chain incoming { type filter hook input priority 0; %s }
  chain outgoing { type filter hook output priority 0; %s }
}
"""


def why_not() -> str:
    """Say why there are no hosts on this machine; "" if there are."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        return f"needs root and {', '.join(missing or TOOLS)}"
    probe = f"probe-{os.getpid()}"
    with contextlib.suppress(subprocess.CalledProcessError):
        call("ip", "netns", "add", probe)
        try:
            call("ip", "netns", "exec", probe, "nft", "-f", "-", text=RULES % ("", ""))
        finally:
            call("ip", "netns", "del", probe)
        return ""
    return "this machine has no network namespaces"


def call(*command: str, text: str = "") -> str:
    """Run a command and return what it prints."""
    return subprocess.run(
        command, input=text, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    ).stdout


class Host:
    """A namespace with a daemon that starts sessions there."""

    def __init__(self, name: str, here: str, address: str, number: int) -> None:
        self.name, self.here, self.address = name, here, address
        self.device = f"sr{number}"
        self._rules: dict[str, list[str]] = {"incoming": [], "outgoing": []}
        call("ip", "netns", "add", name)
        self.link(self.device, address, here, None)
        self.run("ip", "link", "set", "lo", "up")

    def link(self, device: str, address: str, other: str, host: Host | None) -> None:
        """Make a link to another host, None: to this one."""
        call("ip", "link", "add", device, "type", "veth", "peer", "name", f"{device}p")
        call("ip", "link", "set", f"{device}p", "netns", self.name)
        self.run("ip", "address", "add", address, "peer", other, "dev", f"{device}p")
        self.run("ip", "link", "set", f"{device}p", "up")
        run = call if host is None else host.run
        if host is not None:
            call("ip", "link", "set", device, "netns", host.name)
        run("ip", "address", "add", other, "peer", address, "dev", device)
        run("ip", "link", "set", device, "up")

    def run(self, *command: str, text: str = "") -> str:
        """Run a command there."""
        return call("ip", "netns", "exec", self.name, *command, text=text)

    def start(self, key_file: str) -> None:
        """Start the daemon, or start it anew."""
        program = ("sh", "-c", DAEMON, sys.executable, f"tcp://{self.address}:5555", key_file)
        self.daemon = subprocess.Popen(
            [*f"ip netns exec {self.name} unshare -m -p -f --kill-child".split(), *program],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.daemon.stdout and "listening" in self.daemon.stdout.readline()

    def kill(self) -> None:
        """Kill all of its processes, as if the machine were switched off and on."""
        self.daemon.kill()
        self.daemon.wait()
        self.daemon.stdout.close()

    def processes(self) -> int:
        """Return how many processes it has beside the daemon."""
        return len(call("ip", "netns", "pids", self.name).split()) - 2

    # ------------------------------------------------------------ the network
    def cut(self, to: str, way: str = "both") -> None:
        """Drop what comes from an address, what goes "out" to it, or both."""
        if way in ("in", "both"):
            self._rules["incoming"].append(f"ip saddr {to} drop;")
        if way in ("out", "both"):
            self._rules["outgoing"].append(f"ip daddr {to} drop;")
        self._apply()

    def blink(self, to: str, seconds: float) -> None:
        """Drop what comes from an address and goes to it, for hardly longer than that."""
        rules = RULES % (f"ip saddr {to} drop;", f"ip daddr {to} drop;")
        self.run("sh", "-c", f"nft -f - && sleep {seconds}; nft flush ruleset", text=rules)

    def lose(self, percent: int) -> None:
        """Drop a share of all packets, in both directions."""
        for rules in self._rules.values():
            rules.append(f"numgen random mod 100 < {percent} drop;")
        self._apply()

    def heal(self) -> None:
        """Drop nothing any more."""
        self._rules = {"incoming": [], "outgoing": []}
        self._apply()

    def _apply(self) -> None:
        lists = (" ".join(self._rules[chain]) for chain in ("incoming", "outgoing"))
        self.run("nft", "-f", "-", text=RULES % tuple(lists))


@contextlib.contextmanager
def two_hosts(folder: Path):
    """Yield two hosts with daemons, linked to this one and to each other, and the file of their keys."""
    number, key_file = next(NUMBERS), str(folder / "keys")
    keys.write_pair(key_file)
    hosts: list[Host] = []
    try:
        for i in (1, 2):
            net = f"10.{200 + number // 250 % 50}.{number % 250}"
            hosts.append(Host(f"sr-{number}-{i}", f"{net}.{i}0", f"{net}.{i}", number * 3 + i))
        first, second = hosts
        first.link(f"sr{number * 3}", first.address, second.address, second)
        for host in hosts:
            host.start(key_file)
        yield first, second, key_file
    finally:
        for host in hosts:
            if hasattr(host, "daemon"):
                host.kill()
            call("ip", "netns", "del", host.name)
