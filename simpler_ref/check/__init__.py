"""``python -m simpler_ref check FILE``: which step of a scheduler trace breaks which rule.

A trace says what happened to a scheduler, step by step, and the state of every task after each step; the
page "Vectors" describes it. `checker.py` reads the file, `model.py` takes the same steps by the rules,
and the former compares. Nothing here uses the rest of the package, whose traces are judged like any
other.

Rule     SEE-CHECK-1
"""

from .checker import Finding, TraceError, check

__all__ = ["Finding", "TraceError", "check"]
