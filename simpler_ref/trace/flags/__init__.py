"""The files of the documents' diagnostics flags, made from the notes of a trace."""

from .run import FlaggedRun
from .write import FILES, Circumstances, write_files

__all__ = ["FILES", "Circumstances", "FlaggedRun", "write_files"]
