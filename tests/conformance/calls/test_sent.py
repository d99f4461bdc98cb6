"""CALL-SENT: what workers get of a function."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numba
import numpy as np
import pytest

import simpler_ref as sr
from simpler_ref.calls.sending import name_of

from .tasks import fill_at, have_others_run, update

FACTOR = 3
LOCK = threading.Lock()


# ---------------------------------------------------------------- kinds of callables
def triple(x):
    return FACTOR * x


def guarded(x):
    with LOCK:
        return x + 1


def remembering():
    """Return a function that remembers its values and asks itself for others."""

    @functools.lru_cache(maxsize=2)
    def factorial(x):
        return x * factorial(x - 1) if x > 1 else 1

    return factorial


@numba.njit
def wraps_around(x):
    return np.int32(x) * np.int32(2)


def giving(value):
    """Return a decorator that gives the function an argument."""

    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(value, x)

        return wrapper

    return decorate


def passing_on(function):
    @functools.wraps(function)
    def wrapper(*args, **names):
        return function(*args, **names)

    return wrapper


@giving(7)
def decorated(first, x, unused=0):
    return (first, x)


@sr.task
def a_task(x):
    return x - 1


class Simulation:
    """Has a state that a program changes between calls, and one that calls change."""

    made = 0

    def __init__(self, t=0):
        self.t = t
        self.seen = []

    def step(self, x):
        self.seen.append(x)
        return (self.t + x, len(self.seen))

    __call__ = step

    def __eq__(self, other):
        return isinstance(other, Simulation)

    __hash__ = None

    @classmethod
    def of_class(cls, x):
        return (cls.__name__, x)

    @staticmethod
    def of_nothing(x):
        return ("static", x)

    @sr.task
    def as_task(self, x):
        return self.t + x


@dataclass
class Settings:
    """Its attributes have the names of a task's."""

    timeout: float = 0.001
    workers: int = 99
    run: str = "run"
    code: str = "code"
    signature: str = "signature"
    py_func: str = "py_func"
    data: list[int] = field(default_factory=list)

    def __call__(self, x):
        return (self.run, self.code, x)


class Run:
    """A class whose instances have a `run`."""

    def __init__(self, x):
        self.x = x

    def run(self):
        return self.x

    def __eq__(self, other):
        return type(other) is Run and other.x == self.x

    __hash__ = None


def closure():
    amount = 11

    def add(x):
        return x + amount

    return add


def closure_over_list():
    numbers = [1, 2]

    def add(x):
        numbers.append(x)
        return list(numbers)

    return add


def recursive():
    def factorial(x):
        return 1 if x < 2 else x * factorial(x - 1)

    return factorial


def local_class():
    class Local:
        def __init__(self, x):
            self.x = x

        def twice(self, x):
            return 2 * x

    return Local(1).twice


KINDS = {
    "a function": lambda: triple,
    "a function with a lock": lambda: guarded,
    "a cached function of its own": remembering,
    "a compiled function": lambda: wraps_around,
    "a decorated function": lambda: decorated,
    "a task": lambda: a_task,
    "a builtin": lambda: abs,
    "a class with a run": lambda: Run,
    "a universal function": lambda: np.negative,
    "a method of a type": lambda: int.bit_length,
    "a method of an object": lambda: Simulation(4).step,
    "an object": lambda: Simulation(5),
    "a class method": lambda: Simulation.of_class,
    "a static method": lambda: Simulation.of_nothing,
    "a method that is a task": lambda: Simulation(6).as_task,
    "an object with a task's attributes": Settings,
    "a method of a list": lambda: [1, 2, 2].count,
    "a partial": lambda: functools.partial(divmod, 17),
    "a lambda": lambda: lambda x: x * 2,
    "a closure": closure,
    "a closure over a list": closure_over_list,
    "a recursive closure": recursive,
    "a method of a local class": local_class,
    "a function of the standard library": lambda: functools.partial(inspect.getattr_static, 5),
}
ITEMS = {"a function of the standard library": ["real", "imag"]}
WAYS = {
    "submit": lambda w, f, items: [w.submit(f, item).result() for item in items],
    "map": lambda w, f, items: list(w.map(f, items)),
    "one chunk": lambda w, f, items: list(w.map(f, items, chunksize=len(items))),
    "task": lambda w, f, items: [sr.task(f)(item).result() for item in items],
}


MODES = {"fork": {}, "spawn": {"start_method": "spawn"}, "thread": {"child_mode": "thread"}}


def same(found, wanted):
    """Compare results that may be of classes which are made anew in a worker."""
    return repr(found) == repr(wanted) if type(found).__name__ == "Local" else found == wanted


@pytest.fixture(scope="module", params=MODES)
def mode(request):
    return request.param


@pytest.fixture(scope="module")
def w(mode):
    """Give a Worker that has made a call before."""
    with sr.Worker(num_sub_workers=1, **MODES[mode]) as made:
        made.submit(abs, -1).result()
        yield made


def wanted_of(kind, mode):
    """Return what plain calls give: with a copy each, or in threads of the very object."""
    make = {
        "a task": lambda: a_task.py_func,
        "a method that is a task": lambda: functools.partial(
            Simulation.as_task.py_func, Simulation(6)
        ),
    }.get(kind, KINDS[kind])
    one = make()
    return [(one if mode == "thread" else make())(item) for item in ITEMS.get(kind, [2, 3])]


def first_calls():
    """Return each start method with each way, and some kinds: of slow fresh interpreters one."""
    kinds = list(KINDS)
    for start in MODES:
        for i, way in enumerate(WAYS):
            some = kinds[6 * i : 6 * i + 1] if start == "spawn" else kinds[i :: len(WAYS)]
            yield pytest.param(start, way, some, id=f"{start}, {way}")


@pytest.mark.spec("CALL-SENT-1", "CALL-SENT-2", "CALL-SENT-5")
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_callable_gives_what_plain_calls_give(w, mode, kind):
    wanted = wanted_of(kind, mode)
    for way, run in WAYS.items():
        assert all(map(same, run(w, KINDS[kind](), ITEMS.get(kind, [2, 3])), wanted)), way


@pytest.mark.spec("CALL-SENT-1", "CALL-SENT-2", "CALL-SENT-5")
@pytest.mark.parametrize(("start", "way", "kinds"), list(first_calls()))
def test_the_first_calls_of_a_worker_give_the_same(start, way, kinds):
    for kind in kinds:
        wanted, function = wanted_of(kind, start), KINDS[kind]()
        with sr.Worker(num_sub_workers=1, **MODES[start]) as made:
            found = WAYS[way](made, function, ITEMS.get(kind, [2, 3]))
        assert all(map(same, found, wanted)), kind


# ---------------------------------------------------------------- as it is at each call
@pytest.mark.spec("CALL-SENT-2")
def test_a_method_is_called_with_its_object_as_that_is_now(w):
    simulation = Simulation()
    for simulation.t in (0, 10, 20):
        assert w.submit(simulation.step, 1).result()[0] == simulation.t + 1
        mapped = [t - simulation.t for t, _ in w.map(simulation.step, [1, 2])]
        assert mapped == [1, 2]
        assert simulation.as_task(1).result() == simulation.t + 1


@pytest.mark.spec("CALL-SENT-2")
def test_results_of_map_come_from_the_function_as_it_was_when_map_was_called():
    simulation = Simulation(1)
    with sr.Worker(num_sub_workers=1) as w:
        results = w.map(simulation.step, range(500), chunksize=1)
        assert next(results) == (1, 1)
        simulation.t = 100
        assert list(results) == [(1 + x, 1) for x in range(1, 500)]


@pytest.mark.spec("CALL-SENT-2")
def test_what_a_function_refers_to_is_as_it_is_at_each_call(w):
    names, amount = {}, 1

    def add(x):
        return x + amount

    assert w.submit(add, 1).result() == 2
    amount = 5
    assert w.submit(add, 1).result() == 6
    exec("def helper(x): return x + 1\ndef outer(x): return helper(x)", names)
    assert w.submit(names["outer"], 1).result() == 2
    exec("def helper(x): return x + 100", names)
    assert w.submit(names["outer"], 1).result() == 101
    names["helper"] = operator.neg
    assert w.submit(names["outer"], 1).result() == -1


@pytest.mark.spec("CALL-SENT-2")
def test_views_of_shared_memory_are_views_in_the_worker_too(w):
    array = w.share(np.arange(6).reshape(2, 3))
    view, locked = memoryview(array), memoryview(array).toreadonly()

    def look():
        return np.asarray(view).ctypes.data, view.shape, view[1, 2], view.readonly, locked.readonly

    assert w.submit(look).result() == (array.ctypes.data, (2, 3), 5, False, True)


# ---------------------------------------------------------------- by name
@pytest.mark.spec("CALL-SENT-1")
def test_a_function_that_is_no_longer_under_its_name_goes_by_content(monkeypatch):
    assert name_of(triple, {}) == (__name__, "triple")
    before = triple
    monkeypatch.setitem(globals(), "triple", lambda x: -x)
    assert name_of(before, {}) is None
    assert name_of(Simulation(1).step, {}) is None


MODULE_THAT_CALLS = """
import concurrent.futures
import simpler_ref as sr

def double(x):
    return 2 * x

with sr.Worker(num_sub_workers=1) as w, concurrent.futures.ThreadPoolExecutor(1) as threads:
    found = threads.submit(lambda: w.submit(double, 4).result()).result(20)
"""


@pytest.mark.spec("CALL-SENT-1")
def test_a_module_may_wait_for_calls_of_its_functions_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "module_that_calls.py").write_text(MODULE_THAT_CALLS)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("module_that_calls").found == 8


# ---------------------------------------------------------------- parameters and attributes
@pytest.mark.spec("CALL-SENT-5")
def test_defaults_are_the_functions_but_for_arrays_and_a_task_has_its_attributes(w):
    def f(a, b=2, c=3, *, d=4):
        return (a, b, c, d)

    assert w.submit(f, 1, c=30).result() == (1, 2, 30, 4)
    assert sr.task(f)(1, d=40).result() == (1, 2, 3, 40)
    shared = w.share(np.ones(4))

    def add(x: sr.In(), y: sr.InOut = shared, z=1):
        y += x * z

    add.kind = "adding"
    add = sr.task(add)
    add(w.share(np.full(4, 2.0))).result()
    assert (add.kind, shared.tolist()) == ("adding", [3.0] * 4)


@pytest.mark.spec("CALL-SENT-5")
def test_a_decorator_may_change_the_parameters_and_passes_on_what_arrays_are_for(w):
    assert w.submit(decorated, x=3).result() == (7, 3)
    with pytest.raises(TypeError, match="unexpected keyword"):
        sr.task(decorated)(first=3)

    @sr.task
    @passing_on
    def add(x: sr.InOut, by=1):
        x += by

    array = w.share(np.zeros(3))
    add(array, by=2).result()
    assert array.tolist() == [2.0] * 3


# ---------------------------------------------------------------- what is kept
class Model:
    """Something long, which cannot be kept for ever."""

    def __init__(self, number):
        self.data = np.full(1 << 18, number)

    def predict(self, x):
        return int(self.data[x])


@pytest.mark.spec("CALL-SENT-2")
def test_functions_that_were_not_sent_for_long_are_forgotten():
    with sr.Worker(num_sub_workers=1, values_size=16 << 20) as w:
        for number in range(40):  # five times what there is room for
            assert w.submit(Model(number).predict, 3).result() == number
        models = [Model(number) for number in range(12)]
        calls = [w.submit(one.predict, 5) for one in models]  # more than fits at a time
        assert [one.result() for one in calls] == list(range(12))


@pytest.mark.spec("CALL-SENT-2")
def test_an_object_that_cannot_be_pickled_is_refused_at_each_call():
    simulation = Simulation()
    simulation.lock = threading.Lock()
    with sr.Worker(num_sub_workers=1) as w:
        for _ in range(2):
            with pytest.raises(TypeError, match=r"step.* cannot be pickled: .*lock"):
                w.submit(simulation.step, 1)
        assert w.submit(abs, -3).result() == 3


@pytest.mark.spec("CALL-SENT-2")
def test_calls_wait_for_writers_of_arrays_that_functions_refer_to_and_these_for_them():
    with sr.Worker(num_sub_workers=2) as w:
        gate = w.share(np.zeros(1, np.int32))
        x = w.zeros((20, 20))
        rows, column, is_open = list(x), x[::2, 3], w.share(np.ones(1, np.int32))

        def looked(start):
            while not start[0][0]:
                time.sleep(0.001)
            return float(column.sum())

        fill_at(gate, x, 2)
        several = w.submit(lambda: sum(map(np.sum, rows)))
        found = [w.submit(looked, [is_open]), w.submit(functools.partial(np.sum, column))]
        mapped = w.map(lambda i: float(column[i]), range(3))
        have_others_run(w)
        gate[0] = 1
        assert [one.result() for one in found] == [20, 20]
        assert several.result() == 800 and list(mapped) == [2, 2, 2]
        gate[0] = 0
        before = w.submit(looked, [gate])
        after = update(x, 2)
        have_others_run(w)
        gate[0] = 1
        assert before.result() == 20 and after.result() is None and x.sum() == 1600


shared = np.zeros(0)


def sum_of_shared():
    return float(shared.sum())


@pytest.mark.spec("CALL-SENT-2")
def test_calls_wait_for_writers_of_arrays_among_the_globals_of_functions_too(monkeypatch):
    with sr.Worker(num_sub_workers=2) as w:
        gate, x = w.share(np.zeros(1, np.int32)), w.zeros(5)
        monkeypatch.setitem(globals(), "shared", x[1:])
        fill_at(gate, x, 2)
        found, mapped = w.submit(sum_of_shared), w.starmap(sum_of_shared, [()] * 3)
        have_others_run(w)
        gate[0] = 1
        assert found.result() == 8 and list(mapped) == [8] * 3


# ---------------------------------------------------------------- by pickle itself
SCRIPT = """
import multiprocessing, pickle, sys
from concurrent.futures import ProcessPoolExecutor
import simpler_ref as sr

@sr.task
def double(x):
    return 2 * x

class Of:
    @sr.task
    def triple(x):
        return 3 * x

if __name__ == "__main__":
    assert pickle.loads(pickle.dumps(double)) is double
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(1, context) as executor:
        print(executor.submit(double, 3).result(60), executor.submit(Of.triple, 3).result(60))
    with sr.Worker(num_sub_workers=1) as w:
        w.submit(int).result()
        exec("@sr.task\\ndef double(x): return 20 * x")
        print(w.submit(lambda one, x: one(x).result(), double, 3).result())
"""


@pytest.mark.spec("CALL-SENT-1", "CALL-SENT-2")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_of_processes_gets_the_tasks_of_a_script(tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, method], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.returncode) == ("6 9\n60\n", 0), done.stderr
