"""Tasks that endpoints run in tests, which they import by name."""

import os
import threading
import time
from pathlib import Path

import simpler_ref as sr


class OwnError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


LOCK = threading.Lock()


@sr.task
def keep_locked(x):
    """Return what it gets; that cannot be serialised."""
    with LOCK:
        return x


@sr.task
def axpy(y: sr.InOut, x: sr.In, a):
    y += a * x


@sr.task
def total(x: sr.In):
    return float(x.sum())


@sr.task
def total_after(x: sr.In, _):
    return float(x.sum())


@sr.task
def total_of_both(x: sr.In, y: sr.In):
    return float(x.sum() + y.sum())


@sr.task
def forms(x: sr.InOut, *others: sr.In):
    """Tell what the arrays are, and change the first."""
    told = [(one.shape, str(one.dtype), one.ravel().tolist()) for one in (x, *others)]
    x += 1
    return told


@sr.task
def scale(x: sr.InOut, a):
    x *= a


@sr.task
def add_to_all(a, x: sr.InOut, *more: sr.InOut):
    for one in (x, *more):
        one += a


@sr.task
def fill(x: sr.Out, a):
    x[...] = a


@sr.task
def copy(y: sr.Out, x: sr.In):
    y[...] = x


@sr.task
def set_field(x: sr.InOut, a):
    x["b"] = a


@sr.task
def add_one_and_say_where(x: sr.InOut):
    x += 1
    return os.getppid()


@sr.task
def spoil(x: sr.InOut):
    x[...] = -1
    return 1 / 0


@sr.task
def add(a, b):
    return a + b


@sr.task
def keep(value):
    return value


@sr.task
def text():
    return "text"


@sr.task
def pid():
    return os.getpid()


@sr.task
def describe(a, *rest, k, **more):
    return f"{a} {rest} {k} {more}"


@sr.task
def refuse(what):
    raise KeyError(what)


@sr.task
def refuse_number(_):
    raise KeyError("no such")


@sr.task
def refuse_with_own(code):
    raise OwnError(code)


def divide(x):
    return 1 / x


@sr.task(timeout=0.2)
def sleep_long():
    time.sleep(60)


@sr.task(compiled=True)
def compiled_total(x: sr.In, k):
    return k * x.sum()


@sr.task
def meet(mine, all_of_them):
    """Say with a file that this call runs, and wait for those of others."""
    Path(mine).touch()
    while not all(os.path.exists(one) for one in all_of_them):
        time.sleep(0.001)
    return mine


def wait_for_gate(x: sr.In, gate):
    """Wait until a file is there; say in another one which session waits."""
    mine = Path(f"{gate}.{os.getpid()}")
    mine.write_text(str(session()))
    os.replace(mine, f"{gate}.pid")
    while not os.path.exists(gate):
        time.sleep(0.001)
    return float(x.sum())


wait_for = sr.task(name="wait_for")(wait_for_gate)


@sr.task(retries=1)
def die_once(y: sr.InOut, mark):
    """Kill the session above, the first time."""
    if not os.path.exists(mark):
        Path(mark).touch()
        y[...] = 77
        kill_session()
    y *= 2
    return float(y.sum() / 2)


def kill_session():
    """Kill the session of this sub worker, and wait for the end that comes with it."""
    os.kill(session(), 9)
    time.sleep(60)


def session():
    """Return the process of this sub worker's session: the outermost, since workers look the same."""
    one = os.getpid()
    while one > 1:
        if b"simpler_ref.endpoint" in Path(f"/proc/{one}/cmdline").read_bytes():
            found = one
        one = int(Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()[1])
    return found


def add_one(args):
    args.tensor(0).numpy()[...] += 1


# ---------------------------------------------------------------- long values
def sum_of_all(*values):
    return float(sum(one.sum() for one in values))


def overwrite(value):
    value[...] = -1
    return float(value.sum())


def grown(value):
    return value + 1


grow = sr.task(name="grow")(grown)


@sr.task
def kill_sub_worker():
    os.kill(os.getpid(), 9)


def sum_or_die_once(value, mark):
    """Kill the session above, the first time."""
    if not os.path.exists(mark):
        Path(mark).touch()
        kill_session()
    return float(value.sum())
