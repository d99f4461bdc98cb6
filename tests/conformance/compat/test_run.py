"""COMPAT-RUN: programs and modules."""

import os
import subprocess
import sys

import pytest

from simpler_ref import compat

L3 = """
import sys, os
from simpler.task_interface import CallConfig, DataType, TaskArgs, TensorArgType
from simpler.worker import Worker
import helper

assert __name__ == "__main__" and sys.modules["__main__"].Worker is Worker
assert __file__ == sys.argv[0]


class Local:
    value = 3


def add(args):
    from simpler.task_interface import DataType
    x = args.tensor(0).numpy()
    x += args.scalar(0) * Local.value * helper.ONE


def main():
    with Worker(level=3, num_sub_workers=2) as w:
        early = w.register(add)
        w.init()
        x = w.zeros(4, "float32")

        def orch(orch, args, config):
            for handle in (early, late):
                task = TaskArgs()
                task.add_tensor(x, TensorArgType.INOUT)
                task.add_scalar(int(sys.argv[1]))
                orch.submit_sub(handle, task)

        late = early
        w.run(orch, None, CallConfig())
        late = w.register(lambda args: add(args))
        w.run(orch)
        print(x.tolist())


if __name__ == "__main__":
    main()
    raise SystemExit(7)
"""


def run(*arguments, **more):
    command = [sys.executable, "-m", "simpler_ref.compat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)


@pytest.mark.spec("COMPAT-RUN-1")
def test_a_program_runs_with_no_line_changed(tmp_path):
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "helper.py").write_text("ONE = 1\n")
    (folder / "program.py").write_text(L3)
    given = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.getcwd()}}
    done = run("below/program.py", 5, "-m", **given)
    assert (done.returncode, done.stdout) == (7, "[60.0, 60.0, 60.0, 60.0]\n"), done.stderr


LATER = """
import atexit, pickle, threading

class Local: pass

def look():
    print(type(pickle.loads(pickle.dumps(Local()))) is Local)

def look_later():
    threading.main_thread().join()
    look()

atexit.register(look)
threading.Thread(target=look_later).start()
"""


@pytest.mark.spec("COMPAT-RUN-1")
def test_a_program_is_main_until_its_threads_and_the_process_end(tmp_path):
    (tmp_path / "program.py").write_text(LATER)
    done = run(tmp_path / "program.py")
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr


@pytest.mark.spec("COMPAT-RUN-1")
def test_pytest_runs_tests_with_no_line_changed(tmp_path):
    tests = tmp_path / "test_original.py"
    tests.write_text(
        "from simpler.worker import Worker\n"
        "from _task_interface import ContinuousTensor\n\n"
        "def test_one():\n    assert Worker(level=3).level == 3\n\n"
        "def test_two():\n    assert ContinuousTensor().data == 1\n"
    )
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tests)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout


@pytest.mark.spec("COMPAT-RUN-1")
@pytest.mark.parametrize("arguments", [(), ("-m",), ("-x", "program.py"), ("no_such_program.py",)])
def test_what_it_does_not_understand_tells_how_it_is_called(arguments, capsys):
    assert compat.main(list(arguments)) == 2
    said = capsys.readouterr()
    assert "usage: python -m simpler_ref.compat" in said.err and not said.out


WHEREVER = """
import simpler
from simpler.task_interface import DataType, TaskArgs, TensorArgType
from simpler.worker import Worker


def fill(args):  # imports by name, and `simpler` as it is known in the program
    from _task_interface import get_element_size
    import simpler.worker
    x = args.tensor(0).numpy()
    x[:] = get_element_size(DataType.FLOAT32) * (simpler.worker.Worker is simpler.Worker)


def orch(orch, args, config):
    task = TaskArgs()
    task.add_tensor(x, TensorArgType.INOUT)
    orch.submit_sub(handle, task)


if __name__ == "__main__":
    with Worker(num_sub_workers=1, OPTIONS) as w:
        handle = w.register(fill)
        w.init()
        x = w.zeros(2, "float32")
        w.run(orch)
        print(x.tolist())
"""

SPAWNED = 'level=3, start_method="spawn"'
AT_AN_ENDPOINT = "fleet=simpler.ProcessFleet(), endpoints=1"


@pytest.mark.spec("COMPAT-RUN-4")
@pytest.mark.parametrize(
    "options",
    [SPAWNED, pytest.param(AT_AN_ENDPOINT, marks=pytest.mark.long)],
    ids=["spawn", "fleet"],
)
def test_the_names_are_known_wherever_tasks_run(tmp_path, options):
    (tmp_path / "program.py").write_text(WHEREVER.replace("OPTIONS", options))
    done = run(tmp_path / "program.py")
    assert (done.returncode, done.stdout) == (0, "[4.0, 4.0]\n"), done.stderr
