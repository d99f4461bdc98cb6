"""Looking at the libraries of a process."""

from __future__ import annotations

import signal
import sys

import pytest

from simpler_ref.system import thread_pools


def test_a_signal_while_the_loader_calls_a_function_of_ours_is_not_lost():
    def interrupt(frame, event, _arg):
        if event == "call" and frame.f_code.co_name == "look":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    before = thread_pools._loaded()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread_pools._loaded()
    finally:
        sys.setprofile(None)
    assert thread_pools._loaded() == before
