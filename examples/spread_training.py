"""Data-parallel training of a logistic regression: on this machine, on endpoints, or on Ray.

Each shard of the data moves once to where its gradients are computed; then only weights and gradients
move.
"""

import numpy as np
from where import report, worker_from

from simpler_ref import ContinuousTensor, DataType, TaskArgs
from simpler_ref import TensorArgType as T

SAMPLES, FEATURES, SHARDS, STEPS, RATE = 4096, 64, 4, 15, 0.5


def gradient(args):
    """The mean gradient of a shard at these weights."""
    x, y, weights, found = (args.tensor(i).numpy() for i in range(4))
    found[...] = mean_gradient(x, y, weights)


def mean_gradient(x, y, weights):
    """Return the gradient of the logistic loss, averaged over samples."""
    guess = 1 / (1 + np.exp(-(x @ weights)))
    return x.T @ (guess - y) / np.float32(len(y))


def update(args):
    """Move the weights against the mean of all gradients."""
    weights, *gradients = (args.tensor(i).numpy() for i in range(args.tensor_count()))
    weights -= np.float32(RATE / len(gradients)) * sum(gradients)


def main():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES), np.float32)
    y = (x @ rng.standard_normal(FEATURES, np.float32) > 0).astype(np.float32)
    with worker_from() as worker:
        leaf = {function: worker.register(function) for function in (gradient, update)}
        shards = [
            tuple(map(worker.share, pair))
            for pair in zip(np.split(x, SHARDS), np.split(y, SHARDS), strict=True)
        ]
        weights = worker.zeros(FEATURES, np.float32)

        def train(orch, args, config):
            for _ in range(STEPS):
                gradients = []
                for shard in shards:
                    task = TaskArgs()
                    for one in (*shard, weights):
                        task.add_tensor(one, T.INPUT)
                    fresh = ContinuousTensor.make(0, (FEATURES,), DataType.FLOAT32)
                    task.add_tensor(fresh, T.OUTPUT)
                    orch.submit_sub(leaf[gradient], task)
                    gradients.append(task.tensor(3))
                task = TaskArgs()
                task.add_tensor(weights, T.INOUT)
                for one in gradients:
                    task.add_tensor(one, T.INPUT)
                orch.submit_sub(leaf[update], task)

        worker.run(train)
        expected = np.zeros(FEATURES, np.float32)
        for _ in range(STEPS):
            expected -= np.float32(RATE) * mean_gradient(x, y, expected)
        right = np.mean((x @ weights > 0) == y)
        close = np.allclose(weights, expected, atol=1e-4)
        report(worker, f"as in numpy: {close}, {right:.0%} right")


if __name__ == "__main__":
    main()
