"""The state machine in the source, and the references of a slot."""

import ast
from pathlib import Path

from simpler_ref.jit import layout as L
from simpler_ref.jit import slots

from ..kernels import kernels as k

# ---------------------------------------------------------------- the source
WRITERS = {"store", "exchange", "compare_exchange", "fetch_add"}


def functions():
    """Yield every function of the kernels: the name of its file, and its text as a tree."""
    for path in Path(slots.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.stem, node


def name_of(node):
    """Return the name that a node is, or ends with: its own, or that in a module."""
    return getattr(node, "id", getattr(node, "attr", ""))


def calls_in(function):
    """Yield (name, arguments) of each call of a function by its name."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            yield name_of(node.func), node.args


def written_in(function):
    """Yield the text of every place that a function writes to."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from map(ast.unparse, node.targets)
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target)
    yield from (ast.unparse(args[1]) for name, args in calls_in(function) if name in WRITERS)


def test_events_have_their_kernels_and_step_alone_writes_a_state():
    taken = {event.name: set() for event in slots.EVENTS}
    for module, function in functions():
        for name, args in calls_in(function):
            if name == "step":
                event = slots.EVENTS[getattr(slots, name_of(args[2]))]
                taken[event.name].add(f"{module}.{function.name}")
    assert taken == {event.name: set(event.kernels) for event in slots.EVENTS}
    writers = {
        function.name
        for _, function in functions()
        if any("S_STATE" in place for place in written_in(function))
    }
    assert writers == {"step"}


# ---------------------------------------------------------------- references
def test_the_counts_hold_more_consumers_than_tasks_can_live(driver):
    slot, many = driver.submit(), L.DEFAULT_TASK_WINDOW
    driver.mem[slot + L.S_FANOUT] = many | many << 32
    assert k.acquire_ref(driver.mem, slot) and not k.release_ref(driver.mem, slot)
    assert driver.refs(slot) == (many + 1, many + 1)
