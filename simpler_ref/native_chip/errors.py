"""Errors of chips."""

from __future__ import annotations

import enum


class ChipStatus(enum.IntEnum):
    """Error codes of the L2 ABI; `include/simpler_l2.h` describes each."""

    OK = 0
    STATE = 1
    SLOT = 2
    BLOB = 3
    LOAD = 4
    ARGS = 5
    CONFIG = 6
    MEMORY = 7
    ADDRESS = 8
    KERNEL = 9
    FAULT = 10
    ORCHESTRATION = 11
    SYSTEM = 12
    RECORDING = 13
    CLOSED = 64
    VIEW = 65


class ChipError(RuntimeError):
    """A chip, or its runtime, reported an error.

    Attributes
    ----------
    code : int
        A `ChipStatus`, or whatever another runtime returned; 0 if no runtime could be loaded.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        known = code in ChipStatus._value2member_map_
        self.code = ChipStatus(code) if known else code


class KernelCompileError(RuntimeError):
    """A kernel could not be compiled, or there is no compiler."""
