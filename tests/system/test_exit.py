"""Whole programs: their end without close, forks of them, what is printed, and their signals."""

from textwrap import dedent

import pytest

USE = """
def touch(args):
    args.tensor(0).numpy()[0] += 1

def args_of(x):
    args = TaskArgs()
    args.add_tensor(x, T.INOUT)
    return args

def use(w):
    w.init()
    x = w.share(np.zeros(1, np.int32))
    h = w.register(touch)
    w.run(lambda orch, *_: orch.submit_sub(h, args_of(x)))
    assert x[0] == 1

w = Worker(level=3, num_sub_workers=2)
"""


# ---------------------------------------------------------------- exit
ENDINGS = {
    "after a run": "use(w)",
    "an array is left": """
        use(w)
        keep = w.share(np.ones(9))
        w.close()
        assert keep.sum() == 9
        """,
    "closed at exit": "use(w); import atexit; atexit.register(w.close)",
    "two Workers": "use(w); w2 = Worker(level=3, num_sub_workers=2); use(w2)",
    "threads": "w = Worker(level=3, num_sub_workers=2, child_mode='thread'); use(w)",
    "in a run": """
        h = w.register(lambda: time.sleep(0.2))
        w.init()
        w.start()
        run = lambda: w.run(lambda orch, *_: orch.submit_sub(h))
        threading.Thread(target=run, daemon=True).start()
        while not w._life.running:
            time.sleep(0.001)
        """,
    "in one run after the other": """
        h = w.register(lambda: None)
        w.init()
        def work():
            while True:
                w.run(lambda orch, *_: orch.submit_sub(h))
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        """,
    "a tree": """
        l4, l5 = Worker(level=4), Worker(level=5)
        l4.add_worker(w)
        l5.add_worker(l4)
        h = w.register(lambda: None)
        at_l3 = l4.register(lambda orch, *_: orch.submit_sub(h))
        at_l4 = l5.register(lambda orch, *_: orch.submit_next_level(at_l3))
        l5.init()
        l5.run(lambda orch, *_: orch.submit_next_level(at_l4))
        """,
}


@pytest.mark.spec("ORCH-RUN-9")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_may_end_without_close_and_says_nothing(interpreter, ending):
    assert interpreter.check(USE + dedent(ENDINGS[ending])) == ""


@pytest.mark.parametrize(
    ("body", "code", "last"),
    [
        ("raise ValueError('unhandled')", 1, "ValueError: unhandled"),
        ("with w2: w2.run(lambda *_: sys.exit(7))", 7, ""),
        ("import atexit; atexit.register(lambda: 1 / 0)", 0, "ZeroDivisionError: division by zero"),
    ],
)
def test_the_exit_code_is_the_programs_own(interpreter, body, code, last):
    source = f"{USE}use(w)\nw2 = Worker(level=3, num_sub_workers=1)\n{body}"
    got, out, err = interpreter.run(source)
    assert (got, out) == (code, "")
    assert err.strip().endswith(last)
    assert "resource_tracker" not in err
    assert "leaked" not in err


@pytest.mark.parametrize("closed", ["0", "012"])
def test_a_program_without_standard_streams_and_without_its_folder_works(
    interpreter, closed, tmp_path
):
    (tmp_path / "gone").mkdir()
    source = f"""
os.chdir({str(tmp_path / "gone")!r})
os.rmdir(os.getcwd())
for fd in {closed!r}:
    os.close(int(fd))
sys.stdout = sys.stderr = None
use(w)
w.close()
os._exit(9)
"""
    assert interpreter.run(USE + source)[0] == 9


# ---------------------------------------------------------------- what workers print
def test_what_workers_print_reaches_the_pipe_once_and_while_the_program_runs(interpreter):
    interpreter.check(
        """
        ours, theirs = os.pipe()
        os.dup2(theirs, 1)
        sys.stdout.write("before;")           # still in the buffer when the workers are forked
        def speak(args):
            print("task", args.scalar(0))     # no flush: stdout is a pipe, so it is buffered
        with Worker(level=3, num_sub_workers=2) as w:
            h = w.register(speak)
            def graph(orch, args, config):
                for i in range(100):
                    a = TaskArgs()
                    a.add_scalar(i)
                    orch.submit_sub(h, a)
            w.run(graph)
            said = b""
            while said.count(b"\\n") < 100:
                said += os.read(ours, 10000)
        assert said.count(b"before;") == 1
        words = said.replace(b"before;", b"").split()
        assert sorted(map(int, words[1::2])) == [*range(100)] and set(words[::2]) == {b"task"}
        """
    )


def test_stdin_stays_with_the_program(interpreter):
    said = interpreter.run(
        """
        with Worker(level=3, num_sub_workers=1) as w:
            h = w.register(lambda: say(f"worker read {sys.stdin.read()!r}"))
            w.run(lambda orch, *_: orch.submit_sub(h))
            say("program read " + input())
        """,
        stdin="my line\n",
    )
    assert said == (0, "worker read ''\nprogram read my line\n", "")


# ---------------------------------------------------------------- forks, signals and other children
FORKS = """
use(w)
x = w.share(np.zeros(1, np.int32))
pids = w.worker_pids()
for how in ("exit", "close", "gc", "run", "its own"):
    pid = os.fork()
    if pid == 0:
        if how == "exit":
            sys.exit(0)
        elif how == "close":
            w.close()
        elif how == "gc":
            del w
            gc.collect()
        elif how == "run":
            for call in (lambda: w.run(lambda *_: None), w.start, lambda: w.empty(1)):
                try:
                    call()
                except RuntimeError as error:
                    assert "belongs to process" in str(error), error
                else:
                    raise SystemExit(3)
        else:
            os.closerange(3, 1000)             # as a daemon does
            use(mine := Worker(level=3, num_sub_workers=2))
            mine.close()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0, how
    assert w.worker_pids() == pids
    h = w.register(lambda: None)
    w.unregister(h)
    w.run(lambda *_: None)
    pids = w.worker_pids()
w.close()
"""
FORKS_IN_A_RUN = """
use(w)
x = w.share(np.zeros(1, np.int32))
h = w.register(touch)
status_of = {"exit": 0, "return": 4, "raise": 5, "submit": 4, "scope": 4}
for leave in status_of:
    def graph(orch, args, config):
        orch.submit_sub(h, args_of(x))
        with orch.scope():
            pid = os.fork()
            if pid == 0:
                if leave == "exit":
                    sys.exit(0)
                elif leave == "return":
                    return
                elif leave == "raise":
                    raise ValueError("in the fork")
                elif leave == "submit":
                    orch.submit_sub(h, args_of(x))
                elif leave == "scope":
                    orch.scope_end()
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status == status_of[leave], (leave, status)
            for _ in range(10):
                orch.submit_sub(h, args_of(x))
        orch.submit_sub(h, args_of(x))

    x[0] = 0
    me = os.getpid()
    try:
        timing = w.run(graph)
    except RuntimeError as error:
        assert os.getpid() != me, error
        sys.exit(4)
    except ValueError:
        sys.exit(5)
    assert os.getpid() == me
    assert (x[0], timing.tasks) == (12, 12), (leave, x, timing)
w.close()
"""
HANDLES_SIGNALS = """
seen = []
signal.signal(signal.SIGCHLD, lambda *_: seen.append(os.waitpid(-1, os.WNOHANG)))
signal.signal(signal.SIGTERM, lambda *_: seen.append("TERM"))
use(w)
x = w.share(np.zeros(1, np.int32))
child = os.fork()
if child == 0:
    os._exit(3)
while not seen:
    time.sleep(0.001)
assert (child, 3 << 8) in seen, seen
die = w.register(lambda: os.kill(os.getpid(), signal.SIGTERM))   # not the program's handler
try:
    w.run(lambda orch, *_: orch.submit_sub(die))
except WorkerLostError as error:
    assert error.status == -signal.SIGTERM
else:
    sys.exit(1)
assert "TERM" not in seen
w.close()
"""
TAKES_CHILDREN = """
signal.signal(signal.SIGCHLD, HOW)
for _ in range(3):
    w = Worker(level=3, num_sub_workers=2)
    use(w)
    w.close()
"""
PROGRAMS = {
    "a fork of the program leaves its Worker alone": FORKS,
    "a fork inside a run leaves the run alone": FORKS_IN_A_RUN,
    "own handlers and waits do not disturb": HANDLES_SIGNALS,
    "who ignores dead children ignores ours": TAKES_CHILDREN.replace("HOW", "signal.SIG_IGN"),
    "who takes dead children takes ours": TAKES_CHILDREN.replace("HOW", "lambda *_: os.wait()"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_that_forks_or_handles_signals_and_its_worker_leave_each_other_alone(
    interpreter, program
):
    interpreter.check(USE + program)
