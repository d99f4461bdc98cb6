"""A second thread that waits for what the first one cannot wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

END_S = 1.0
"""How long to wait for the end of the thread: it has nothing left to do."""


class WaitingThread:
    """A thread that sleeps in one place while another thread sleeps elsewhere, and wakes that one.

    It sleeps once for each time that it is armed, so it costs nothing while nobody waits.

    Parameters
    ----------
    watch
        Returns when there is something; called with what `arm` was given.
    ring
        Wakes the other thread; called after that.

    """

    def __init__(self, watch: Callable[..., object], ring: Callable[[], object]) -> None:
        self._watch, self._ring = watch, ring
        self._go = threading.Semaphore(0)
        self._what: tuple[Any, ...] = ()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._is_armed = self._is_ringing = False

    def arm(self, *what: Any) -> None:
        """Have it watch, unless it does already; only the thread that is woken calls this."""
        if self._is_armed:
            return
        self._is_armed, self._what = True, what
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="simpler_ref-lookout", daemon=True
            )
            self._thread.start()
        self._go.release()

    def has_rung(self) -> bool:
        """Say whether it has rung, or is about to, since the last time that this was asked."""
        rung, self._is_ringing = self._is_ringing, False
        return rung

    def _run(self) -> None:
        while True:
            self._go.acquire()
            if not self._is_over:
                self._watch(*self._what)
            if self._is_over:
                return
            self._is_ringing, self._is_armed = True, False
            self._ring()

    def end(self, wake: Callable[[], None]) -> None:
        """End it; `wake` has `watch` return."""
        self._is_over = True
        if self._thread is not None:
            self._go.release()
            wake()
            self._thread.join(END_S)
