"""Run by the benchmarks in a new interpreter: how long it takes to be ready, and what it weighs.

Prints one JSON object. Until the Worker is ready, nothing is imported that a program would not need.
"""

import time

START = time.perf_counter()

import simpler_ref  # noqa: E402

IMPORTED = time.perf_counter()


def noop(args):
    """Do nothing."""


def main() -> None:
    """Open a Worker with two workers, use it, and print the figures."""
    begin = time.perf_counter()
    with simpler_ref.Worker(level=3, num_sub_workers=2) as worker:
        task = worker.register(noop)
        worker.start()
        ready = time.perf_counter()

        def orchestrate(orch, args, config):
            for _ in range(1000):
                orch.submit_sub(task)

        worker.run(orchestrate)

        import json

        from processes import children, own, pss

        workers = worker.worker_pids()
        servers = children().difference(workers)
        figures = {
            "import": IMPORTED - START,
            "ready": ready - begin,
            "start_up": IMPORTED - START + ready - begin,
            "worker_pss": sum(map(pss, workers)) / len(workers),
            "worker_own": sum(map(own, workers)) / len(workers),
            "server_pss": sum(map(pss, servers)) / len(servers),
        }
    print(json.dumps(figures))


main()
