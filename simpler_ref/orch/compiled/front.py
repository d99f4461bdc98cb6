"""The Orchestrator's methods in compiled code, and the compiler that knows all of this."""

from __future__ import annotations

import numba
import numpy as np
from numba import types
from numba.extending import overload_method

from ...model.tensor import ContinuousTensor
from . import arguments as _arguments  # noqa: F401 (registers what TaskArgs can do)
from . import steps
from .kinds import (
    ArgsType,
    ConfigType,
    HandleType,
    OrchestratorType,
    ReceivedType,
    complaint,
    tensor_maker,
)
from .machine import part
from .tensors import (
    check_dtype,
    describe,
    dims_of,
    dtype_number,
    dtype_of,
    five,
    make_tensor,
    whole,
)

SUB, NEXT, SUB_GROUP, NEXT_GROUP = steps.SUBMITS


# ---------------------------------------------------------------- what submit is given
_block = part(lambda args: args.block)
_number = part(lambda config: config._number)
_nothing = part(lambda given: 0)
_listed = part(lambda workers, members: np.array(workers))
_any = part(lambda workers, members: np.full(members, -1))
NONE = (types.NoneType, types.Omitted)


def _block_of(args):
    """Return what gives the address of a task's arguments, 0 for none."""
    if isinstance(args, ReceivedType):
        raise complaint("these TaskArgs are those of a running task; build new ones")
    if not isinstance(args, (*NONE, ArgsType)) and args is not None:
        raise complaint(f"args must be a TaskArgs or None, got {args}")
    return _block if isinstance(args, ArgsType) else _nothing


def _number_of(config):
    """Return what gives the number of a configuration."""
    if not isinstance(config, (*NONE, ConfigType)) and config is not None:
        raise complaint(f"config must be a CallConfig or None, got {config}")
    return _number if isinstance(config, ConfigType) else _nothing


@part
def _blocks(args_list):
    """Return the addresses of the arguments of a group's members."""
    blocks = np.empty(len(args_list), np.int64)
    for i in range(len(args_list)):
        blocks[i] = args_list[i].block
    return blocks


def _require_members(args_list):
    if isinstance(args_list, ArgsType):
        raise complaint("args_list must be a list of TaskArgs, one for each member")
    inner = args_list.types if isinstance(args_list, types.BaseTuple) else [args_list.dtype]
    if not all(isinstance(one, ArgsType) for one in inner):
        raise complaint(f"args_list must hold TaskArgs, not {args_list}")


def _require_handle(what, handle):
    if not isinstance(handle, HandleType):
        raise complaint(
            f"{what} expects a CallableHandle returned by Worker.register, got {handle}; write handle "
            "= worker.register(function) outside of the orchestration function"
        )


# ---------------------------------------------------------------- submit
@overload_method(OrchestratorType, "submit_sub")
def _submit_sub(orch, handle, args=None):
    _require_handle("submit_sub", handle)
    block_of = _block_of(args)

    def impl(orch, handle, args=None):
        block = block_of(args)
        steps.submit_one(orch._call, SUB, handle._number, handle._sub, -1, 0, block)

    return impl


@overload_method(OrchestratorType, "submit_next_level")
def _submit_next_level(orch, handle, args=None, config=None, worker=-1):
    _require_handle("submit_next_level", handle)
    block_of, number_of = _block_of(args), _number_of(config)

    def impl(orch, handle, args=None, config=None, worker=-1):
        number, word, chosen = handle._number, handle._next_level, whole(worker)
        steps.submit_one(orch._call, NEXT, number, word, chosen, number_of(config), block_of(args))

    return impl


@overload_method(OrchestratorType, "submit_sub_group")
def _submit_sub_group(orch, handle, args_list):
    _require_handle("submit_sub_group", handle)
    _require_members(args_list)

    def impl(orch, handle, args_list):
        call, number, word, blocks = orch._call, handle._number, handle._sub, _blocks(args_list)
        steps.submit_group(call, SUB_GROUP, number, word, 0, blocks, _any(None, len(blocks)))

    return impl


@overload_method(OrchestratorType, "submit_next_level_group")
def _submit_next_level_group(orch, handle, args_list, config=None, workers=None):
    _require_handle("submit_next_level_group", handle)
    _require_members(args_list)
    number_of = _number_of(config)
    chosen = _any if workers is None or isinstance(workers, NONE) else _listed

    def impl(orch, handle, args_list, config=None, workers=None):
        number, word, blocks = handle._number, handle._next_level, _blocks(args_list)
        named, how = chosen(workers, len(blocks)), number_of(config)
        steps.submit_group(orch._call, NEXT_GROUP, number, word, how, blocks, named)

    return impl


# ---------------------------------------------------------------- alloc, scopes
@overload_method(OrchestratorType, "alloc")
def _alloc(orch, shape, dtype):
    ndim, kind = dims_of(shape), dtype_of(dtype)
    make = tensor_maker(ndim, kind)

    def impl(orch, shape, dtype):
        words = describe(0, five(shape), ndim, check_dtype(dtype_number(dtype)))
        return make(steps.alloc_buffer(orch._call, words))

    return impl


@overload_method(OrchestratorType, "scope_begin")
def _scope_begin(orch):
    def impl(orch):
        steps.begin_scope(orch._call)

    return impl


@overload_method(OrchestratorType, "scope_end")
def _scope_end(orch):
    return lambda orch: steps.end_scope(orch._call)


@overload_method(OrchestratorType, "_enter_scope")
def _enter_scope(orch):
    return lambda orch: steps.begin_scope(orch._call)


@overload_method(OrchestratorType, "_leave_scope")
def _leave_scope(orch, depth):
    return lambda orch, depth: steps.leave_scope(orch._call, depth)


@overload_method(OrchestratorType, "_unwind_scope")
def _unwind_scope(orch, depth):
    """End the scope of a with block that an exception has left, unless none was (depth 0)."""

    def impl(orch, depth):
        if depth > 0:
            steps.unwind_to(orch._call, depth)

    return impl


@overload_method(OrchestratorType, "live_tasks")
def _live_tasks(orch):
    return lambda orch: steps.live_tasks(orch._call)


# ---------------------------------------------------------------- the compiler
REPLACED = {ContinuousTensor.make: make_tensor}
"""What represents, in compiled code, something that it does not know."""


def compiler(function):
    """Return numba's dispatcher for an orchestration function, rewritten."""
    return numba.njit(nogil=True, boundscheck=True)(function)
