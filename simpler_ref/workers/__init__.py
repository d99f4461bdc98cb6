"""The processes and threads that run tasks, and their life."""
