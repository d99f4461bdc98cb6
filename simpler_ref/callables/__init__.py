"""Callables: the functions that tasks call."""
