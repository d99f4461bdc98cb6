"""What a domain says to the host about each of its ranks, and when it ends."""

import sys

from simpler.task_interface import CallConfig, CommBufferSpec, TaskArgs
from simpler.worker import Worker


def main():
    worker = Worker(
        level=3, platform="a2a3sim", runtime="tensormap_and_ringbuffer", device_ids=[0, 1, 2]
    )
    worker.init()
    kept = []

    def orchestrate(orch, args, config):
        spec = CommBufferSpec(name="data", dtype="float32", count=16, nbytes=64)
        with orch.allocate_domain(
            name="pair", workers=[2, 0], window_size=4096, buffers=[spec]
        ) as domain:
            kept.append(domain)
            assert tuple(domain.workers) == (2, 0)
            for rank, chip in enumerate(domain.workers):
                context = domain[chip]
                assert (context.name, context.domain_rank, context.domain_size) == ("pair", rank, 2)
                assert context.device_ctx != 0
                assert context.actual_window_size >= 4096
                offset = context.buffer_ptrs["data"] - context.local_window_base
                assert 0 <= offset <= context.actual_window_size - 64
            assert "pair" in worker.live_domains
        assert domain.released and not domain.freed
        try:
            domain[2]
        except RuntimeError as error:
            assert "released" in str(error)
        else:
            raise AssertionError("a released domain was indexed")
        try:
            with orch.allocate_domain(name="big", workers=[0], window_size=32, buffers=[spec]):
                raise AssertionError("buffers larger than the window were taken")
        except ValueError as error:
            assert "data" in str(error) or "window" in str(error), error

    try:
        worker.run(orchestrate, TaskArgs(), CallConfig())
        assert kept[0].freed and not worker.live_domains
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
