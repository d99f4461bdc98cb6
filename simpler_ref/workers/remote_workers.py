"""What a Worker has of workers on other machines, as everything below `remote` asks about them."""

from __future__ import annotations

from typing import Any


class RemoteWorkers:
    """A Worker's workers on other machines: none. `remote.endpoints` has what there is if there are some.

    Attributes
    ----------
    sub_workers : int
        How many of them run calls.
    take_functions : bool
        Whether functions are registered for those unless said otherwise.
    have_tensors : bool
        Whether they may have made what the program's memory will have only at the end of a run.
    are_there : bool
        Whether there are, or may be, any.
    """

    sub_workers: int = 0
    take_functions = False
    have_tensors = False
    are_there = False

    def reserve(self) -> None:
        """Keep places for those that join later; before the engine is made."""

    def prepare(self, zeros: Any) -> None:
        """Take shared memory, before there are processes."""

    def close(self) -> None:
        """Give back what is held for them."""

    def forget_lost(self, address: int, nbytes: int) -> None:
        """Forget what was lost in memory that is given out anew, or is right as it is."""

    def movers(self) -> dict[str, int]:
        """Return which of them is meant by what traces name a mover by."""
        return {}

    def require_not_there(self, handle: Any) -> None:
        """Refuse a callable for workers of this machine that is one of theirs."""

    def make_stream(self, session: Any, register: Any, add_callable: Any) -> Any:
        """Return the stream of the calls that they run."""
        raise AssertionError("they run no calls")

    def why_no_calls(self, level: int) -> str:
        """Return why nobody runs calls, and the remedy."""
        return (
            f"this Worker of level {level} has no workers for Python tasks: give num_sub_workers, as in "
            f"Worker(num_sub_workers={level})"
        )
