"""The kind of worker that runs chip callables on one chip.

Rule     WM-CHIP-1, WM-CHIP-3, WM-CHIP-5, CHIP-MEM-6, WM-DOMAIN-1, WM-DOMAIN-2
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..callables.identity import TargetNamespace
from ..engine.view.mailbox import MailboxView, ReceivedArgs, env_beside
from ..jit import layout as L
from ..workers.kinds import WorkerKind
from .abi import ChipError
from .chip_worker import ChipWorker
from .domains import ChipDomains


class ChipChild(WorkerKind):
    """Runs chip callables on one chip."""

    label = "chip_worker"
    runs_foreign_code = False
    target_namespace = TargetNamespace.LOCAL_CHIP

    def __init__(self, device_id: int, runtime: str | None) -> None:
        self.device_id = device_id
        self.runtime = runtime
        self.suffix = f" device={device_id}"
        self._mailbox: MailboxView
        self._chip: ChipWorker
        self._domains: ChipDomains

    def start(self, mailbox: MailboxView) -> None:
        """Load the runtime and open the device."""
        self._mailbox = mailbox
        self._chip = ChipWorker(self.device_id, self.runtime)
        self._chip.init()
        self._domains = ChipDomains(self._chip)

    def stop(self) -> None:
        """Close the device."""
        if hasattr(self, "_chip"):
            self._chip.finalize()

    def install(self, target: Any) -> int:
        """Prepare a chip callable and return its slot on the chip."""
        return self._chip.prepare_free(target)

    def remove(self, installed: int) -> None:
        """Free a slot on the chip."""
        self._chip.unregister(installed)

    def leaf(self, installed: int) -> Callable[[ReceivedArgs], Any]:
        """Run a slot on the arguments in the mailbox, without decoding them here."""
        chip, mailbox = self._chip, self._mailbox
        run = chip.run
        frames = [(*mailbox.addresses(i), mailbox.box(i)) for i in range(mailbox.depth)]

        def leaf(received: ReceivedArgs) -> None:
            args, config, box = frames[mailbox.served if len(frames) > 1 else 0]
            chip.set_runtime_env(env_beside(box))
            try:
                run(installed, args, L.MAILBOX_ARGS_CAPACITY, config)
            except ChipError as error:
                raise self._domains.explain(received.scalar_words, error) from None
            mailbox.add_device_time(chip.device_wall_ns)

        return leaf

    def control(self, command: int, arg0: int, arg1: int, arg2: int) -> int:
        """Manage the memory of the device, its own and that of domains."""
        chip, domains = self._chip, self._domains
        actions: dict[int, Callable[[], int | None]] = {
            L.CTRL_MALLOC: lambda: chip.malloc(arg0),
            L.CTRL_FREE: lambda: chip.free(arg0),
            L.CTRL_COPY_TO: lambda: chip.copy_to(arg0, arg1, arg2),
            L.CTRL_COPY_FROM: lambda: chip.copy_from(arg0, arg1, arg2),
            L.CTRL_COMM_INIT: lambda: domains.join(arg0, arg1),
            L.CTRL_ALLOC_DOMAIN: lambda: domains.open(arg0, arg1, arg2),
            L.CTRL_RELEASE_DOMAIN: lambda: domains.close(arg0),
        }
        if command not in actions:
            return super().control(command, arg0, arg1, arg2)
        return actions[command]() or 0
