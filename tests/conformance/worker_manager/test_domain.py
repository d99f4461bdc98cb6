"""WM-DOMAIN: chips that share memory."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from simpler_ref import TaskError, Worker, WorkerLostError
from simpler_ref.errors import ControlError
from simpler_ref.jit import layout as L
from simpler_ref.jit.kernel import INTERPRETED
from simpler_ref.native_chip import ChipError, ChipWorker, default_runtime
from simpler_ref.native_chip.domains import pack_file
from simpler_ref.system import regions
from simpler_ref.task_interface import ChipDomainContext, CommBufferSpec, CommDomainHandle
from tests import domain_kernels as k
from tests.domain_kernels import BUFFERS, ONE_BLOCK, args_for, in_c, in_python

HOUR = 3600.0
"""A deadline that no wait of these tests may need."""
compiled = pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")


@pytest.fixture(
    params=[
        "C",
        pytest.param("Python", marks=compiled),
        pytest.param("spawn", marks=pytest.mark.long),
    ]
)
def kernel(request) -> dict[str, object]:
    """Have a test run with a kernel in C in processes, and with one in Python in threads."""
    if request.param == "Python":
        return {"callable": in_python(), "child_mode": "thread"}
    return {"callable": in_c(), "start_method": {"C": "fork"}.get(request.param, "spawn")}


class Ranks:
    """A Worker with chips, and what each has returned."""

    def __init__(self, chips=2, callable=None, **options):
        self.w = Worker(3, device_ids=range(chips), **options)
        self.chips = range(chips)
        self.callable = callable

    def __enter__(self):
        self.w.init()
        self.handle = self.w.register(self.callable or in_c())
        self.out = self.w.zeros((len(self.chips), 8), np.int64)
        return self

    def __exit__(self, *_):
        self.w.close()

    def domain(self, orch, chips=None, name="d", timeout_s=HOUR, window_size=4096, buffers=BUFFERS):
        return orch.allocate_domain(
            name=name,
            workers=self.chips if chips is None else chips,
            window_size=window_size,
            buffers=buffers,
            timeout_s=timeout_s,
        )

    def submit(self, orch, domain, chip, what, n=0, config=ONE_BLOCK):
        args = args_for(domain, chip, self.out[chip], what, n)
        orch.submit_next_level(self.handle, args, config, worker=chip)

    def together(self, orch, domain, *whats, n=0):
        """Submit a group: on each chip what is said for it."""
        chips = list(domain.workers)
        pairs = zip(chips, whats, strict=True)
        members = [args_for(domain, c, self.out[c], what, n) for c, what in pairs]
        orch.submit_next_level_group(self.handle, members, ONE_BLOCK, workers=chips)

    def run(self, *whats, n=0, chips=None, **options):
        """Run one group in a domain."""

        def orch_fn(orch, *_):
            with self.domain(orch, chips, **options) as domain:
                self.together(orch, domain, *whats, n=n)

        return self.w.run(orch_fn)

    def read(self, orch, domain, chip, buffer="data", count=4):
        """Return what a window holds now."""
        dtype = np.int32 if buffer == "signals" else np.int64
        found, at = self.w.zeros(count, dtype), domain[chip].buffer_ptrs[buffer]
        orch.copy_from(chip, dst=found.ctypes.data, src=at, size=found.nbytes)
        return found.tolist()


def requests(w, monkeypatch):
    """Return a list that gets the control requests of a Worker: command, chip."""
    w.start()
    manager, made = w._session.manager, []
    control = manager.control

    def noting(worker, command, *args, **options):
        made.append((command, worker))
        return control(worker, command, *args, **options)

    monkeypatch.setattr(manager, "control", noting)
    return made


def windows():
    """Return the windows that this process has."""
    return [one for one in regions._regions.values() if one.window]


@pytest.mark.spec("WM-DOMAIN-1")
def test_all_chips_and_successors_of_dead_ones_join_the_communicator_once(monkeypatch):
    with Ranks(3) as r:
        made = requests(r.w, monkeypatch)
        r.w.run(lambda *_: None)
        assert made == []
        for _ in range(2):
            r.run(k.MEET, k.MEET, chips=[2, 0])
        with pytest.raises(WorkerLostError):
            r.run(k.NOTE_BARRIER, k.DIE, chips=[0, 1])
        r.run(k.MEET, k.MEET, k.MEET)
        assert [chip for command, chip in made if command == L.CTRL_COMM_INIT] == [0, 1, 2, 1]


@pytest.mark.spec("WM-DOMAIN-2")
def test_a_chip_maps_a_domain_after_it_has_joined_and_only_if_it_has_a_rank():
    with Ranks(3) as r:

        def ask(command, chip, *args):
            return r.w._session.chips._ask(command, chip, *args)

        def orch_fn(orch, *_):
            with r.domain(orch, [0, 1]) as domain:
                (region,) = windows()
                of = pack_file(os.getpid(), region.fd), region.address, region.nbytes
                with pytest.raises(ControlError, match=r"chip 2 has no rank in domain 'd'"):
                    ask(L.CTRL_ALLOC_DOMAIN, 2, *of)
                with pytest.raises(ControlError, match="open at"):
                    ask(L.CTRL_ALLOC_DOMAIN, 0, *of)
                ask(L.CTRL_RELEASE_DOMAIN, 0, region.address)
                ask(L.CTRL_RELEASE_DOMAIN, 0, region.address)
                assert ask(L.CTRL_ALLOC_DOMAIN, 0, *of) == domain[0].device_ctx
                r.together(orch, domain, k.MEET, k.MEET)

        with pytest.raises(ControlError, match="COMM_INIT comes first"):
            r.w.malloc(8), ask(L.CTRL_ALLOC_DOMAIN, 0, 0, 0, 0)
        r.w.run(orch_fn)
        assert windows() == []


@pytest.mark.spec("WM-DOMAIN-3", "WM-DOMAIN-11")
def test_a_handle_and_a_kernel_have_what_each_chip_needs(kernel):
    size = 8192 if kernel["callable"] is in_c() else 0  # the one in Python does not tell
    with Ranks(3, **kernel) as r:

        def orch_fn(orch, *_):
            with r.domain(orch, [2, 0], name="pair", window_size=5000) as domain:
                assert isinstance(domain, CommDomainHandle)
                assert (domain.name, domain.workers, len(domain)) == ("pair", (2, 0), 2)
                for rank, chip in enumerate((2, 0)):
                    one = domain[chip]
                    assert isinstance(one, ChipDomainContext)
                    assert (one.name, one.domain_rank, one.domain_size) == ("pair", rank, 2)
                    assert one.actual_window_size == 8192
                    assert one.buffer_ptrs == {
                        "data": one.local_window_base,
                        "signals": one.local_window_base + 64,
                    }
                    assert one.device_ctx > 0
                with pytest.raises(KeyError, match="chip 1 is not in domain 'pair'"):
                    domain[1]
                r.together(orch, domain, k.LOOK, k.LOOK)
                bases = [domain[chip].local_window_base for chip in (2, 0)]
                orch.drain()
                for rank, chip in enumerate((2, 0)):
                    assert r.out[chip].tolist()[:6] == [rank, 2, size, *bases, 0]

        r.w.run(orch_fn)
        r.run(k.MEET, chips=[1])
        assert r.out[1].tolist()[:4] == [0, 0, 0, 0], "a domain may have one rank"


@pytest.mark.spec("WM-DOMAIN-4")
def test_an_access_beyond_a_window_fails_the_task(mode):
    with Ranks(child_mode=mode) as r:
        with pytest.raises(TaskError, match="bad address"):
            r.run(k.BEYOND, k.LOOK)
        r.run(k.MEET, k.MEET)


@pytest.mark.spec("WM-DOMAIN-4")
def test_buffers_begin_at_the_same_place_of_every_window_or_do_not_fit(monkeypatch):
    specs = [CommBufferSpec("a", "uint8", 1), CommBufferSpec("b", "float32", 3, 65)]
    specs += [CommBufferSpec("c", "int64", 8)]
    with Ranks() as r:
        made = requests(r.w, monkeypatch)

        def orch_fn(orch, *_):
            with pytest.raises(ValueError, match=r"take 130 bytes \(a, b, c\).* is 129"):
                r.domain(orch, window_size=129, buffers=specs)
            assert windows() == []
            with r.domain(orch, window_size=130, buffers=specs) as domain:
                assert len(windows()) == 1
                for one in map(domain.__getitem__, r.chips):
                    base, ends = one.local_window_base, one.buffer_ptrs
                    assert ends == {"a": base, "b": base + 64, "c": base + 192}
                    assert one.actual_window_size >= 256

        def refused(orch, *_):
            for wrong in (0, -1, 1 << 50):
                with pytest.raises(ValueError, match="window_size"):
                    r.domain(orch, window_size=wrong, buffers=())
            with pytest.raises(ValueError, match="two buffers are called 'data'"):
                r.domain(orch, buffers=[BUFFERS[0]] * 2)
            for wrong in (["data"], 3, "data"):
                with pytest.raises(TypeError, match="CommBufferSpec"):
                    r.domain(orch, buffers=wrong)

        r.w.run(refused)
        assert made == []
        r.w.run(orch_fn)
    assert CommBufferSpec("x", "float32", 3).nbytes == 12
    assert CommBufferSpec("x", np.int64, 3, 100).nbytes == 100
    for wrong in (("x", "float32", 3, 11), ("x", "float32", -1), ("", "float32", 1)):
        with pytest.raises(ValueError, match=r"12 bytes; nbytes is 11|count=-1|needs a name"):
            CommBufferSpec(*wrong)


@pytest.mark.spec("WM-DOMAIN-6")
def test_ranks_that_cannot_be_are_refused_as_are_workers_that_are_no_chips(monkeypatch):
    with Ranks(3) as r:
        made = requests(r.w, monkeypatch)

        def orch_fn(orch, *_):
            for workers, why in (
                ([0, 1, 0], "names chip 0 twice: ranks wait for each other"),
                ([], "1 to 64 ranks; workers names 0"),
                ([0] * 65, "1 to 64 ranks; workers names 65"),
                ([0, 3], "no chip 3: there are 3"),
                ([-1], "no chip -1"),
                (["0"], "no chip '0'"),
            ):
                with pytest.raises(ValueError, match=why):
                    r.domain(orch, workers)
            for name in ("", "x" * 128, "a\0b", None):
                with pytest.raises(ValueError, match="needs a name of at most 127 bytes"):
                    r.domain(orch, name=name)
            for seconds in (0, -1, float("inf"), float("nan")):
                with pytest.raises(ValueError, match="timeout_s"):
                    r.domain(orch, timeout_s=seconds)
            for wrong in ("x", None):
                with pytest.raises(TypeError, match=f"timeout_s={wrong!r} is not a number of sec"):
                    r.domain(orch, timeout_s=wrong)
            for wrong in (3, "01"):
                with pytest.raises(TypeError, match=f"workers={wrong!r} is no sequence of chips"):
                    r.domain(orch, wrong)

        r.w.run(orch_fn)
        assert (made, windows(), r.w.live_domains) == ([], [], {})
    outer = Worker(4)
    outer.add_worker(Worker(3))
    with outer:
        for take, why in ((outer.run, "worker 0 is no chip"), (outer.record, "allocate_domain")):
            with pytest.raises((ValueError, RuntimeError), match=why):
                take(lambda orch, *_: orch.allocate_domain("d", [0], 4096))


@pytest.mark.spec("WM-DOMAIN-6")
def test_a_name_is_free_again_once_its_domain_is_released():
    with Ranks() as r:

        def orch_fn(orch, *_):
            with r.domain(orch) as first:
                with pytest.raises(ValueError, match="'d' is already live"):
                    r.domain(orch)
                other = r.domain(orch, name="other")
            again = r.domain(orch)
            assert first.released and not again.released
            with pytest.raises(TypeError, match="what allocate_domain has returned, got str"):
                orch.release_domain("d")
            orch.release_domain(again)
            assert again.released
            numbers = {one.allocation_id for one in (first, other, again)}
            assert len(numbers) == 3 and list(first.contexts) == list(first.workers)

        r.w.run(orch_fn)


@pytest.mark.spec("WM-DOMAIN-7", "WM-DOMAIN-8")
@pytest.mark.parametrize("fails", [False, True])
def test_domains_are_freed_after_the_drain_the_forgotten_ones_in_reverse_order(monkeypatch, fails):
    """One that is released before refuses to be indexed, and its tasks run on."""
    with Ranks(child_mode="process" if fails else "thread") as r:
        made, freed, kept = requests(r.w, monkeypatch), [], []
        drop = r.w._session.domains._drop
        note = lambda one: (freed.append(one.name), drop(one))  # noqa: E731
        monkeypatch.setattr(r.w._session.domains, "_drop", note)

        def orch_fn(orch, *_):
            kept.extend(r.domain(orch, name=name) for name in "abcd")
            r.together(orch, kept[2], k.MEET, k.MEET)
            kept[2].release()
            kept[1].release()
            with pytest.raises(RuntimeError, match="domain 'c' is released"):
                kept[2][0]
            orch.drain()
            assert (r.out[:, :4] == 10).all()
            assert kept[2].released and not kept[2].freed and len(windows()) == 4
            assert list(r.w.live_domains) == list("abcd")
            assert r.w.live_domains["a"] is kept[0]
            if fails:
                r.submit(orch, kept[0], 0, k.FAIL)

        if fails:
            with pytest.raises(TaskError, match="returned error 77"):
                r.w.run(orch_fn)
        else:
            r.w.run(orch_fn)
        assert freed == ["b", "c", "d", "a"] and kept[2].freed
        assert [one for one in made if one[0] == L.CTRL_RELEASE_DOMAIN] == [
            (L.CTRL_RELEASE_DOMAIN, chip) for _ in "abcd" for chip in (1, 0)
        ]
        assert (r.w.live_domains, windows()) == ({}, [])


@pytest.mark.spec("WM-DOMAIN-8")
@pytest.mark.parametrize(
    ("command", "refuses"),
    [
        (L.CTRL_COMM_INIT, False),
        (L.CTRL_ALLOC_DOMAIN, True),
        (L.CTRL_ALLOC_DOMAIN, False),
        (L.CTRL_RELEASE_DOMAIN, False),
    ],
)
def test_a_chip_that_refuses_or_dies_in_a_request_about_a_domain_leaves_nothing_of_it(
    monkeypatch, command, refuses
):
    with Ranks() as r:
        r.w.start()
        manager = r.w._session.manager
        control = manager.control

        def failing(worker, asked, *args, **options):
            if (worker, asked) == (1, command):
                if refuses:
                    raise ControlError("not today")
                os.kill(manager.pids[1], signal.SIGKILL)
            return control(worker, asked, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(manager, "control", failing)
            if command == L.CTRL_RELEASE_DOMAIN:
                r.run(k.MEET, k.MEET)
            else:
                with pytest.raises(
                    (ControlError, WorkerLostError), match=r"not today|chip_worker 1"
                ):
                    r.run(k.MEET, k.MEET)
        assert (windows(), r.w.live_domains) == ([], {})
        r.run(k.MEET, k.MEET)


@pytest.mark.spec("WM-DOMAIN-8")
def test_the_next_run_frees_domains_whose_end_was_cut_short(monkeypatch):
    def interrupted(session, handle):
        raise KeyboardInterrupt

    with Ranks() as r:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(r.w._session.domains, "_free", interrupted)
            r.run(k.MEET, k.MEET)
        assert list(r.w.live_domains) == ["d"] and len(windows()) == 1
        seen = []
        r.w.run(lambda *_: seen.append((r.w.live_domains, windows())))
        assert seen == [({}, [])]


@pytest.mark.spec("WM-DOMAIN-9")
def test_a_wait_that_nobody_ends_fails_its_task_at_the_deadline(kernel):
    with Ranks(**kernel) as r:
        for what in (k.WAIT, k.BARRIER):
            for own, of_the_domain in ((1000, HOUR), (0, 0.001)):
                with pytest.raises(TaskError, match="waited for other ranks of its domain until i"):
                    r.run(what, k.LOOK, n=own, timeout_s=of_the_domain)
        r.run(k.MEET, k.MEET)


@pytest.mark.spec("WM-DOMAIN-11")
def test_a_rank_that_gave_up_at_a_barrier_has_not_arrived():
    with Ranks(3) as r:
        r.run(k.RETRY, k.RETRY, k.RETRY)
        assert r.out[0, 0] == k.TIMEOUT


@pytest.mark.spec("WM-DOMAIN-9")
@pytest.mark.parametrize(
    ("what", "kind", "words", "reason"),
    [
        (k.DIE, WorkerLostError, "SIGKILL", None),
        (k.FAIL, TaskError, "returned error 77", "rank 2 (chip 2) has failed"),
    ],
    ids=["it dies", "its task fails"],
)
def test_when_a_rank_is_lost_all_waits_in_its_domain_end(what, kind, words, reason):
    with Ranks(4) as r:

        def orch_fn(orch, *_):
            domain, intact = r.domain(orch), r.domain(orch, [0, 2], name="intact")
            whats = [k.NOTE_BARRIER, k.NOTE_BARRIER, what, k.NOTE_BARRIER]
            if what == k.DIE:
                r.together(orch, domain, *whats, n=3)
            else:
                for chip, one in enumerate(whats):
                    r.submit(orch, domain, chip, one, n=3)
            with pytest.raises(kind, match=f"chip_worker 2 .*{words}"):
                orch.drain()
            for chip in (0, 1, 3):
                assert r.read(orch, domain, chip)[0] == k.BROKEN
            assert reason is None or reason in domain._shared.why_broken()
            assert r.read(orch, intact, 0) == [0] * 4
            assert intact._shared.why_broken() is None or what == k.DIE

        with pytest.raises(kind, match=f"chip_worker 2 .*{words}"):
            r.w.run(orch_fn)
        assert windows() == []
        r.run(*[k.MEET] * 4)


@pytest.mark.spec("WM-DOMAIN-4", "WM-DOMAIN-11")
def test_kernels_read_what_was_written_before_a_barrier_and_put_before_they_were_notified(kernel):
    turns = 300
    with Ranks(3, **kernel) as r:
        for _ in range(20):  # each domain begins with zeros, to which every rank adds
            r.out[:] = 0
            r.run(k.MEET, k.MEET, k.MEET)
            assert (r.out[:, :4] == 30).all()
        r.run(k.PULL, k.PULL, k.PULL)
        assert r.out[:, 1].tolist() == [101, 102, 100]
        r.run(k.RING, k.RING, k.RING, n=turns)
        assert r.out[:, 0].tolist() == [3 * turns - 2, 3 * turns - 1, 3 * turns]


@pytest.mark.spec("WM-DOMAIN-11")
def test_memory_outside_of_the_window_and_unknown_ranks_are_refused(kernel):
    with Ranks(**kernel) as r:

        def orch_fn(orch, *_):
            domain = r.domain(orch)
            r.together(orch, domain, k.OUTSIDE, k.LOOK)
            orch.drain()
            assert r.read(orch, domain, 1) == [0] * 4
            assert r.read(orch, domain, 1, "signals") == [0] * 4

        r.w.run(orch_fn)
        assert r.out[0].tolist()[:7] == [k.OUT_OF_WINDOW] * 6 + [1]


@pytest.mark.spec("WM-DOMAIN-11")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="blocks run one after the other")
def test_two_blocks_of_a_rank_at_one_barrier_are_refused():
    with Ranks() as r:

        def orch_fn(orch, *_):
            with r.domain(orch) as domain:
                r.submit(orch, domain, 0, k.BARRIER, config=k.CallConfig(block_dim=2))

        with pytest.raises(TaskError, match="launch one block"):
            r.w.run(orch_fn)


@pytest.mark.spec("WM-DOMAIN-8")
def test_the_host_copies_to_windows_and_back_until_the_domain_is_freed():
    with Ranks() as r:
        x, y = r.w.share(np.arange(512.0)), r.w.zeros(512)
        base = []

        def orch_fn(orch, *_):
            with r.domain(orch) as domain:
                for chip in r.chips:
                    base.append(domain[chip].local_window_base)
                    orch.copy_to(chip, dst=base[chip], src=x.ctypes.data, size=x.nbytes)
                    with pytest.raises(ControlError, match="not inside one live allocation"):
                        orch.copy_to(chip, dst=base[chip] + 8, src=x.ctypes.data, size=x.nbytes)
            for chip in r.chips:
                y[:] = 0
                orch.copy_from(chip, dst=y.ctypes.data, src=base[chip], size=y.nbytes)
                assert (y == x).all()

        r.w.run(orch_fn)
        with pytest.raises(ControlError, match="not inside one live allocation"):
            r.w.copy_from(y.ctypes.data, base[0], y.nbytes)


@pytest.mark.spec("WM-DOMAIN-8")
def test_a_runtime_without_windows_refuses_the_domain(tmp_path):
    """One that is the reference runtime, but for the name of an entry point."""
    raw = Path(default_runtime()).read_bytes()
    old, new = b"pto2_open_window", b"pto2_opqn_window"
    assert raw.count(old) >= 1
    changed = tmp_path / "old_runtime.so"
    changed.write_bytes(raw.replace(old, new))
    with ChipWorker(0, changed) as chip, pytest.raises(ChipError, match="share no memory"):
        chip.open_window(1 << 40, 4096)
    other = tmp_path / "half_a_runtime.so"
    other.write_bytes(raw.replace(b"pto2_close_window", b"pto2_clqse_window"))
    with ChipWorker(0, other) as chip, pytest.raises(ChipError, match="share no memory"):
        chip.close_window(1 << 40)
    with Ranks(runtime=str(changed)) as r:

        def orch_fn(orch, *_):
            with pytest.raises(ControlError, match="the devices of this runtime share no memory"):
                r.domain(orch)
            assert windows() == []

        r.w.run(orch_fn)
