"""Writes spec/vectors/*.json: `python -m tests.vectors`."""

from .author import FILES, text
from .reader import FOLDER

for name in FILES:
    (FOLDER / f"{name}.json").write_text(text(name))
