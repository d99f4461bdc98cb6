"""What happens to endpoints when processes are killed or stopped and networks cut, slow or lossy.

Hosts are network namespaces, where there are: they share nothing but the network with this one. No test
asserts how long anything takes, except that it ends.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
import zmq

from simpler_ref import (
    CallableError,
    ControlError,
    RemoteError,
    TaskError,
    WorkerLostError,
    WorkerStartError,
)
from simpler_ref.remote import HostFleet, connection
from simpler_ref.remote.connection import prepare
from tests import fail_points, far_side, list_programs
from tests.endpoints import COUNT, EXISTING, INOUT, INPUT, program
from tests.fail_points import arm
from tests.spec_rules import ROOT
from tests.support import Gate, make_args, sample, wait_until

from .programs import Fork

DEADLINE_S = 120.0
LONG = 1 << 17
"""Numbers of an array that does not travel in a frame."""
SILENCE_S = 1.0


# ---------------------------------------------------------------- hosts
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
    with suppress(subprocess.CalledProcessError):
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

    # ------------------------------------------------------------ its network
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


@contextmanager
def two_hosts(folder):
    """Yield two hosts with daemons, linked to this one and to each other, and the file of their keys."""
    number, key_file = next(NUMBERS), str(folder / "keys")
    connection.write_pair(key_file)
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


# ---------------------------------------------------------------- programs on them
WHY_NOT = why_not()
needs_hosts = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
ways = pytest.mark.parametrize("way", sample(["both", "in", "out"], 1))
pytestmark = pytest.mark.timeout(DEADLINE_S)


class Scene:
    """A program with an endpoint on each of two hosts."""

    def __init__(self, hosts, made):
        self.hosts, self.program, self.worker = hosts, made, made.worker

    def session(self, i):
        return self.worker.endpoints()[i]["session"]

    def during(self, task, action):
        """Run a task at the first endpoint; act when it has been sent there."""
        handle = self.program.handle(task[0])
        sent = self.worker.endpoints()[0]["frames_sent"]

        def orch_fn(orch, args, config):
            orch.submit_next_level(handle, task[1], worker=0)
            wait_until(lambda: self.worker.endpoints()[0]["frames_sent"] > sent)
            action()

        self.worker.run(orch_fn)

    def until_back(self):
        """Run tasks elsewhere until both endpoints are there."""
        nothing = far_side.nothing, None, {"worker": 1}
        wait_until(lambda: self.program.run(nothing) or self.worker.endpoints()[0]["alive"])

    def works(self):
        """Assert that both endpoints run tasks, and move memory from one to the other."""
        two = self.program
        there = two.buffer(0, np.arange(5))
        here = self.worker.remote_import(self.worker.remote_export(there), worker=1)
        two.run(
            (far_side.add_one, two.args((there, INOUT))),
            (far_side.add_one, two.args((here, INOUT))),
        )
        assert two.values(there).tolist() == [2, 3, 4, 5, 6]
        assert find_their_way(two).tolist() == [2] * COUNT


def find_their_way(two, x=None):
    """Return an array to which both endpoints have added, wherever it was."""
    x = two.worker.zeros(COUNT, np.float32) if x is None else x
    args = make_args((x, INOUT))
    two.run(*[(far_side.add_one, args, {"worker": i}) for i in range(2)])
    return x


@contextmanager
def scene(folder, **spec):
    """Yield a scene; at its end nothing is left on the hosts."""
    with two_hosts(folder) as (*hosts, key_file):
        fleet = HostFleet([f"tcp://{one.address}:5555" for one in hosts], keys=key_file)
        spec = {"silence_s": SILENCE_S, "modules": ["tests"], **spec}
        with program(2, fleet=fleet, **spec) as made:
            yield Scene(hosts, made)
        for host in hosts:
            host.heal()
            wait_until(lambda host=host: not host.processes())


# ---------------------------------------------------------------- the network
@needs_hosts
@pytest.mark.slow("starts sessions in network namespaces")
def test_hosts_need_to_share_nothing_but_a_network(tmp_path):
    with scene(tmp_path, num_sub_workers=1) as it:
        it.works()
        pids = [one["pid"] for one in it.worker.endpoints()]
        assert all(pid < 100 for pid in pids)  # numbers of another /proc


@needs_hosts
@ways
@pytest.mark.slow("a silent host is lost after two seconds")
def test_a_host_that_cannot_be_reached_is_lost_and_comes_back_as_a_new_session(tmp_path, way):
    with scene(tmp_path) as it:
        it.works()
        host, before = it.hosts[0], it.session(0)
        with pytest.raises(
            WorkerLostError, match=r"endpoint 0 of tcp://.*(silent for 1\.0 s|is lost)"
        ):
            it.during((far_side.sleep, None), lambda: host.cut(host.here, way))
        wait_until(lambda: not host.processes())  # there it knows, too, though nobody could tell it
        host.heal()
        it.works()
        assert it.session(0) != before


@needs_hosts
@pytest.mark.slow("a host is cut off for longer than a daemon would wait by itself")
def test_the_program_says_how_long_hosts_may_be_silent(tmp_path):
    with scene(tmp_path, silence_s=8.0) as it:
        it.works()
        before = it.session(0)
        it.hosts[0].blink(it.hosts[0].here, 2.5)
        it.works()
        assert it.session(0) == before


PEER = """
import sys, zmq
from simpler_ref.remote.connection import prepare
socket = zmq.Context().socket(zmq.ROUTER)
prepare(socket, 2.0, stopped_s=0.0)
socket.bind(sys.argv[1])
print("ready", flush=True)
while True:
    socket.send_multipart(socket.recv_multipart())
"""


@needs_hosts
@pytest.mark.slow("starts daemons in network namespaces, and cuts one off")
def test_a_connection_without_heartbeats_on_which_nothing_is_sent_outlives_a_short_cut(tmp_path):
    def ask(text):
        client.send(text)
        assert client.poll(DEADLINE_S * 500)
        return client.recv()

    context = zmq.Context()
    with two_hosts(tmp_path) as (host, _, _):
        address = f"tcp://{host.address}:7777"
        command = ["ip", "netns", "exec", host.name, sys.executable, "-c", PEER, address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as peer:
            try:
                assert peer.stdout.readline() == b"ready\n"
                client = context.socket(zmq.DEALER)
                prepare(client, 2.0, stopped_s=0.0)
                client.connect(address)
                assert ask(b"before") == b"before"
                # longer than a second, after which each system looks whether the other one is there
                host.blink(host.here, 1.9)
                time.sleep(1.5)
                assert ask(b"after") == b"after"
            finally:
                context.destroy(linger=0)
                peer.kill()


@needs_hosts
@ways
@pytest.mark.slow("a transfer gives up after its time limit")
def test_endpoints_that_cannot_reach_each_other_fail_the_task_and_live_on(tmp_path, way):
    with scene(tmp_path) as it:
        two = it.program
        there = two.buffer(0, np.ones(1 << 20))
        here = it.worker.remote_import(it.worker.remote_export(there), worker=1)
        mine = two.buffer(1, np.zeros(1 << 20))
        before = [it.session(i) for i in range(2)]
        first, second = it.hosts
        first.cut(second.address, way)
        copy = (far_side.copy, two.args((here, INPUT), (mine, EXISTING)))
        with pytest.raises(TaskError, match="fetch 4194304 bytes"):
            two.run(copy)
        assert [it.session(i) for i in range(2)] == before
        first.heal()
        two.run(copy)
        assert two.values(mine).tolist() == two.values(there).tolist()
        assert [it.session(i) for i in range(2)] == before


@needs_hosts
@pytest.mark.long
@pytest.mark.parametrize(("percent", "count"), [(1, 1000), (20, 300)])
def test_tasks_end_or_say_why_not_where_packets_are_lost(tmp_path, percent, count):
    with scene(tmp_path, silence_s=4.0) as it:
        it.works()
        two = it.program
        there = two.buffer(0, np.zeros(1))
        task = far_side.add_one, two.args((there, INOUT))
        two.run(task)
        it.hosts[0].lose(percent)
        try:
            two.run(*[task] * count)
            assert two.values(there).tolist() == [1 + count]
        except WorkerLostError as error:
            assert percent == 20, error
            assert "endpoint 0" in str(error)
        it.hosts[0].heal()
        it.until_back()
        it.works()


@needs_hosts
@pytest.mark.slow("a host notices the silence after two seconds")
def test_hosts_stop_working_for_a_program_that_is_gone(tmp_path):
    with two_hosts(tmp_path) as (*hosts, key_file), Gate() as running:
        fleet = HostFleet([f"tcp://{one.address}:5555" for one in hosts], keys=key_file)

        def be_parent():
            with program(
                2, fleet=fleet, modules=["tests"], silence_s=1.0, num_sub_workers=1
            ) as two:
                two.run((far_side.nothing, None))
                running.open(1)
                two.run(*[(far_side.sleep, None, {"worker": i}) for i in range(2)])

        with Fork(be_parent) as parent:
            running.wait()
            assert all(host.processes() for host in hosts)
            parent.kill()
            for host in hosts:
                wait_until(lambda host=host: not host.processes())


# ---------------------------------------------------------------- processes
@pytest.mark.long
def test_a_task_that_keeps_pythons_lock_is_no_lost_endpoint():
    with program(1, silence_s=0.5) as one:
        one.run((far_side.hold_the_lock, one.args(scalars=[1500])))
        assert one.worker.endpoints()[0]["alive"]


@pytest.mark.spec("REMOTE-AHEAD-6")
@pytest.mark.parametrize("point", sample([*fail_points.AHEAD], 1))
@pytest.mark.slow("starts endpoints, and starts them again")
def test_whoever_dies_with_tasks_that_were_sent_ahead_is_noticed_and_replaced(
    point, tmp_path, monkeypatch
):
    once = arm(point, tmp_path, monkeypatch)
    with program(2, depth=8) as two:
        seen = []
        while once.exists():
            buffers = [two.buffer(i, [1.0]) for i in (0, 1) for _ in range(20)]
            try:
                two.run(*[(far_side.add_one, two.args((one, INOUT))) for one in buffers] * 2)
                assert [two.values(one)[0] for one in buffers] == [3.0] * 40
            except WorkerLostError as error:
                seen.append(error)
        assert len(seen) == 1 and "endpoint" in str(seen[0])
        two.run(*[(far_side.nothing, None, {"worker": i}) for i in range(2)] * 20)


@pytest.mark.long
@pytest.mark.parametrize("point", fail_points.COPIES)
def test_whoever_dies_while_tensors_move_for_the_next_task_is_noticed(point, tmp_path, monkeypatch):
    once = arm(point, tmp_path, monkeypatch)
    with program(1, depth=8) as one:
        x = [one.worker.zeros(LONG, np.float32) for _ in range(8)]
        task, seen = far_side.wait, []
        for function in (task, far_side.add_one):
            one.handle(function)
        while once.exists():
            for array in x:
                one.worker.renew(array)
                array[:] = 0
            args = [make_args((array, INOUT), scalars=[2]) for array in x]
            try:
                one.run(*[(task, given) for given in args], (far_side.add_one, args[0]))
                assert [array[0] for array in x] == [1] + [0] * 7
            except (WorkerLostError, ControlError, TaskError, RemoteError) as error:
                seen.append(error)
        assert len(seen) == 1 and "endpoint" in str(seen[0])
        one.run((far_side.nothing, None))


class Sides:
    """A graph in which two endpoints need each other in each step, and the arrays that it exchanges."""

    def __init__(self, worker):
        self.worker = worker
        self.graph, self.x, self.y = list_programs.sides(worker, list_programs.sleep_ms, steps=3)
        assert self.replay() is None
        assert self.replay() is None and self.graph._went_by_lists

    def replay(self):
        """Replay it; return the error, after which each array is as before, as after, or told as lost."""
        before = self.x[0], self.y[0]
        try:
            self.graph.run()
        except (WorkerLostError, TaskError, RemoteError) as error:
            for array, was in zip((self.x, self.y), before, strict=True):
                whole = len({*array.tolist()}) == 1
                assert (whole and array[0] in before) or "lost" in str(error.__notes__)
                self.worker.renew(array)
                array[:] = was
            return error
        assert sorted((self.x[0], self.y[0])) == sorted(before)
        return None


@pytest.mark.long
@pytest.mark.parametrize("whom", ["session", "link"])
@pytest.mark.timeout(900)
def test_processes_killed_at_any_time_end_a_replay_and_the_next_is_right(whom):
    draw = random.Random(whom)
    with list_programs.endpoints() as worker:
        both = Sides(worker)

        def sessions():
            return [one["session"] for one in worker.endpoints()]

        for number in range(100):
            pids = [one["pid"] for one in worker.endpoints()]
            if whom == "link":
                pids = worker.worker_pids()
            victim = pids[number % 2]
            killer = threading.Timer(draw.uniform(0, 0.02), os.kill, (victim, signal.SIGKILL))
            killer.start()
            begun, seen = sessions(), None
            while seen is None and sessions() == begun:  # between two replays nobody misses it
                seen = both.replay()
            killer.join()
            assert seen is None or "endpoint" in str(seen)
            assert both.replay() is None


@pytest.mark.parametrize("point", sample([*reversed(fail_points.LINK), *fail_points.SESSION], 2))
def test_whoever_dies_at_a_point_of_the_protocol_is_noticed_and_replaced(
    point, tmp_path, monkeypatch
):
    once = arm(point, tmp_path, monkeypatch)
    seen = []
    with ExitStack() as stack:
        try:
            two = stack.enter_context(program(2))
        except WorkerStartError as error:
            seen.append(error)
            two = stack.enter_context(program(2))
        for _ in range(3):
            try:
                there = two.buffer(0, [1.0])
                here = two.worker.remote_import(two.worker.remote_export(there), worker=1)
                two.run((far_side.add_one, two.args((here, INOUT))))
                assert two.values(there).tolist() == [2.0]
            except (WorkerLostError, ControlError, CallableError, TaskError, ValueError) as error:
                seen.append(error)
        assert len(seen) <= 1 or point == "moving", seen
        two.run(*[(far_side.nothing, None, {"worker": i}) for i in range(2)])
    assert not once.exists(), "nobody has died"
    for error in seen:
        assert "endpoint" in str(error)


@pytest.mark.long
@pytest.mark.parametrize("whom", ["session", "link"])
@pytest.mark.timeout(900)
def test_a_tensor_is_right_or_lost_after_a_kill_at_any_time(whom):
    draw = random.Random(whom)
    with program(2) as two:

        def first():
            return two.worker.endpoints()[0]

        x = find_their_way(two)
        for _ in range(200):
            session = first()["session"]
            victim = first()["pid"] if whom == "session" else two.worker.worker_pids()[0]
            killer = threading.Timer(draw.uniform(0, 0.02), os.kill, (victim, signal.SIGKILL))
            killer.start()
            while first()["session"] == session:  # between two runs, nothing is lost with it
                before = x[0]
                try:
                    assert find_their_way(two, x).tolist() == [before + 2] * COUNT
                except (WorkerLostError, TaskError, ControlError) as error:
                    assert "endpoint" in str(error)
                    assert x[0] in (before, before + 1, before + 2)
                    assert len(set(x.tolist())) == 1
                except RemoteError as error:
                    assert "is lost" in str(error)
                    two.worker.renew(x)
            killer.join()
            assert two.worker.endpoints()[1]["alive"]
