"""Moving bytes between sessions: right bytes, refusals that change nothing, and losses that end."""

import contextlib
import logging
import os
import threading

import numpy as np
import pytest
import zmq

from simpler_ref import TransferError
from simpler_ref.remote import mover
from simpler_ref.remote.connection import new_pair, secure_client
from simpler_ref.remote.mover import (
    CHUNK,
    CREDIT,
    GROUP,
    MOST_TOGETHER,
    Header,
    Kind,
    Mover,
    Refusal,
    Span,
    Window,
    Windows,
    decode,
    encode_windows,
    name_of,
    new_key,
)
from tests.mover_peer import KEY, NBYTES, Peer
from tests.support import wait_until

ANY = "tcp://127.0.0.1:*"
SILENCE_S = 0.5
READ, WRITE, BOTH = 1, 2, 3


@pytest.fixture
def open_mover():
    """Give a way to make movers, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_mover(group=None):
            made = Mover(ANY, group, SILENCE_S)
            stack.callback(made.close)
            return made

        yield open_mover


@pytest.fixture
def pair(open_mover):
    return open_mover(), open_mover()


@pytest.fixture
def start_peer():
    with contextlib.ExitStack() as stack:

        def start_peer(*args, **settings):
            peer = Peer(*args, silence_s=SILENCE_S, **settings)
            stack.callback(peer.close)
            return peer

        yield start_peer


@contextlib.contextmanager
def getting(mover, other, several, ended):
    """Have a mover get windows of another one on a thread; yield what has come, and the thread."""
    here = []
    thread = Waiting(mover.get_all, other.address, several, here.append, ended)
    yield here, thread
    thread.join()


@pytest.fixture
def ended():
    """Give a descriptor at which there is something to read once it is written to."""
    made = os.eventfd(0, os.EFD_NONBLOCK)
    yield made
    os.close(made)


def test_what_is_got_comes_when_it_is_offered_in_any_order(open_mover, ended):
    group = new_pair()
    owner, other = open_mover(group), open_mover(group)
    sources = [numbers(nbytes, seed) for seed, nbytes in enumerate((100, CHUNK + 7, 3 * CHUNK, 5))]
    into = [np.zeros_like(one) for one in sources]
    keys = [new_key() for _ in sources]
    several = [Span(key, one, one.nbytes) for key, one in zip(keys, into, strict=True)]
    with getting(other, owner, several, ended) as (here, thread):
        for i in 0, 1, 3, 2:
            assert i not in here and not into[i].any()
            one = sources[i]
            owner.offer_to_gets(Window(keys[i], one.ctypes.data, one.nbytes, READ))
            if i != 3:  # which is asked for once there is less under way
                wait_until(lambda i=i: i in here)
    assert sorted(here) == [0, 1, 2, 3] and thread.error is None
    assert all(np.array_equal(*pair) for pair in zip(sources, into, strict=True))


@pytest.mark.parametrize("how", ["nobody waits any more", "its mover is closed"])
def test_to_get_what_never_comes_ends(open_mover, ended, how):
    owner, other = open_mover(), open_mover()
    into, late = numbers(100), numbers(100, 2)
    before = into.copy()
    with getting(other, owner, [Span(5, into, into.nbytes)], ended) as (here, thread):
        wait_until(lambda: owner._gets)
        if how == "its mover is closed":
            owner.close()
        else:
            os.eventfd_write(ended, 1)
    assert not here and "cannot fetch 100 bytes" in str(thread.error)
    if how != "its mover is closed":
        owner.offer_to_gets(Window(5, late.ctypes.data, late.nbytes, READ))  # too late
    assert np.array_equal(into, before)


def test_a_mover_answers_questions_while_its_session_does_other_things(pair):
    asked, other = pair
    with pytest.raises(TransferError, match="no request") as refused:
        other.ask(asked.address, 5, b"what?")
    assert refused.value.refused

    def answer(key, question):
        if key != 5:
            raise Refusal("no")
        return question * 2

    asked.on_ask = answer
    assert other.ask(asked.address, 5, b"what?") == b"what?what?"
    assert other.ask(asked.address, 5, b"") == b""
    with pytest.raises(TransferError, match="no"):
        other.ask(asked.address, 6, b"what?")
    assert other.ask(asked.address, 5, b"and?") == b"and?and?", "the connection is kept"
    asked.close()
    with pytest.raises(TransferError, match="ask"):
        other.ask(asked.address, 5, b"what?")


def numbers(nbytes, seed=1):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def offer(there, memory, access=BOTH):
    key = new_key()
    there.offer(Window(key, memory.ctypes.data, memory.nbytes, access))
    return key


class Waiting(threading.Thread):
    """Calls a function in a thread, and keeps what it raises."""

    def __init__(self, call, *args):
        super().__init__()
        self._call, self._args = call, args
        self.error = None
        self.start()

    def run(self):
        try:
            self._call(*self._args)
        except TransferError as error:
            self.error = error


# ---------------------------------------------------------------- right bytes
SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, (CREDIT + 3) * CHUNK + 5]


@pytest.mark.parametrize("nbytes", SIZES)
def test_bytes_that_are_moved_are_those_of_the_window_and_no_others(pair, nbytes):
    here, there = pair
    memory, into = numbers(nbytes + 100), np.zeros(nbytes + 2, np.uint8)
    here.fetch_all(there.address, [Span(offer(there, memory, READ), into[1:-1], nbytes, 7)])
    assert np.array_equal(into[1:-1], memory[7 : 7 + nbytes])
    assert into[0] == into[-1] == 0
    memory, source = np.zeros(nbytes + 100, np.uint8), numbers(nbytes)
    here.store_all(
        there.address, [Span(offer(there, memory, WRITE), source.ctypes.data, nbytes, 7)]
    )
    assert np.array_equal(memory[7 : 7 + nbytes], source) and not memory[:7].any()
    assert not memory[7 + nbytes :].any()


def test_small_windows_are_read_together_and_long_ones_alone(pair):
    here, there = pair
    sizes = [5, GROUP - 5, 1, 3 * CHUNK, 7, *[1] * (MOST_TOGETHER + 1)]
    memories = [numbers(size, size) for size in sizes]
    into = [np.zeros(size + 1, np.uint8) for size in sizes]
    spans = [
        Span(offer(there, memory, READ), its, its.nbytes - 1)
        for memory, its in zip(memories, into, strict=True)
    ]
    here.fetch_all(there.address, spans)
    for its, memory in zip(into, memories, strict=True):
        assert np.array_equal(its[:-1], memory) and not its[-1]
    # the last one is counted once it has been sent
    wait_until(lambda: there.counters()["served_chunks"] == 1 + 1 + 3 + 2)
    there.withdraw(spans[-1].key)
    with pytest.raises(TransferError, match="not offered") as refused:
        here.fetch_all(there.address, spans)
    assert refused.value.refused


def test_what_is_written_with_a_question_comes_into_the_window_that_the_answer_names(pair):
    here, there = pair
    memory, source = np.zeros(2 * CHUNK + 5, np.uint8), numbers(2 * CHUNK + 5)
    keys, asked = {b"room": offer(there, memory, WRITE), b"here": 0}, []

    def answer(key, question):
        asked.append((key, question))
        if question == b"no room":
            raise MemoryError("all of it is taken")
        return keys[question].to_bytes(8, "little")

    there.on_ask = answer
    for question in b"here", b"room":
        assert not memory.any()
        here.store_all(there.address, [Span(5, source, source.nbytes, question=question)])
    assert np.array_equal(memory, source) and asked == [(5, b"here")] * 3 + [(5, b"room")] * 3
    for _ in range(2):
        with pytest.raises(MemoryError, match=r"^all of it is taken$"):
            here.store_all(there.address, [Span(5, source, source.nbytes, question=b"no room")])
    here.store_all(there.address, [Span(keys[b"room"], source[1:], 9)])
    assert np.array_equal(memory[:9], source[1:10]) and here.counters()["lines"] == 1


@pytest.mark.parametrize("group", [None, new_pair()], ids=["open", "CURVE"])
def test_several_threads_fetch_and_store_at_once(open_mover, group):
    here, there = open_mover(group), open_mover(group)
    nbytes = 5 * CHUNK + 3
    memories = [numbers(nbytes, seed) for seed in range(4)]
    keys = [offer(there, memory) for memory in memories]
    intos = [np.zeros(nbytes, np.uint8) for _ in memories]
    targets = [np.zeros(nbytes, np.uint8) for _ in memories]
    target_keys = [offer(there, memory) for memory in targets]

    def there_and_back(i):
        for _ in range(3):
            here.fetch_all(there.address, [Span(keys[i], intos[i], nbytes)])
            here.store_all(there.address, [Span(target_keys[i], intos[i], nbytes)])

    for thread in [Waiting(there_and_back, i) for i in range(4)]:
        thread.join()
        assert thread.error is None
    for memory, target in zip(memories, targets, strict=True):
        assert np.array_equal(memory, target)
    wait_until(
        lambda: there.counters()["served_chunks"] == 2 * 12 * 6
    )  # each counts once it is answered
    asked, served = here.counters(), there.counters()
    assert 1 <= asked["lines"] <= 4
    assert asked["transfers"] == 2 * 4 * 3
    assert asked["bytes_in"] == asked["bytes_out"] == 12 * nbytes
    assert served["served_in"] == served["served_out"] == 12 * nbytes


# ---------------------------------------------------------------- refusals
def refuse(call, *args):
    with pytest.raises(TransferError) as caught:
        call(*args)
    assert caught.value.refused
    return str(caught.value)


@pytest.mark.parametrize(
    ("access", "offset", "nbytes", "why"),
    [
        (BOTH, 1, 3 * CHUNK, "has 3145728 bytes: 3145728 bytes from byte 1 on are not in it"),
        (BOTH, 3 * CHUNK, 1, "are not in it; name a range within the window"),
        (BOTH, (1 << 64) - 1, CHUNK, "from byte 18446744073709551615 on are not in it"),
        (0, 0, 10, "may not be"),
        (None, 0, 10, "not any more"),
    ],
    ids=["too long", "behind", "overflow", "no access", "withdrawn"],
)
def test_a_range_that_may_not_be_moved_is_refused_without_change(pair, access, offset, nbytes, why):
    here, there = pair
    memory = numbers(3 * CHUNK)
    before = memory.copy()
    for move, other in ((here.fetch_all, WRITE), (here.store_all, READ)):
        key = offer(there, memory, access or other)
        for _ in range(2 * (access is None)):
            there.withdraw(key)
        ours = np.zeros(nbytes, np.uint8)
        text = refuse(move, there.address, [Span(key, ours, nbytes, offset)])
        assert why in text and name_of(key) in text
        assert f"{key:x}" not in text and np.array_equal(memory, before)
        assert not ours.any()
        here.fetch_all(there.address, [Span(offer(there, memory), ours, 1)])
        assert ours[0] == memory[0]


@pytest.mark.parametrize("direction", ["fetch", "store"])
def test_a_window_can_be_withdrawn_during_a_transfer(pair, direction, monkeypatch):
    here, there = pair
    nbytes = (CREDIT + 6) * CHUNK
    memory = np.zeros(nbytes, np.uint8)
    key, step = offer(there, memory), {"fetch": "read", "store": "write"}[direction]
    serve, at = getattr(there._windows, step), 4 * CHUNK
    kept = []

    def withdraw_first(asked, *rest):
        (header,) = asked if direction == "fetch" else (asked,)
        if header.at == at:
            there.withdraw(key)
            kept.append(memory.copy())
        return serve(asked, *rest)

    monkeypatch.setattr(there._windows, step, withdraw_first)
    ours = np.ones(nbytes, np.uint8)
    move = getattr(here, f"{direction}_all")
    assert "not any more" in refuse(move, there.address, [Span(key, ours, nbytes)])
    assert np.array_equal(memory, kept[0])
    again = offer(there, memory)  # what the transfer has left on the line disturbs no other
    memory[:] = numbers(nbytes)
    monkeypatch.undo()
    here.fetch_all(there.address, [Span(again, ours, nbytes)])
    assert np.array_equal(ours, memory)
    assert here.counters()["lines"] == 1


def test_to_withdraw_waits_for_the_chunk_that_is_copied():
    windows, memory = Windows(), numbers(10)
    windows.offer(Window(KEY, memory.ctypes.data, 10))
    header = Header(Kind.READ, 1, 1, KEY, 0, 10, 0)

    with windows.read([header]):
        withdrawal = Waiting(windows.withdraw, KEY)
        withdrawal.join(0.05)
        assert withdrawal.is_alive()
    withdrawal.join()


def test_chunks_of_a_transfer_that_was_given_up_are_not_copied():
    windows, memory = Windows(), np.zeros(10, np.uint8)
    windows.offer(Window(KEY, memory.ctypes.data, 10))
    first = Header(Kind.WRITE, 1, 5, KEY, 0, 10, 0)
    later, other = first._replace(transfer=6), first._replace(sender=2, transfer=1)
    assert windows.write(first, memoryview(b"a" * 10))
    assert windows.write(later, memoryview(b"b" * 10))
    assert not windows.write(first, memoryview(b"c" * 10))
    assert bytes(memory) == b"b" * 10
    assert windows.write(other, memoryview(b"d" * 10))


def test_a_key_is_used_for_one_window(open_mover):
    there, memory = open_mover(), numbers(8)
    key = offer(there, memory)
    with pytest.raises(ValueError, match="offered already"):
        there.offer(Window(key, memory.ctypes.data, 8))


# ---------------------------------------------------------------- what others may send
def dealer(context, address, group=None):
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    stranger.rcvtimeo = 20_000
    if group is not None:
        secure_client(stranger, *group)
    stranger.connect(address)
    return stranger


REQUEST = Header(Kind.READ, 1, 3, KEY, 0, 100, 0)
STORE = REQUEST._replace(kind=Kind.WRITE)
MANY = REQUEST._replace(key=0)
ONE = Span(KEY, b"", 1)
GARBAGE = {
    "nothing": [b""],
    "a short header": [REQUEST.encode()[:-1]],
    "a long header": [REQUEST.encode() + b"x"],
    "another magic": [b"HTTP" + REQUEST.encode()[4:]],
    "another version": [REQUEST.encode()[:4] + b"\2\0" + REQUEST.encode()[6:]],
    "an unknown kind": [REQUEST._replace(kind=77).encode()],
    "an answer": [REQUEST._replace(kind=Kind.DATA).encode(), bytes(100)],
    "data that nobody wants": [REQUEST.encode(), b"x"],
    "windows that are none": [MANY.encode(), b"x"],
    "more windows than bytes": [
        MANY.encode(),
        encode_windows([ONE] * 101),
    ],
    "windows and one more": [REQUEST.encode(), encode_windows([Span(KEY, b"", 100)])],
    "too many windows": [
        MANY.encode(),
        encode_windows([ONE] * (MOST_TOGETHER + 1)),
    ],
    "a wait for several windows": [
        REQUEST._replace(kind=Kind.GET, key=KEY + 1).encode(),
        encode_windows([ONE] * 100),
    ],
    "no data": [STORE.encode()],
    "too little data": [STORE.encode(), bytes(99)],
    "too much data": [STORE.encode(), bytes(101)],
    "three parts": [STORE.encode(), bytes(100), b"x"],
    "no bytes": [REQUEST._replace(nbytes=0).encode()],
    "more than there is": [STORE._replace(nbytes=101).encode(), bytes(101)],
    "an offset that overflows": [STORE._replace(offset=(1 << 64) - 50).encode(), bytes(100)],
    "a chunk between chunks": [STORE._replace(at=1).encode(), bytes(99)],
    "a chunk behind the range": [REQUEST._replace(at=CHUNK).encode()],
    "no key": [STORE._replace(key=0).encode(), bytes(100)],
}


@pytest.mark.parametrize("message", GARBAGE.values(), ids=list(GARBAGE))
def test_what_is_no_request_is_refused_logged_and_changes_nothing(open_mover, message, caplog):
    there, memory = open_mover(), numbers(100)
    there.offer(Window(KEY, memory.ctypes.data, 100))
    before = memory.copy()
    with zmq.Context() as context, dealer(context, there.address) as stranger:
        for _ in range(2):
            with caplog.at_level(logging.INFO, "simpler_ref"):
                stranger.send_multipart(message)
                header, why = stranger.recv_multipart()
            assert decode(header).kind == Kind.REFUSED
            assert why
        assert [record.name for record in caplog.records] == ["simpler_ref"] * 2
        assert why.decode() in caplog.text and np.array_equal(memory, before)
        stranger.send(REQUEST.encode())
        _, data = stranger.recv_multipart()
        assert data == memory.tobytes()
    assert there.counters()["served_refused"] == 2


def test_a_message_that_is_too_long_costs_its_sender_the_connection(pair):
    here, there = pair
    memory = numbers(100)
    there.offer(Window(KEY, memory.ctypes.data, 100))
    with zmq.Context() as context, dealer(context, there.address) as stranger:
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.send_multipart([STORE.encode(), bytes(CHUNK + 4096)])
        assert monitor.poll(20_000)
        monitor.close()
    into = bytearray(100)
    here.fetch_all(there.address, [Span(KEY, into, 100)])
    assert into == memory.tobytes()


@pytest.mark.spec("REMOTE-TRUST-2")
def test_whoever_has_no_keys_of_the_group_reaches_no_window(open_mover, monkeypatch, caplog):
    group, other = new_pair(), new_pair()
    there, memory = open_mover(group), numbers(100)
    key = offer(there, memory)
    for keys in (None, other, group):
        here = open_mover(keys)
        if keys is group:  # a stranger who knows the public key
            stranger = lambda line, *_: secure_client(line, other, group.public)  # noqa: E731
            monkeypatch.setattr(mover, "secure_client", stranger)
        with pytest.raises(TransferError, match="no session") as caught:
            here.fetch_all(there.address, [Span(key, bytearray(100), 100)])
        assert not caught.value.refused
    wait_until(lambda: caplog.text.count("refused a connection") >= 3)
    assert there.counters()["served_chunks"] == there.counters()["served_refused"] == 0
    monkeypatch.undo()
    here.fetch_all(there.address, [Span(key, bytearray(100), 100)])


def test_answers_to_other_transfers_are_not_taken(open_mover):
    """Neither those to a transfer before, nor such as have another size or place."""
    here, into = open_mover(), bytearray(10)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(ANY)
        address = router.last_endpoint.decode()

        def answer(*answers):
            fetching = Waiting(here.fetch_all, address, [Span(KEY, into, 10)])
            peer, request = router.recv_multipart()
            asked = decode(request)
            for change, data in answers:
                header = asked._replace(**{"kind": Kind.DATA, **change(asked)})
                router.send_multipart([peer, header.encode(), data])
            fetching.join()
            return fetching.error

        def before(asked):
            return {"transfer": asked.transfer - 1}

        right = (lambda asked: {}, b"r" * 10)
        assert answer((before, b"w" * 10), (before, b""), right) is None
        assert into == b"r" * 10
        assert "5 bytes in place of 10" in str(answer((lambda asked: {}, b"s" * 5)))
        assert "to no request" in str(answer((lambda asked: {"at": 5}, b"s" * 10)))
        assert "to no request" in str(answer((lambda asked: {"kind": Kind.WRITTEN}, b"")))


# ---------------------------------------------------------------- losses
def moving(here, direction, peer, into=None):
    ours = np.zeros(NBYTES, np.uint8) if into is None else into
    move = getattr(here, f"{direction}_all")
    return Waiting(move, peer.address, [Span(KEY, ours, NBYTES)])


def lost(transfer):
    transfer.join()
    assert transfer.error is not None
    assert not transfer.error.refused
    return str(transfer.error)


def test_a_transfer_whose_other_side_dies_raises(open_mover, start_peer):
    here, peer = open_mover(), start_peer(middle="wait")
    transfer = moving(here, "store", peer)
    assert peer.line() == "in the middle"
    peer.kill()
    text = lost(transfer)
    assert "the connection is lost" in text and peer.address in text
    assert here.counters()["lost"] == 1


def test_a_fetch_whose_other_side_falls_silent_raises_and_no_byte_is_late(open_mover, start_peer):
    here, peer = open_mover(), start_peer(middle="wait")
    into = np.full(NBYTES, 7, np.uint8)
    transfer = moving(here, "fetch", peer, into)
    assert peer.line() == "in the middle"
    peer.stop()
    assert "the connection is lost" in lost(transfer)
    assert "no session" in lost(moving(here, "fetch", peer))
    kept = into.copy()
    peer.go_on()
    peer.close()  # the rest has been served
    assert np.array_equal(into, kept) and (into[-CHUNK:] == 7).all()


def test_to_close_a_mover_ends_transfers_that_wait(open_mover, start_peer):
    here, peer = open_mover(), start_peer(middle="wait")
    waiting = [moving(here, "fetch", peer), moving(here, "store", peer)]
    assert peer.line() == "in the middle"
    here.close()
    for transfer in waiting:
        assert "this mover has been closed" in lost(transfer)
    here.close()
    with pytest.raises(TransferError, match="has been closed"):
        here.fetch_all(peer.address, [Span(KEY, bytearray(1), 1)])
