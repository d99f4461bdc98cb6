"""Half a gigabyte of samples through rings of 8 MiB: the average spectrum of a long signal.

Each batch passes through four tasks: measure, taper, transform, add up. The results of the first three
are in rings, each in the ring of its scope, and are freed as soon as no task needs them. When a
ring is full, submitting waits. So memory use does not depend on the amount of data.
Plain numpy then computes the same; the results must be equal to the last bit.
"""

import argparse
import os
import sys
import time

import numpy as np

from simpler_ref import ContinuousTensor, DataType, TaskArgs, Worker
from simpler_ref import TensorArgType as T

MIB = 1 << 20
SEGMENT = 1024  # samples that are transformed together
SEGMENTS = MIB // (4 * SEGMENT)  # segments in a batch of 1 MiB
BINS = SEGMENT // 2 + 1
TONES = (100, 230)  # hidden in the noise, at these frequencies
_phase = 2 * np.pi * np.arange(SEGMENT) / SEGMENT
SIGNAL = sum(0.05 * np.sin(tone * _phase) for tone in TONES).astype(np.float32)
WINDOW = np.hanning(SEGMENT).astype(np.float32)


# ---------------------------------------------------------------- the computation
def measure(batch):
    """Return the samples of one batch: noise with two faint tones."""
    noise = np.random.default_rng(batch).standard_normal((SEGMENTS, SEGMENT), np.float32)
    return noise + SIGNAL


def taper(samples):
    """Return the segments without their mean, fading to zero at both ends."""
    return (samples - samples.mean(axis=1, keepdims=True)) * WINDOW


def transform(tapered):
    """Return the power of each segment at each frequency."""
    spectrum = np.fft.rfft(tapered)
    return spectrum.real**2 + spectrum.imag**2


# ---------------------------------------------------------------- what the workers run
def measure_task(args):
    args.tensor(0).numpy()[...] = measure(args.scalar(0))


def taper_task(args):
    args.tensor(1).numpy()[...] = taper(args.tensor(0).numpy())


def transform_task(args):
    args.tensor(1).numpy()[...] = transform(args.tensor(0).numpy())


def add_up_task(args):
    total = args.tensor(1).numpy()
    total += args.tensor(0).numpy().sum(axis=0)


def stream(worker, batches, total):
    """Run all batches; return the run's figures and the largest number of live tasks."""
    leaves = [measure_task, taper_task, transform_task, add_up_task]
    measure_, taper_, transform_, add_up_ = (worker.register(leaf) for leaf in leaves)
    alive = 0

    def pipeline(orch, args, config):
        nonlocal alive

        def create(leaf, width, source=None, batch=None):
            """Submit a task that creates a tensor, from `source` if there is one."""
            task = TaskArgs()
            if source is not None:
                task.add_tensor(source, T.INPUT)
            shape = (SEGMENTS, width)  # no address: the ring of the open scope provides one
            task.add_tensor(ContinuousTensor.make(0, shape, DataType.FLOAT32), T.OUTPUT)
            if batch is not None:
                task.add_scalar(batch)
            orch.submit_sub(leaf, task)
            return task.tensor(task.tensor_count() - 1)

        for batch in range(batches):
            with orch.scope():  # ring 1
                samples = create(measure_, SEGMENT, batch=batch)
                with orch.scope():  # ring 2
                    tapered = create(taper_, SEGMENT, samples)
                    with orch.scope():  # ring 3
                        power = create(transform_, BINS, tapered)
                        task = TaskArgs()
                        task.add_tensor(power, T.INPUT)
                        task.add_tensor(total, T.INOUT)  # one batch after the other
                        orch.submit_sub(add_up_, task)
            alive = max(alive, orch.live_tasks())

    return worker.run(pipeline), alive


def plain_numpy(batches):
    """Return the same total, computed batch by batch without a graph."""
    total = np.zeros(BINS, np.float32)
    for batch in range(batches):
        total += transform(taper(measure(batch))).sum(axis=0)
    return total


# ---------------------------------------------------------------- what it takes
def resident(pids):
    """Return the bytes of memory that processes use, without program files, shared pages once."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            for line in lines:
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += 1024 * int(line.split()[1])
    return total


def mib(nbytes):
    return f"{nbytes / MIB:.1f} MiB"


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


positive.__name__ = "number"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=positive, default=512, help="of 1 MiB each (512)")
    parser.add_argument("--ring-mib", type=positive, default=8, help="MiB of each ring (8)")
    parser.add_argument("--workers", type=positive, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    if options.ring_mib > 1024:
        parser.error(
            f"--ring-mib {options.ring_mib} is too large for a demonstration: at most 1024"
        )

    with Worker(
        level=3, num_sub_workers=options.workers, heap_ring_size=options.ring_mib * MIB
    ) as worker:
        total = worker.share(np.zeros(BINS, np.float32))
        stream(worker, options.workers, total)  # a small run first, to start and load everything
        total[...] = 0
        pids = [os.getpid(), *worker.worker_pids()]
        before = resident(pids)
        timing, alive = stream(worker, options.batches, total)
        growth = resident(pids) - before

    start = time.perf_counter()
    expected = plain_numpy(options.batches)
    numpy_seconds = time.perf_counter() - start
    equal = np.array_equal(total, expected)
    loudest = sorted((np.argsort(total)[-len(TONES) :]).tolist())

    batches = options.batches
    print(
        f"{batches} batches, {timing.tasks} tasks, {timing.edges} edges, workers: {options.workers}"
    )
    print()
    print(f"{'ring':<22}{'went through':>14}{'at peak':>12}{'size':>12}")
    for ring, name, width in (
        (1, "samples", SEGMENT),
        (2, "tapered", SEGMENT),
        (3, "power", BINS),
    ):
        passed = batches * 4 * SEGMENTS * width
        peak = timing.ring_peak_bytes[ring]
        print(
            f"{ring} ({name})".ljust(22)
            + f"{mib(passed):>14}{mib(peak):>12}{mib(options.ring_mib * MIB):>12}"
        )
    print()
    print(f"{'tasks alive at a time':<30}{alive} at most")
    print(f"{'memory taken by the run':<30}{mib(growth)}, all processes together")
    print(f"{'time':<30}{timing.host_wall_ns / 1e9:.2f} s")
    print(f"{'plain numpy, one core':<30}{numpy_seconds:.2f} s")
    print(f"{'tones found at':<30}{loudest}, hidden at {list(TONES)}")
    print(f"{'equal to numpy, bit by bit':<30}{'yes' if equal else 'NO'}")
    return 0 if equal else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
