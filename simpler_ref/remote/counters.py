"""What links count, as words in shared memory."""

COUNTERS = (
    *("session", "tasks", "frames_sent", "frames_received", "bytes_sent", "bytes_received"),
    *("health", "round_trip_ns", "clock_offset_ns", "pid"),
    *("unmoved", "unmoved_ns"),
)
"""What a link counts; `unmoved` are tasks that found all tensors at the endpoint when they were sent."""
SESSION, TASKS, FRAMES_SENT, FRAMES_RECEIVED, BYTES_SENT, BYTES_RECEIVED = range(6)
HEALTH, ROUND_TRIP, CLOCK_OFFSET, PID, UNMOVED, UNMOVED_NS = range(6, 12)
