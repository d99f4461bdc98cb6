"""Kernels that the program compiles, a weight that stays on the chip, and a domain released by hand."""

import argparse
import mmap
import os
import sys

import numpy as np
from simpler.task_interface import (
    COMM_MAX_RANK_NUM,
    ArgDirection,
    CallConfig,
    ChipCallable,
    ChipWorker,
    CommBufferSpec,
    ContinuousTensor,
    CoreCallable,
    DataType,
    TaskArgs,
    TensorArgType,
)
from simpler.worker import Worker
from simpler_setup.elf_parser import extract_text_section
from simpler_setup.kernel_compiler import KernelCompiler
from simpler_setup.log_config import DEFAULT_LOG_LEVEL, LOG_LEVEL_CHOICES, configure_logging
from simpler_setup.pto_isa import ensure_pto_isa_root
from simpler_setup.runtime_builder import RuntimeBuilder
from simpler_setup.torch_interop import make_tensor_arg

HERE = os.path.dirname(os.path.abspath(__file__))
RUNTIME = "tensormap_and_ringbuffer"
SIZE = 128
NBYTES = 4 * SIZE
host_a, host_w, host_f = (np.frombuffer(mmap.mmap(-1, NBYTES), np.float32) for _ in range(3))


def build_chip_callable(platform):
    compiler, sources = KernelCompiler(platform=platform), os.path.join(HERE, "sources")
    include = os.path.join(sources, "include")
    assert str(compiler.project_root) == os.getcwd()
    core = compiler.compile_incore(
        source_path=os.path.join(sources, "add.cpp"),
        core_type="aiv",
        pto_isa_root=ensure_pto_isa_root(clone_protocol="https"),
        extra_include_dirs=[*compiler.get_orchestration_include_dirs(RUNTIME), include],
    )
    orchestration = compiler.compile_orchestration(
        runtime_name=RUNTIME, source_path=os.path.join(sources, "launch.cpp")
    )
    signature = [ArgDirection.IN, ArgDirection.IN, ArgDirection.OUT]
    return ChipCallable.build(
        signature=signature,
        func_name="aicpu_orchestration_entry",
        binary=orchestration,
        children=[(0, CoreCallable.build(signature=(), binary=extract_text_section(core)))],
    )


def use_a_chip_alone(callable_):
    """A chip without a Worker, on the runtime that the builder finds."""
    worker = ChipWorker()
    worker.init(1, RuntimeBuilder(platform="a2a3sim").get_binaries(RUNTIME, build=False))
    assert (worker.device_id, worker.initialized) == (1, True)
    handle, args = worker.prepare_callable(callable_), TaskArgs()
    for tensor in (host_w, host_w, host_f):
        args.add_tensor(make_tensor_arg(tensor), TensorArgType.INOUT)
    worker.run(handle, args, CallConfig())
    worker.finalize()
    assert (host_f == 4 * host_w).all()


def run(platform, device):
    host_a[:], host_w[:] = 2, 3
    worker = Worker(
        level=3,
        platform=platform,
        runtime=RUNTIME,
        device_ids=[device],
        num_sub_workers=0,
        build=False,
    )
    handle = worker.register(build_chip_callable(platform))
    worker.init()

    def orch_fn(orch, _args, cfg):
        domain = orch.allocate_domain(
            name="tp",
            workers=[0],
            window_size=NBYTES,
            buffers=[CommBufferSpec("w", "float32", SIZE, NBYTES, load_from_host=False)],
        )
        weight = domain.contexts[0].buffer_ptrs["w"]
        orch.copy_to(worker_id=0, dst=weight, src=host_w.ctypes.data, size=NBYTES)
        args = TaskArgs()
        args.add_tensor(make_tensor_arg(host_a), TensorArgType.INPUT)
        kept = ContinuousTensor.make(weight, (SIZE,), DataType.FLOAT32, child_memory=True)
        args.add_tensor(kept, TensorArgType.INPUT)
        args.add_tensor(make_tensor_arg(host_f), TensorArgType.OUTPUT_EXISTING)
        orch.submit_next_level(callable_handle=handle, args=args, config=cfg, worker=0)
        orch.release_domain(domain)
        assert domain.released and domain.allocation_id

    try:
        worker.run(callable=orch_fn, args=None, config=CallConfig())
    finally:
        worker.close()
    assert (host_f == 10).all(), host_f
    use_a_chip_alone(build_chip_callable(platform))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--platform", default="a2a3sim")
    parser.add_argument("-d", "--device", type=int, default=0)
    parser.add_argument("--log-level", choices=LOG_LEVEL_CHOICES, default=DEFAULT_LOG_LEVEL)
    given = parser.parse_args()
    configure_logging(given.log_level)
    assert COMM_MAX_RANK_NUM == 64 and RUNTIME in RuntimeBuilder("a2a3sim").list_runtimes()
    run(given.platform, given.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
