"""COMPAT-RUN: programs and modules."""

import os
import subprocess
import sys

import pytest

from simpler_ref import compat

PROGRAM = """
import atexit, pickle, sys, threading
import simpler
from simpler.task_interface import CallConfig, DataType, TaskArgs, TensorArgType
from simpler.worker import Worker
import helper

assert __name__ == "__main__" and sys.modules["__main__"].Worker is Worker
assert __file__ == sys.argv[0]


class Local:
    value = 3


def add(args):  # imports by name, and `simpler` as it is known in the program
    from _task_interface import get_element_size
    import simpler.worker
    assert get_element_size(DataType.FLOAT32) == 4 and simpler.worker.Worker is simpler.Worker
    x = args.tensor(0).numpy()
    x += args.scalar(0) * Local.value


def main():
    with Worker(num_sub_workers=2, OPTIONS) as w:
        early = w.register(add)
        w.init()
        x = w.zeros(4, "float32")

        def orch(orch, args, config):
            for handle in (early, late):
                task = TaskArgs()
                task.add_tensor(x, TensorArgType.INOUT)
                task.add_scalar(int(sys.argv[1]) * helper.ONE)
                orch.submit_sub(handle, task)

        late = early
        w.run(orch, None, CallConfig())
        late = w.register(lambda args: add(args))
        w.run(orch)
        print(x.tolist())


def look():
    print(type(pickle.loads(pickle.dumps(Local()))) is Local)


def look_later():
    threading.main_thread().join()
    look()


if __name__ == "__main__":
    main()
    atexit.register(look)
    threading.Thread(target=look_later).start()
    raise SystemExit(7)
"""


def run(*arguments, **more):
    command = [sys.executable, "-m", "simpler_ref.compat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **more)


@pytest.mark.spec("COMPAT-RUN-1", "COMPAT-RUN-4")
@pytest.mark.parametrize(
    "options",
    [
        *("level=3", 'level=3, start_method="spawn"'),
        pytest.param("fleet=simpler.ProcessFleet(), endpoints=1", marks=pytest.mark.long),
    ],
    ids=["fork", "spawn", "fleet"],
)
def test_a_program_runs_with_no_line_changed_and_the_names_are_known_wherever_tasks_run(
    tmp_path, options
):
    """It is `__main__` until its threads and the process end."""
    folder = tmp_path / "below"
    folder.mkdir()
    (folder / "helper.py").write_text("ONE = 1\n")
    (folder / "program.py").write_text(PROGRAM.replace("OPTIONS", options))
    given = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": os.getcwd()}}
    done = run("below/program.py", 5, "-m", **given)
    said = "[60.0, 60.0, 60.0, 60.0]\nTrue\nTrue\n"
    assert (done.returncode, done.stdout) == (7, said), done.stderr


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
