"""How the memory of the parent process grows with the tasks that are alive."""

from __future__ import annotations

from graphs import sized
from processes import resident

from simpler_ref import Worker

LARGE = 1 << 20


def grow(n: int, scope: int, **settings: int) -> tuple[int, int]:
    """Run `n` tasks in scopes of `scope`; return bytes grown by and most tasks alive at once."""
    with Worker(level=3, num_sub_workers=1, **settings) as worker:
        worker.run(sized(worker, 1024, 1024))
        before = after = most = 0

        def look(orch):
            nonlocal most
            most = max(most, orch.live_tasks())

        graph = sized(worker, n, scope, at_scope_end=look)

        def orchestrate(orch, args, config):
            nonlocal before, after
            before = resident()
            graph(orch, args, config)
            after = resident()

        worker.run(orchestrate)
        return after - before, most


def test_memory_of_tasks_that_are_all_held(record):
    n = 100 << 10
    record({"live_task": (lambda: grow(n, n)[0], n)}, rounds=5, warm_up=False)


def test_memory_of_a_million_tasks(record):
    def held():
        return grow(LARGE, LARGE)[0]

    def nested():
        grown, most = grow(LARGE, 1024)
        return {"nested_growth": grown, "nested_alive": most}

    def windowed():
        return grow(LARGE, 1024, task_window=4096)[0]

    record(
        {"held_growth": (held, 1), "nested": (nested, 1), "windowed_growth": (windowed, 1)},
        rounds=3,
        warm_up=False,
    )
