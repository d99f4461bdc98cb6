"""Sessions on a Ray cluster of this machine, where Ray is installed."""

import importlib.util
import os
import pickle
import secrets
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from simpler_ref.errors import RemoteError
from simpler_ref.extras.ray_fleet import RayFleet
from simpler_ref.remote import connection

from ...sessions import DEADLINE_S, manifest
from ...system.programs import dies

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="there is no Ray")
HEAD = """
import ray, sys
ray.init(num_cpus=3, include_dashboard=False, object_store_memory=80_000_000, log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def address():
    """Run a cluster with a token of its own."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SCHEDULER_EVENTS": "0",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        pipe, command = subprocess.PIPE, [sys.executable, "-c", HEAD]
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as head:
            yield head.stdout.readline().strip()
            head.stdin.close()


@pytest.fixture(scope="module")
def fleet(address):
    fleet = RayFleet(address)
    fleet.open(2)
    yield fleet
    fleet.close()


def real(**worker):
    pair = connection.new_pair()
    more = {
        "parent_key": pair.public,
        "group_key": pair.public,
        "group_secret": pair.secret,
        "start_timeout_s": 100.0,
    }
    return replace(manifest(more), worker=worker)


@needs_ray
def test_sessions_start_and_end_with_their_place(fleet):
    travelled = pickle.loads(pickle.dumps(fleet))
    places = [travelled.start(real(), i) for i in range(2)]
    assert [place.why() for place in places] == ["", ""]
    pids = [place.announcement.pid for place in places]
    places[0].stop(DEADLINE_S)
    os.kill(pids[1], signal.SIGKILL)
    assert places[1].wait(DEADLINE_S) and places[1].why().endswith("killed by SIGKILL")
    places[1].stop(DEADLINE_S)
    assert all(map(dies, pids))


@needs_ray
def test_a_failed_start_says_why(fleet):
    with pytest.raises(RemoteError, match="unexpected keyword argument 'colour'"):
        fleet.start(real(colour="red"), 0)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named():
    with pytest.raises(RemoteError, match=r"pip install 'simpler_ref\[ray\]'"):
        RayFleet().open(1)


def test_a_fleet_that_is_not_open_starts_nothing():
    with pytest.raises(RemoteError, match="open it first"):
        RayFleet("head:1").start(manifest(), 0)


@pytest.mark.parametrize(
    "options",
    [*({"resources": one} for one in ({}, {"CPU": "4"}, {"CPU": 0})), {"strategy": "NEAR"}],
)
def test_arguments_that_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RayFleet(**options)
