"""Sub workers: a call, an order made by tags, a group, and a callable that comes and goes."""

import sys

import numpy as np
from arrays import shared, tensor_of
from simpler.task_interface import CallConfig, ContinuousTensor, DataType, TaskArgs, TensorArgType
from simpler.worker import Worker

MEMBERS = 2
found = shared(3)
parts = shared(MEMBERS, np.int32)


def hello(args):
    found[0] += 1
    print("hello from a sub worker", flush=True)


def produce(args):
    args.tensor(0).numpy()[:] = 1


def double(args):
    args.tensor(0).numpy()[:] *= 2


def consume(args):
    found[1] = args.tensor(0).numpy().sum()


def member(args):
    args.tensor(0).numpy()[0] = 10 + args.scalar(0)


def sum_up(args):
    found[2] = sum(int(args.tensor(i).numpy()[0]) for i in range(args.tensor_count()))


def dependencies(orch, produced, doubled, consumed):
    """Produce, change in place, consume: the output gets its memory from the heap."""
    task = TaskArgs()
    task.add_tensor(ContinuousTensor.make(0, (16,), DataType.FLOAT32), TensorArgType.OUTPUT)
    orch.submit_sub(produced, task)
    made = task.tensor(0)
    assert made.data != 0
    for _ in range(3):
        task = TaskArgs()
        task.add_tensor(made, TensorArgType.INOUT)
        orch.submit_sub(doubled, task)
    task = TaskArgs()
    task.add_tensor(made, TensorArgType.INPUT)
    orch.submit_sub(consumed, task)


def group(orch, member_handle, sum_handle):
    """A group is one task of several members: what needs it waits for all of them."""
    members = []
    for i in range(MEMBERS):
        task = TaskArgs()
        task.add_tensor(tensor_of(parts[i : i + 1]), TensorArgType.OUTPUT_EXISTING)
        task.add_scalar(i)
        members.append(task)
    orch.submit_sub_group(member_handle, members)
    task = TaskArgs()
    for i in range(MEMBERS):
        task.add_tensor(tensor_of(parts[i : i + 1]), TensorArgType.INPUT)
    orch.submit_sub(sum_handle, task)


def come_and_go(worker):
    address = found.ctypes.data

    def late(args):
        import ctypes

        ctypes.c_float.from_address(address).value += 41

    handle = worker.register(late)
    worker.run(lambda orch, args, config: orch.submit_sub(handle), TaskArgs(), CallConfig())
    assert found[0] == 42
    worker.unregister(handle)
    try:
        worker.run(lambda orch, args, config: orch.submit_sub(handle), TaskArgs(), CallConfig())
    except KeyError as error:
        assert "is not live on this Worker" in str(error), error
    else:
        raise AssertionError("an unregistered handle was taken")


def main():
    worker = Worker(level=3, num_sub_workers=MEMBERS, heap_ring_size=1 << 22)
    greeting = worker.register(hello)
    chain = [worker.register(one) for one in (produce, double, consume)]
    sums = [worker.register(one) for one in (member, sum_up)]
    worker.init()

    def orchestrate(orch, args, config):
        dependencies(orch, *chain)
        group(orch, *sums)

    try:
        worker.run(lambda orch, args, config: orch.submit_sub(greeting), TaskArgs(), CallConfig())
        for _ in range(5):
            worker.run(orchestrate, TaskArgs(), CallConfig())
            assert found.tolist() == [1, 16 * 8, sum(10 + i for i in range(MEMBERS))]
        come_and_go(worker)
    finally:
        worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
