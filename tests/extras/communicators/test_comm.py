"""CHIP-COMM: chips that share memory without a Worker."""

import contextlib
import os
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from simpler_ref.extras.communicators import address_of
from simpler_ref.native_chip import ChipError, ChipWorker
from simpler_ref.system import regions
from simpler_ref.task_interface import ContinuousTensor
from tests import domain_kernels as k
from tests.system.programs import Fork

HOUR = 3600.0


@pytest.fixture
def name(tmp_path):
    return tmp_path / "rootinfo"


def args_for(window, device_ctx, out, what):
    """Return the arguments of the kernel, whose buffers are at the beginning of a window."""
    places = {"data": window, "signals": window + 64}
    context = SimpleNamespace(buffer_ptrs=places, device_ctx=device_ctx)
    private = ContinuousTensor.make(out.ctypes.data, out.shape, "int64")
    return k.args_for([context], 0, private, what)


def together(size, act, devices=None):
    """Call `act(rank, chip)` for each rank, each in a thread; return what each returned or raised."""
    results = [None] * size

    def be(rank):
        with ChipWorker(devices[rank] if devices else rank) as chip:
            try:
                results[rank] = act(rank, chip)
            except Exception as error:
                results[rank] = error

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    for one in results:
        if isinstance(one, AssertionError):
            raise one
    return results


def windows():
    return [one for one in regions._regions.values() if one.window]


def meet(rank, chip, name, size, what=k.MEET, timeout_s=HOUR):
    """Join, make windows, run one kernel; return what it has left."""
    comm = chip.comm_init(rank, size, name, timeout_s=timeout_s)
    device_ctx = chip.comm_alloc_windows(comm, 4096)
    base = chip.comm_get_local_window_base(comm)
    handle, out = chip.prepare_callable(k.in_c()), np.zeros(8, np.int64)
    chip.run(handle, args_for(base, device_ctx, out, what), k.ONE_BLOCK)
    assert chip.comm_get_window_size(comm) == 4096
    chip.comm_barrier(comm)
    chip.comm_destroy(comm)
    with pytest.raises(ChipError, match="not inside one live allocation"):
        chip.copy_from(bytearray(8), base)
    return out.tolist()


# ---------------------------------------------------------------- meeting
@pytest.mark.spec("CHIP-COMM-1", "CHIP-COMM-2")
@pytest.mark.parametrize("size", [1, 3])
def test_ranks_in_threads_meet_and_share_memory(name, size):
    total = sum(10 * rank for rank in range(size))
    results = together(size, lambda rank, chip: meet(rank, chip, name, size), devices=[7] * size)
    assert results == [[total] * 4 + [0] * 4] * size
    assert windows() == [] and not name.exists()


@pytest.mark.spec("CHIP-COMM-1", "CHIP-COMM-2")
def test_ranks_in_processes_meet_whichever_comes_first(name):
    def be(rank):
        with ChipWorker(rank) as chip:
            assert meet(rank, chip, name, 3) == [30] * 4 + [0] * 4

    for order in ([0, 1, 2], [2, 1, 0]):
        with contextlib.ExitStack() as stack:
            programs = [stack.enter_context(Fork(lambda rank=rank: be(rank))) for rank in order]
            assert [one.wait() for one in programs] == [0, 0, 0]


@pytest.mark.spec("CHIP-COMM-1")
def test_who_does_not_come_is_named_and_a_name_that_another_program_uses(name):
    first, second = together(
        2, lambda rank, chip: chip.comm_init(rank * 2, 3, name, timeout_s=0.05)
    )
    assert "rank 1 has not come within 0.05 s" in str(first)
    assert "has not come" in str(second) or "rank 0 has gone" in str(second)
    with ChipWorker(0) as chip, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(address_of(os.path.realpath(name)))
        with pytest.raises(RuntimeError, match="another program is rank 0 under the name"):
            chip.comm_init(0, 2, name)


@pytest.mark.spec("CHIP-COMM-1")
def test_a_rank_that_comes_twice_is_refused(name):
    refused = threading.Event()

    def act(i, chip):
        if i == 2:
            assert refused.wait(60)
        try:
            return chip.comm_init(1 if i == 3 else i, 3, name, timeout_s=HOUR)
        except RuntimeError as error:
            refused.set()
            return str(error)

    results = together(4, act)
    assert [one for one in results if isinstance(one, str)] == ["rank 1 is there already"]
    assert isinstance(results[0], int) and isinstance(results[2], int)


@pytest.mark.spec("CHIP-COMM-1")
def test_ranks_agree_on_their_number(name):
    results = together(2, lambda rank, chip: chip.comm_init(rank, 2 + rank, name, timeout_s=HOUR))
    assert [str(one) for one in results] == ["ranks give different numbers of ranks: [2, 3]"] * 2


# ---------------------------------------------------------------- windows
@pytest.mark.spec("CHIP-COMM-2")
def test_ranks_agree_on_the_size_of_windows(name):
    def act(rank, chip):
        comm = chip.comm_init(rank, 2, name)
        with pytest.raises(RuntimeError, match=r"ask for windows of \[100, 200\] bytes"):
            chip.comm_alloc_windows(comm, 100 * (rank + 1))
        return chip.comm_alloc_windows(comm, 100) != 0 and chip.comm_get_window_size(comm)

    assert (together(2, act), windows()) == ([4096] * 2, [])


@pytest.mark.spec("CHIP-COMM-2")
def test_if_a_rank_cannot_open_the_windows_none_keeps_them(name):
    def act(rank, chip):
        comm = chip.comm_init(rank, 3, name)
        if rank == 1:
            chip.open_window = lambda *_: 1 / 0
        with pytest.raises(RuntimeError, match="rank 1 cannot open the windows: division by zero"):
            chip.comm_alloc_windows(comm, 4096)
        with pytest.raises(ValueError, match="has no windows"):
            chip.comm_get_local_window_base(comm)
        if rank == 1:
            del chip.open_window
        return chip.comm_alloc_windows(comm, 4096) != 0

    assert (together(3, act), windows()) == ([True] * 3, [])


@pytest.mark.spec("CHIP-COMM-2")
def test_domains_of_some_ranks_may_overlap(name):
    def act(rank, chip):
        comm = chip.comm_init(rank, 3, name)
        handle, seen = chip.prepare_callable(k.in_c()), []
        for ranks in ([2, 0], [1, 2], [2, 0]):
            if rank not in ranks:
                with pytest.raises(ValueError, match="only members call this"):
                    chip.comm_alloc_domain(comm, ranks, 4096)
                continue
            device_ctx = chip.comm_alloc_domain(comm, ranks, 4096)
            memory = chip._comms[comm].memory(device_ctx)
            out, base = np.zeros(8, np.int64), memory.window(ranks.index(rank))
            chip.run(handle, args_for(base, device_ctx, out, k.LOOK), k.ONE_BLOCK)
            seen.append(out[:2].tolist())
            chip.run(handle, args_for(base, device_ctx, out, k.BARRIER), k.ONE_BLOCK)
            chip.comm_release_domain(comm, device_ctx)
            with pytest.raises(ValueError, match="has no domain with device_ctx"):
                chip.comm_release_domain(comm, device_ctx)
        return seen

    assert together(3, act) == [[[1, 2], [1, 2]], [[0, 2]], [[0, 2], [1, 2], [0, 2]]]


@pytest.mark.spec("CHIP-COMM-2", "CHIP-COMM-4")
def test_a_domain_of_some_ranks_in_a_part_of_their_windows(name):
    def act(rank, chip):
        comm = chip.comm_init(rank, 3, name, timeout_s=HOUR)
        chip.comm_alloc_windows(comm, 4096)
        out, base = np.zeros(8, np.int64), chip.comm_get_local_window_base(comm)
        if rank != 1:
            for at, part in ((rank // 2, (2048, 1024)), (1 - rank // 2, (4096, 1))):
                with pytest.raises(ValueError, match=r"domain_rank=\d: this is|out of range"):
                    chip.comm_derive_context(comm, [2, 0], at, *part)
            device_ctx = chip.comm_derive_context(comm, [2, 0], 1 - rank // 2, 2048, 1024)
            handle = chip.prepare_callable(k.in_c())
            chip.run(handle, args_for(base + 2048, device_ctx, out, k.MEET), k.ONE_BLOCK)
        chip.comm_barrier(comm)
        chip.comm_destroy_all()
        with pytest.raises(ValueError, match="there is no communicator"):
            chip.comm_barrier(comm)
        return out[:2].tolist()

    assert (together(3, act), windows()) == ([[10, 10], [0, 0], [10, 10]], [])


# ---------------------------------------------------------------- refusals
@pytest.mark.spec("CHIP-COMM-4")
def test_arguments_that_cannot_be_are_refused_and_nothing_is_joined(name):
    with ChipWorker(0) as chip:
        for rank, nranks, words in (
            (0, 65, "nranks=65 is out of"),
            (1, 1, "rank=1 is out of range"),
        ):
            with pytest.raises(ValueError, match=words):
                chip.comm_init(rank, nranks, name)
        with pytest.raises(TypeError, match="timeout_s='1' is not a number of seconds"):
            chip.comm_init(0, 1, name, timeout_s="1")
        with pytest.raises(ValueError, match="no communicator 1: comm_init returns one"):
            chip.comm_barrier(1)
        comm = chip.comm_init(0, 1, name)
        for ranks in [0, 0], [1]:
            with pytest.raises(ValueError, match="give each once"):
                chip.comm_alloc_domain(comm, ranks, 4096)
        chip.comm_alloc_windows(comm, 1)
        with pytest.raises(ValueError, match="comm_alloc_domain makes more"):
            chip.comm_alloc_windows(comm, 1)
        chip.comm_destroy(comm)
        with pytest.raises(ValueError, match=f"no communicator {comm}"):
            chip.comm_destroy(comm)
    with pytest.raises(ChipError, match="not open"):
        chip.comm_init(0, 1, name)


# ---------------------------------------------------------------- failure
@pytest.mark.spec("CHIP-COMM-4")
def test_a_rank_whose_run_fails_ends_the_waits_of_all_others(name):
    def act(rank, chip):
        comm = chip.comm_init(rank, 3, name, timeout_s=HOUR)
        device_ctx = chip.comm_alloc_windows(comm, 4096)
        base, out = chip.comm_get_local_window_base(comm), np.zeros(8, np.int64)
        handle = chip.prepare_callable(k.in_c())
        what = k.FAIL if rank == 1 else k.BARRIER
        try:
            chip.run(handle, args_for(base, device_ctx, out, what), k.ONE_BLOCK)
        except ChipError as error:
            return str(error)

    first, failed, last = together(3, act)
    assert "returned error 77" in failed
    for one in (first, last):
        assert "domain 'comm': rank 1 (chip 1) has failed" in one and "error 77" in one
    assert windows() == []


@pytest.mark.spec("CHIP-COMM-2")
def test_nothing_of_ranks_that_were_killed_is_left(name):
    def be_killed():
        with ChipWorker(0) as chip:
            chip.comm_alloc_windows(chip.comm_init(0, 1, name), 1 << 20)
            os.kill(os.getpid(), 9)

    before = sorted(os.listdir("/dev/shm"))
    with Fork(be_killed) as program:
        assert program.wait() == -9 and not Path(name).exists()
    assert sorted(os.listdir("/dev/shm")) == before
    assert together(2, lambda rank, chip: meet(rank, chip, name, 2)) == [[10] * 4 + [0] * 4] * 2
