"""Chips behind a `runtime.so`: the L2 ABI, a simulated chip, and its callables."""

from typing import TYPE_CHECKING

from ..system.lazy import names_from as _names_from
from .abi import ChipCallable, ChipError, ChipStatus, ChipStorageTaskArgs, CoreCallable
from .chip_worker import ChipWorker, default_runtime
from .domains import MAX_RANKS

if TYPE_CHECKING:
    from .kernels import *

__getattr__ = _names_from(
    globals(),
    {  # it imports the compiler
        ".kernels": "In InOut KernelArgument KernelCompileError Out Scalar barrier compile_kernel "
        "core_kernel domain_base domain_rank domain_size get notify peer put wait",
    },
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
