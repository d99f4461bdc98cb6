"""Names of log levels: V0 (most) to V9 (least) around INFO, and NUL, above all others.

`logging` knows the names once this module is imported, so that ``logger.setLevel("V3")`` works.

Rule     COMPAT-NAMES-2
"""

from __future__ import annotations

import logging

V0, V1, V2, V3, V4, V5, V6, V7, V8, V9 = range(logging.INFO - 5, logging.INFO + 5)
NUL = logging.CRITICAL + 10
"""Nothing is logged."""
LEVELS = {f"V{i}": V0 + i for i in range(10)} | {"NUL": NUL}


for _name, _level in LEVELS.items():
    logging.addLevelName(_level, _name)
logging.addLevelName(logging.INFO, "INFO")  # V5 is another name of it

__all__ = ["LEVELS", "NUL", *(f"V{i}" for i in range(10))]
