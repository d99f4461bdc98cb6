"""Configurations of tasks: what of them is supported, and the numbers under which mailboxes get them.

Rule     FLAG-VALUE-1; FLOW-CONFIG-3; FLOW-CONFIG-5, FLOW-ENV-1, -3; ORCH-MISUSE-12
"""

from __future__ import annotations

import logging

from ..engine.memory import Engine
from ..jit import layout as L
from ..model.config import PMU_EVENTS, CallConfig

log = logging.getLogger("simpler_ref")
_told = False

_MOST = {"enable_dump_tensor": 3, "enable_dep_gen": 1, "enable_scope_stats": 1}
"""The highest values of flags that have some."""


def require_supported(config: CallConfig) -> None:
    """Refuse a configuration that is not valid, or has a flag with a value that means nothing.

    Raises
    ------
    TypeError
        It is none.
    ValueError
        It is, or has; see `CallConfig.validate`.
    """
    if not isinstance(config, CallConfig):
        raise TypeError(f"config must be a CallConfig or None, got {type(config).__name__}")
    config.validate()
    for name, most in _MOST.items():
        if getattr(config, name) > most:
            raise ValueError(f"CallConfig.{name} is {getattr(config, name)}; it can be 0 to {most}")
    if config.enable_pmu and config.enable_pmu not in PMU_EVENTS:
        known = ", ".join(f"{number} ({name})" for number, name in PMU_EVENTS.items())
        raise ValueError(f"CallConfig.enable_pmu is {config.enable_pmu}; it can be 0, {known}")


def config_wire(config: CallConfig) -> bytes:
    """Return a configuration as it travels, and the sizes after it, once it is found to be right.

    The first one with sizes warns of what the simulated chip cannot honour.
    """
    global _told
    require_supported(config)
    env = config._runtime_env
    if not env:
        return config.to_bytes()
    if not _told:
        _told = True
        log.warning(
            "%r: the simulated chip has no rings of these sizes; it only passes them to kernels",
            env,
        )
    return config.to_bytes() + env.to_bytes()


class Configs:
    """The configurations that an engine knows, by number; 0 is the one that says nothing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._numbers = {CallConfig().to_bytes(): 0}

    def number_of(self, config: CallConfig | None) -> int:
        """Return the number of a configuration; see `number_of_wire`."""
        return 0 if config is None else self.number_of_wire(config_wire(config))

    def number_of_wire(self, wire: bytes) -> int:
        """Return the number of a configuration as it travels; a new one is made known.

        Raises
        ------
        RuntimeError
            There are 4096.
        """
        number = self._numbers.get(wire)
        if number is None:
            number = len(self._numbers)
            if number >= L.MAX_CONFIGS:
                raise RuntimeError(
                    f"a run takes {L.MAX_CONFIGS} different CallConfigs; use fewer, or several runs"
                )
            self._engine.view.write_config(number, wire)
            self._numbers[wire] = number
        return number

    def forget_many(self) -> None:
        """Forget configurations between runs when many have gathered."""
        if len(self._numbers) > L.MAX_CONFIGS // 2:
            self._numbers = {CallConfig().to_bytes(): 0}
            self._engine.kernels.forget_configs(self._engine.mem)
