"""The files of the documents' diagnostics flags, made from the notes of a trace.

The package loads it, by its entry point, for a run whose configuration has a flag: `recorded` is around
the run, a `Probe` around each task in a worker, and `chip_recorded` around the run of a simulated chip.
"""

from .chip import chip_recorded
from .probe import Probe
from .recording import recorded

__all__ = ["Probe", "chip_recorded", "recorded"]
