"""Well-known programs of other libraries, told anew: as they are, then with one line changed.

Each program is a function of what is exchanged, and returns what is compared: what tutorials and
galleries of these libraries show. `KINDS` has what is exchanged, theirs and ours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import hashlib
import io
import itertools
import math
import multiprocessing
import operator
from collections import Counter

import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.system import forks


def value(made):
    """Return the value of a call: without a Worker it is no future."""
    return made.result() if isinstance(made, sr.Future) else made


# ---------------------------------------------------------------- concurrent.futures
def is_prime(n):
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


def primes(executor):
    numbers = [10**9 + 7, 10**9 + 8, 998_244_353, 999_999_937, 27_644_437 * 3]
    return dict(zip(numbers, executor.map(is_prime, numbers, timeout=60), strict=True))


def escape_times(y, width, limit):
    row = []
    for x in range(width):
        c, z, steps = complex(3 * x / width - 2, y), 0j, 0
        while abs(z) <= 2 and steps < limit:
            z, steps = z * z + c, steps + 1
        row.append(steps)
    return row


def mandelbrot(executor):
    """Rows as they come, put into their order by a dict of futures."""
    futures = {executor.submit(escape_times, y / 10 - 1, 40, limit=50): y for y in range(20)}
    rows = {futures[f]: f.result() for f in concurrent.futures.as_completed(futures, timeout=60)}
    return [rows[y] for y in range(20)]


def digest(block):
    return hashlib.sha256(block).hexdigest()


def digests(executor):
    """Hash blocks while a coroutine goes on, and give up one that takes too long."""

    async def main():
        loop = asyncio.get_running_loop()
        calls = [loop.run_in_executor(executor, digest, bytes([i]) * 9999) for i in range(8)]
        with pytest.raises(asyncio.TimeoutError):
            slow = loop.run_in_executor(executor, sum, range(10**7))
            await asyncio.wait_for(slow, 0.001)
        return await asyncio.gather(*calls)

    return asyncio.run(main())


def count_words(text):
    return Counter(text.split())


def map_and_reduce(executor):
    """Count words in lines, with a callback as progress bars have it."""
    done = []
    futures = [executor.submit(count_words, f"{w} and {w[::-1]}") for w in ["to", "on"] * 50]
    for one in futures:
        one.add_done_callback(done.append)
    total = functools.reduce(operator.add, (one.result() for one in futures))
    executor.shutdown()
    return len(done), sorted(total.items())


def look_for(wanted, letters):
    if not letters:
        raise LookupError("nothing to look for")
    words = (f"{first}{number}" for first, number in itertools.product(letters, range(10)))
    return next((word for word in words if digest(word.encode()) == wanted), None)


def crack(executor):
    """Look for a word by its digest in several places; one of them fails, others are cancelled."""
    futures = [executor.submit(look_for, digest(b"k7"), part) for part in ["ab", "jk", ""]]
    done, rest = concurrent.futures.wait(futures, timeout=60)
    errors = [repr(one.exception()) for one in futures]
    more = [executor.submit(look_for, "", "abcdefgh" * 50) for _ in range(50)]
    assert more[-1].cancel() and more[-1].cancelled()
    return len(done), len(rest), errors, futures[1].result()


# ---------------------------------------------------------------- joblib, scikit-learn
def draw(seed):
    return np.random.default_rng(seed).normal(size=3)


def random_states(_):
    import joblib

    drawn = joblib.Parallel()(joblib.delayed(draw)(seed) for seed in range(5))
    return np.array(drawn).tolist()


def add_up(table, sums, row):
    sums[row] = table[row].sum()


def mapped_files(_, folder):
    """Read one mapped file, and write another one."""
    import joblib

    joblib.dump(np.arange(400_000.0).reshape(8, -1), folder / "table")
    table = joblib.load(folder / "table", mmap_mode="r")
    sums = np.memmap(folder / "sums", dtype=float, shape=8, mode="w+")
    joblib.Parallel()(joblib.delayed(add_up)(table, sums, row) for row in range(8))
    return sums.tolist()


def squares_of(n):
    return [i * i for i in range(n)]


def generators(_):
    import joblib

    def ask(kind):
        calls = (joblib.delayed(squares_of)(i) for i in range(30))
        return joblib.Parallel(return_as=kind, pre_dispatch="all")(calls)

    early = ask("generator")
    first = [next(early) for _ in range(3)]
    early.close()
    return first, list(ask("generator")), sorted(ask("generator_unordered"))


def costly(data, column):
    import joblib

    parts = joblib.Parallel(n_jobs=2)(joblib.delayed(sum)(part) for part in (data[column], [1]))
    return sum(parts)


def nested_and_cached(_, folder):
    """Cache what the functions return, which make calls of `Parallel` themselves."""
    import joblib

    cached = joblib.Memory(folder, verbose=0).cache(costly)
    data = np.arange(12.0).reshape(3, 4)
    sums = joblib.Parallel()(joblib.delayed(cached)(data, i) for i in range(3))
    return sums, cached.check_call_in_cache(data, 2)


def learn(_):
    """A grid of parameters with text, a forest with the importance of what it is told."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.inspection import permutation_importance
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import GridSearchCV, cross_val_predict
    from sklearn.pipeline import make_pipeline

    texts, kinds = ["red cat", "blue dog", "red dog", "blue cat"] * 10, [0, 1, 0, 1] * 10
    steps = make_pipeline(TfidfVectorizer(), SGDClassifier(random_state=0))
    grid = {"tfidfvectorizer__ngram_range": [(1, 1), (1, 2)], "sgdclassifier__alpha": [1e-3, 1e-4]}
    search = GridSearchCV(steps, grid, cv=2).fit(texts, kinds)
    x = np.random.default_rng(0).normal(size=(300, 5))
    y = x[:, 1] + x[:, 3] > 0
    forest = RandomForestClassifier(10, random_state=0, oob_score=True, n_jobs=2).fit(x, y)
    importance = permutation_importance(forest, x, y, n_repeats=2, random_state=0, n_jobs=2)
    guessed = cross_val_predict(forest, x, y, cv=3, n_jobs=2)
    return search.best_params_, forest.oob_score_, importance.importances.tolist(), guessed.tolist()


# ---------------------------------------------------------------- dask
def statistics(_):
    import dask.array as da

    x = da.from_array(np.random.default_rng(0).random((400, 400)), chunks=(100, 100))
    total = (x + x.T)[::2, 50:].mean(axis=1).sum()
    singular = da.linalg.svd(x.rechunk((100, 400)))[1][:3]
    return float(total.compute()), np.round(singular.compute(), 9).tolist()


def live(board):
    near = sum(np.roll(board, by, (0, 1)) for by in itertools.product((-1, 0, 1), repeat=2)) - board
    return ((near == 3) | ((board == 1) & (near == 2))).astype(board.dtype)


def game_of_life(_):
    import dask.array as da
    from dask.diagnostics import ProgressBar

    start = (np.random.default_rng(0).random((120, 120)) > 0.5).astype(np.int8)
    board, bar = da.from_array(start, chunks=40), io.StringIO()
    for _ in range(3):
        board = board.map_overlap(live, depth=1, boundary="periodic")
    with contextlib.redirect_stdout(bar), ProgressBar(dt=0.01):
        end = board.compute()
    return end.tolist(), "100%" in bar.getvalue()


def words(_):
    import dask.bag as db

    lines = db.from_sequence([f"the {i % 7} brown fox {'x' * (i % 3)}" for i in range(300)])
    common = lines.str.split().flatten().frequencies().topk(4, key=lambda pair: (pair[1], pair[0]))
    folded = db.range(100, npartitions=5).foldby(lambda i: i % 3, operator.add, 0, operator.add, 0)
    return common.compute(), sorted(folded.compute())


def tree(_):
    import dask

    level = [dask.delayed(operator.mul)(i, i) for i in range(32)]
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        level = [dask.delayed(operator.add)(one, other) for one, other in pairs]
    whole, rest = dask.delayed(divmod, nout=2)(17, level[0])
    with pytest.raises(ZeroDivisionError):
        dask.delayed(divmod)(whole, 0).compute()
    return dask.compute(level[0], {"rest": rest}, [whole])


def tables(_):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import dask.dataframe as dd

    times = pd.date_range("2026-01-01", periods=600, freq="1min")
    table = pd.DataFrame({"kind": list("abc") * 200, "amount": np.arange(600.0)}, index=times)
    parts = dd.from_pandas(table, npartitions=4)
    names = pd.DataFrame({"kind": ["a", "b"], "weight": [1, 2]})
    means = parts.groupby("kind").amount.mean().compute().sort_index()
    hours = parts.amount.resample("1h").sum().compute()
    return means.tolist(), hours.tolist(), int(parts.merge(names, on="kind").weight.sum().compute())


# ---------------------------------------------------------------- pools
def julia(y, c):
    x = np.linspace(-1.5, 1.5, 50)
    z, steps = x + 1j * y, np.zeros(50, int)
    for _ in range(30):
        z = np.where(abs(z) < 2, z * z + c, z)
        steps += abs(z) < 2
    return steps


def julia_set(pool):
    rows = pool.starmap(julia, [(y, -0.8 + 0.156j) for y in np.linspace(-1, 1, 20)], chunksize=3)
    return np.array(rows).tolist()


def methods(pool):
    """What the documentation of `multiprocessing` shows of a pool."""
    told = []
    callback = pool.map_async(abs, [-1, -2], callback=told.extend)
    failed = pool.apply_async(divmod, (1, 0))
    failed.wait()
    ordered = pool.imap(abs, range(-50, 0))
    first = ordered.next(timeout=60)
    callback.get()
    with pytest.raises(multiprocessing.TimeoutError):
        pool.apply_async(sum, (range(10**7),)).get(timeout=0.001)
    any_order = sorted(pool.imap_unordered(abs, (i for i in range(-20, 0))))
    return pool.apply(int, ("101",), {"base": 2}), failed.successful(), first, any_order, [*ordered]


def rosenbrock(x, scale=1):
    return scale * float(sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2))


def evolution(pool):
    from scipy.optimize import brute, differential_evolution

    found = differential_evolution(
        *(rosenbrock, [(-2, 2)] * 3),
        args=(2,), workers=pool.map, updating="deferred", rng=1, maxiter=5, popsize=5,
    )  # fmt: skip
    return found.x.tolist(), brute(rosenbrock, [(-1, 1, 0.5)] * 2, workers=pool.map).tolist()


def bell(x):
    return np.exp(-(x**2)) * np.array([1.0, 2.0])


def integral(pool):
    from scipy.integrate import quad_vec

    return quad_vec(bell, 0, 2, workers=pool.map)[0].tolist()


def log_probability(x, weights):
    return -0.5 * np.sum(weights * x**2), float(x[0])


def chains(pool):
    emcee = pytest.importorskip("emcee", reason="emcee is not installed")
    np.random.seed(3)
    weights = np.array([1.0, 2.0, 3.0])
    sampler = emcee.EnsembleSampler(12, 3, log_probability, args=[weights], pool=pool)
    sampler.run_mcmc(np.random.normal(size=(12, 3)), 10)
    return sampler.get_chain().tolist(), sampler.get_blobs().tolist()


# ---------------------------------------------------------------- what is not of numpy
def layer(model, batch):
    with np.errstate(all="ignore"):
        return model(batch)


def predict(call):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model.requires_grad_(False)
    batches = torch.arange(64.0).reshape(2, 4, 8)
    return [call(layer, model, batch).tolist() for batch in batches]


def total_by_kind(table):
    return table.group_by("kind").aggregate([("amount", "sum")]).sort_by("kind").to_pydict()


def arrow(call):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = pa.table({"kind": list("abc") * 100, "amount": np.arange(300.0)})
    parts = [call(total_by_kind, table.slice(at, 100)) for at in range(0, 300, 100)]
    return parts, call(sum_of, table["amount"].combine_chunks())


def sum_of(x: sr.In):
    return float(np.sum(x))


def apply_to_group(group):
    return group.assign(share=group.amount / group.amount.sum())


def pandas_groups(call):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pd.DataFrame({"kind": list("abc") * 10, "amount": np.arange(1.0, 31)})
    groups = [call(apply_to_group, group) for _, group in table.groupby("kind")]
    return pd.concat(groups).sort_index().to_dict("list"), call(sum_of, table.amount)


def polars_mean(frame):
    return frame.group_by("kind").mean().sort("kind").to_dicts()


def polars_frame(call):
    pl = pytest.importorskip("polars", reason="polars is not installed")
    frame = pl.DataFrame({"kind": list("abc") * 10, "amount": np.arange(30.0)})
    return call(polars_mean, frame), call(sum_of, frame["amount"])


def halved(x):
    return x / 2


class OnlyDLPack:
    """An array of a library that numpy knows nothing of."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def short_floats(call):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    x = np.arange(8, dtype=ml_dtypes.bfloat16)
    half = call(halved, x)
    return half.dtype.name, half.tolist(), call(sum_of, OnlyDLPack(np.arange(4.0)))


# ---------------------------------------------------------------- calls of calls
@sr.task
def quick_sort(numbers):
    if len(numbers) < 5:
        return sorted(numbers)
    pivot, *rest = numbers
    smaller = quick_sort([one for one in rest if one < pivot])
    others = quick_sort([one for one in rest if one >= pivot])
    return [*value(smaller), pivot, *value(others)]


def sort(w):
    return value(quick_sort(np.random.default_rng(0).permutation(300).tolist()))


@sr.task
def queens(size, placed=()):
    if len(placed) == size:
        return 1
    row = len(placed)
    free = [
        column
        for column in range(size)
        if all(column != c and abs(column - c) != row - r for r, c in enumerate(placed))
    ]
    return sum(value(one) for one in [queens(size, (*placed, column)) for column in free])


def eight_queens(w):
    return [value(one) for one in [queens(6, (column,)) for column in range(6)]]


@sr.task
def integrate(low, high, tolerance):
    middle = (low + high) / 2
    one, both = math.sin(middle) * (high - low), (math.sin(low) + math.sin(high)) * (high - low) / 2
    if abs(one - both) < tolerance:
        return (2 * one + both) / 3
    halves = integrate(low, middle, tolerance), integrate(middle, high, tolerance)
    return sum(map(value, halves))


def adaptive(w):
    return value(integrate(0.0, math.pi, 1e-3))


@sr.task
def merge_sort(x: sr.InOut):
    """Sort in place, where all calls see the same memory."""
    if len(x) > 16:
        middle = len(x) // 2
        for half in [merge_sort(x[:middle]), merge_sort(x[middle:])]:
            value(half)
    x.sort()


def in_place(w):
    x = np.random.default_rng(0).random(200)
    x = x if w is None else w.share(x)
    value(merge_sort(x))
    return x.tolist()


@sr.task
def score(penalty, fold):
    return penalty * fold - penalty**2


@sr.task
def cross_validated(penalty):
    return penalty, sum(map(value, [score(penalty, fold) for fold in range(5)]))


def search(w):
    """Calls in each call of a map."""
    penalties = [0.1 * i for i in range(20)]
    tried = map(cross_validated, penalties) if w is None else w.map(cross_validated, penalties)
    return max(tried, key=lambda one: one[1])


# ---------------------------------------------------------------- actors
class Account:
    def __init__(self, amount=0):
        self.amount = amount

    def add(self, amount):
        if self.amount + amount < 0:
            raise ValueError("too little")
        self.amount += amount
        return self.amount


def count(make):
    accounts = [make(Account), make(Account, 10)]
    sums = [[value(one.add(i)) for i in range(5)] for one in accounts]
    with pytest.raises(ValueError, match="too little"):
        value(accounts[0].add(-100))
    return sums, value(accounts[0].add(1))


class Progress:
    def __init__(self):
        self.done = Counter()

    def note(self, task, number):
        self.done[task] += number

    def total(self):
        return sum(self.done.values())


@sr.task
def throw(number, seed, progress):
    x, y = np.random.default_rng(seed).random((2, number))
    for _ in range(4):
        value(progress.note(seed, number // 4))
    return int(np.sum(x * x + y * y < 1))


def monte_carlo_with_progress(make):
    """Calls in all workers tell an actor how far they are."""
    progress = make(Progress)
    hits = sum(map(value, [throw(1000, seed, progress) for seed in range(6)]))
    return hits, value(progress.total())


class Parameters:
    def __init__(self, size):
        self.weights = np.zeros(size)

    def step(self, *gradients):
        self.weights = self.weights - 0.1 * np.mean(gradients, axis=0)
        return self.weights

    def get(self):
        return self.weights


@sr.task
def gradient(weights, part):
    return weights - part


def parameter_server(make):
    """Each step takes the futures of gradients, and gradients that of the step before."""
    server = make(Parameters, 4)
    weights = server.get()
    for _ in range(10):
        weights = server.step(*[gradient(weights, part) for part in range(3)])
    return np.round(value(weights), 9).tolist()


class Words:
    def __init__(self):
        self.counts = Counter()

    def take(self, words):
        self.counts.update(words)

    def top(self, number):
        return sorted(self.counts.items(), key=lambda one: (-one[1], one[0]))[:number]


@sr.task
def read(lines, counters):
    for line in lines:
        for word in line.split():
            value(counters[len(word) % len(counters)].take([word]))


def streams(make):
    """Readers in all workers, counters that share the words."""
    counters = [make(Words) for _ in range(3)]
    lines = [["a bb ccc a", "bb dddd"], ["a ccc ccc"], ["eeeee a"]]
    for one in [read(part, counters) for part in lines]:
        value(one)
    return [value(one.top(2)) for one in counters]


class Queue:
    def __init__(self):
        self.items, self.taken = list(range(20)), []

    def next(self):
        return self.items.pop(0) if self.items else None

    def end_of(self, item):
        self.taken.append(item)


@sr.task
def serve(queue):
    while (item := value(queue.next())) is not None:
        value(queue.end_of(item * item))


def queue(make):
    """Workers take items from an actor until there are none."""
    shared = make(Queue)
    for one in [serve(shared) for _ in range(4)]:
        value(one)
    done = make(Queue)
    return sorted(value(shared.next()) or 0 for _ in range(2)), value(done.next())


# ---------------------------------------------------------------- what is exchanged
def executors(w):
    return concurrent.futures.ProcessPoolExecutor(2) if w is None else w.executor()


@contextlib.contextmanager
def joblib_backends(w):
    joblib = pytest.importorskip("joblib", reason="joblib is not installed")
    sr.register_joblib()
    with joblib.parallel_config("loky" if w is None else "simpler_ref", n_jobs=2):
        yield
    if w is None:
        joblib.externals.loky.get_reusable_executor().shutdown(wait=True)


def dask_schedulers(w):
    dask = pytest.importorskip("dask", reason="dask is not installed")
    return dask.config.set(scheduler="threads" if w is None else w.dask_get)


def pools(w):
    return multiprocessing.Pool(2) if w is None else w.pool()


def callers(w):
    def here(function, *args):
        return function(*(map(as_numpy, args) if function is sum_of else args))

    def as_numpy(one):
        return np.from_dlpack(one) if isinstance(one, OnlyDLPack) else np.asarray(one)

    def there(function, *args):
        return w.submit(function, *args).result()

    return contextlib.nullcontext(here if w is None else there)


def makers(w):
    return contextlib.nullcontext((lambda kind, *args: kind(*args)) if w is None else w.actor)


KINDS = {
    executors: [primes, mandelbrot, digests, map_and_reduce, crack],
    joblib_backends: [random_states, mapped_files, generators, nested_and_cached, learn],
    dask_schedulers: [statistics, game_of_life, words, tree, tables],
    pools: [julia_set, methods, evolution, integral, chains],
    callers: [predict, arrow, pandas_groups, polars_frame, short_floats],
    contextlib.nullcontext: [sort, eight_queens, adaptive, in_place, search],
    makers: [count, monte_carlo_with_progress, parameter_server, streams, queue],
}


def run(kind, program, folder, w=None):
    """Run a program with the other library, or with a Worker."""
    with kind(w) as exchanged:
        if program in (mapped_files, nested_and_cached):
            return program(exchanged, folder)
        return program(exchanged)


PROGRAMS = [(kind, program) for kind, programs in KINDS.items() for program in programs]
QUICK = {mandelbrot, map_and_reduce, sort, monte_carlo_with_progress, methods}
"""Those that `make test` runs."""
LEAVING = {joblib_backends, dask_schedulers, callers}
"""Kinds that leave threads and processes in the process that has run them."""


def run_elsewhere(*given):
    """Run a program in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor:
        return executor.submit(run, *given).result()


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        pytest.param(*both, marks=[pytest.mark.long] * (both[1] not in QUICK), id=both[1].__name__)
        for both in PROGRAMS
    ],
)
@pytest.mark.slow("also runs the program with another library")
@pytest.mark.filterwarnings("ignore")
def test_a_program_gives_the_same_with_one_line_changed(kind, program, tmp_path):
    (tmp_path / "theirs").mkdir()
    theirs = (run_elsewhere if kind in LEAVING else run)(kind, program, tmp_path / "theirs")
    start_method = "spawn" if forks.why_not_fork() else "fork"  # as Workers choose outside of tests
    with sr.Worker(num_sub_workers=2, start_method=start_method) as w:
        ours = run(kind, program, tmp_path, w)
    assert ours == theirs
