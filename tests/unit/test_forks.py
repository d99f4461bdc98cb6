"""Looking at the libraries of a process, before it forks."""

from __future__ import annotations

import signal
import sys

import pytest

from simpler_ref.system import forks


def test_a_signal_while_the_loader_calls_a_function_of_ours_is_not_lost():
    def interrupt(frame, event, _arg):
        if event == "call" and frame.f_code.co_name == "look":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    before = forks._loaded()
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            forks._loaded()
    finally:
        sys.setprofile(None)
    assert forks._loaded() == before
