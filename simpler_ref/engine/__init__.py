"""The memory that the kernels work on, and the Scheduler thread."""
