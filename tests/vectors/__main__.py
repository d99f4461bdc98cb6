"""Writes spec/vectors/*.json: `python -m tests.vectors`."""

from .author import text
from .reader import FILES, FOLDER

for name in FILES:
    (FOLDER / f"{name}.json").write_text(text(name))
