"""The parts of a task."""
