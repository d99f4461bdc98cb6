"""WM-RANDOM: random numbers in workers."""

import mmap
import os
import random
import signal
import sys
import types
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest

from simpler_ref import Worker, WorkerLostError
from simpler_ref.task_interface import TensorArgType as T
from simpler_ref.workers.fork_server import draw_entropy
from tests.support import make_args
from tests.system.programs import in_a_fork

COUNT = 4


@pytest.fixture(autouse=True)
def own_state():
    """Leave the generators of the tests as they were."""
    before = random.getstate(), np.random.get_state(legacy=False), np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(before[2])
    np.random.set_state(before[1])
    random.setstate(before[0])


@contextmanager
def drawing(workers=2):
    """Give a Worker, and a function that has all its workers draw, or run another task.

    The function returns what they drew, in no order: a set of rows for numpy and one for `random`.
    """
    with Worker(3, num_sub_workers=workers) as w:
        x = w.empty((workers, 2, COUNT))
        members = [make_args((row, T.OUTPUT_EXISTING)) for row in x]

        def draw(args):
            out = args.tensor(0).numpy()
            out[0] = np.random.rand(COUNT)
            out[1] = [random.random() for _ in range(COUNT)]

        own = w.register(draw)

        def run_all(handle=own):
            w.run(lambda orch, *_: orch.submit_sub_group(handle, members))
            return tuple({tuple(row) for row in x[:, i].tolist()} for i in (0, 1))

        yield w, run_all


def drawn():
    with drawing() as (_, draw):
        return draw()


def seed(number):
    np.random.seed(number)
    random.seed(number)


@pytest.mark.spec("WM-RANDOM-1")
def test_each_worker_and_its_successor_draw_numbers_of_their_own_and_a_start_draws_none():
    def mine():
        return np.random.rand(COUNT), [random.random() for _ in range(COUNT)], random.gauss(0, 1)

    seed(5)
    with drawing(3) as (w, draw):
        kill = w.register(lambda: os.kill(os.getpid(), signal.SIGKILL))
        seen = draw()
        with pytest.raises(WorkerLostError):
            draw(kill)
        for before, after in zip(seen, draw(), strict=True):
            assert not before & after
    own = mine()
    for drawn_there, here in zip(seen, own, strict=False):
        assert len(drawn_there | {tuple(np.float32(here).tolist())}) == 4
    assert len({number for row in seen[0] for number in row}) == 3 * COUNT
    seed(5)
    assert repr(own) == repr(mine())


@pytest.mark.spec("WM-RANDOM-1")
@pytest.mark.parametrize("where", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_functions_of_the_global_generators_draw_from_the_workers_own(where):
    """They are methods of a generator, which would travel with its state."""
    with Worker(num_sub_workers=2, start_method=where) as w:
        w.map(lambda _: 0, range(4))
        for draw in (np.random.rand, np.random.random, random.random):
            assert len({w.submit(draw).result() for _ in range(20)}) == 20


@pytest.mark.spec("WM-RANDOM-1")
def test_a_program_that_seeds_draws_the_same_each_time():
    rows = np.frombuffer(mmap.mmap(-1, 96 * COUNT)).reshape(3, 4, COUNT)

    def program(execution, number):
        seed(number)
        rows[execution] = [row for generator in drawn() for row in sorted(generator)]

    for execution, number in enumerate((3, 3, 4)):
        in_a_fork(partial(program, execution, number))
    assert (rows[0] == rows[1]).all() and len(np.unique(rows)) == 8 * COUNT


@pytest.mark.spec("WM-RANDOM-1")
@pytest.mark.parametrize("generator", [np.random.MT19937, np.random.PCG64])
def test_starts_do_not_repeat_each_other_where_nobody_has_seeded(generator):
    """Nor do the workers of one, also with a generator that the user has put in place."""
    np.random.set_bit_generator(generator())
    first, second = drawn(), drawn()
    assert not first[0] & second[0] and not first[1] & second[1]
    assert len(first[0]) == len(second[0]) == 2


@pytest.mark.spec("WM-RANDOM-1")
def test_torch_is_seeded_where_it_is_loaded(monkeypatch):
    """A stand-in with the three names that are used."""
    seeds, torch = [], types.ModuleType("torch")
    torch.get_rng_state = lambda: types.SimpleNamespace(numpy=lambda: np.arange(16, dtype=np.uint8))
    torch.default_generator = types.SimpleNamespace(manual_seed=seeds.append)
    monkeypatch.setitem(sys.modules, "torch", torch)
    entropy = draw_entropy(0)
    for worker, birth in ((0, 1), (1, 1), (0, 2), (0, 1)):
        entropy.seed_worker(worker, birth)
    assert len(set(seeds)) == 3 and seeds[0] == seeds[3]
    assert all(0 <= number < 1 << 63 for number in seeds)
