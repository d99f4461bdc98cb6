"""Chips behind a `runtime.so`: the L2 ABI, a simulated chip, and its callables."""

from .abi import ChipError, ChipStatus, ChipStorageTaskArgs
from .callables import ChipCallable, CoreCallable
from .chip_worker import ChipWorker, default_runtime
from .domain_kernels import (
    barrier,
    domain_base,
    domain_rank,
    domain_size,
    get,
    notify,
    peer,
    put,
    wait,
)
from .domains import MAX_RANKS
from .kernels import (
    In,
    InOut,
    KernelArgument,
    KernelCompileError,
    Out,
    Scalar,
    compile_kernel,
    core_kernel,
)

COMM_MAX_RANK_NUM = MAX_RANKS
"""How many ranks a domain can have."""

__all__ = [
    "COMM_MAX_RANK_NUM",
    "ChipCallable",
    "ChipError",
    "ChipStatus",
    "ChipStorageTaskArgs",
    "ChipWorker",
    "CoreCallable",
    "In",
    "InOut",
    "KernelArgument",
    "KernelCompileError",
    "Out",
    "Scalar",
    "barrier",
    "compile_kernel",
    "core_kernel",
    "default_runtime",
    "domain_base",
    "domain_rank",
    "domain_size",
    "get",
    "notify",
    "peer",
    "put",
    "wait",
]
