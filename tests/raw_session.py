"""A session that a test commands frame by frame."""

import sys
from contextlib import contextmanager, suppress

import zmq

from simpler_ref import __version__
from simpler_ref.remote.connection import KeyPair, Order, new_pair, prepare, secure_client
from simpler_ref.remote.fleets import Manifest, ProcessFleet
from simpler_ref.remote.frames import (
    FrameType,
    HelloPayload,
    decode_completion,
    decode_control_reply,
    decode_hello,
    encode_control,
    encode_hello,
)
from simpler_ref.remote.session_frames import profile

SESSION, ENDPOINT = 77, 3
SILENCE_S = 2.0


class Client:
    """A connection to a session's frames; `sequence` numbers are those of `Order`."""

    def __init__(self, context, announcement, pair=None):
        self.order = Order(SESSION, ENDPOINT)
        self.socket = context.socket(zmq.DEALER)
        prepare(self.socket, SILENCE_S)
        if pair is not None:
            secure_client(self.socket, pair, announcement.key)
        self.socket.connect(announcement.frames)

    def send(self, kind, payload=b""):
        """Send a frame, unless the connection has ended."""
        with suppress(zmq.Again):
            self.socket.send(self.order.encode(kind, payload))

    def ask(self, kind, payload=b"", timeout_s=20.0):
        """Send a frame, and return the answer; None if there is none in time."""
        self.send(kind, payload)
        return self.hear(timeout_s)

    def hear(self, timeout_s=20.0):
        """Return the next frame."""
        if not self.socket.poll(timeout_s * 1000):
            return None
        return self.order.decode(self.socket.recv())

    def run(self, payload):
        """Have it run a task; return the completion."""
        return decode_completion(self.ask(FrameType.TASK, payload).payload)

    def control(self, name, payload=b""):
        """Ask it for something; return the words of its refusal, or the bytes of the result."""
        asked = encode_control(name, 1, payload)
        reply = decode_control_reply(self.ask(FrameType.CONTROL, asked).payload)
        return reply.error_message or reply.result_bytes

    def greet(self, **wrong):
        """Exchange HELLOs, and return what the session's says."""
        hello = HelloPayload(SESSION, ENDPOINT, **{"comm_profile": profile(), **wrong})
        return decode_hello(self.ask(FrameType.HELLO, encode_hello(hello)).payload)


def manifest(pair=None, **fields):
    """Return a manifest for a session, in the open unless there are keys of its parent."""
    group = new_pair() if pair else None
    given = {
        "session_id": SESSION,
        "endpoint_id": ENDPOINT,
        "version": __version__,
        "worker": {"num_sub_workers": 1},
        "modules": ("tests",),
        "path": tuple(one for one in sys.path if one),
        "silence_s": SILENCE_S,
        **fields,
    }
    if pair is not None:
        given |= {
            "parent_key": pair.public,
            "group_key": group.public,
            "group_secret": group.secret,
        }
    return Manifest(**given)


@contextmanager
def session(pair=None, **fields):
    """Yield a place where a session waits for its parent, and what connects clients to it."""
    made = manifest(pair, **fields)
    place = ProcessFleet().start(made, ENDPOINT)
    place.group = KeyPair(made.group_key, made.group_secret)
    context, clients = zmq.Context(), []

    def connect(keys=pair):
        clients.append(Client(context, place.announcement, keys))
        return clients[-1]

    try:
        yield place, connect
    finally:
        for client in clients:
            client.socket.close(linger=0)
        context.term()
        place.stop(5.0)


@contextmanager
def greeted(**fields):
    """Yield a place whose session has greeted a client, and the client."""
    with session(**fields) as (place, connect):
        client = connect()
        client.greet()
        yield place, client
