"""Numbers: the protocol's version, its sizes, the limits of what a message may hold, what links count.

Rule     REMOTE-FRAME-1, REMOTE-FRAME-3
"""

from __future__ import annotations

PROTOCOL_VERSION = 1
MAGIC = b"SLR3"
FRAME_HEADER_BYTES = 40

MAX_FRAME_PAYLOAD_BYTES = 16 << 20
MAX_STRING_BYTES = 1024
MAX_ERROR_BYTES = 4096
MAX_TENSORS = 4096
MAX_SCALARS = 4096
MAX_INLINE_PAYLOAD_BYTES = 1 << 20
MAX_TRANSPORT_PROFILE_BYTES = 128
MAX_TRANSPORT_DESCRIPTOR_BYTES = 4096
MAX_CHIP_CALLABLE_DESCRIPTOR_BYTES = 4096
MAX_STAGED_BLOB_TOKEN_BYTES = 1024

MOST_INLINE = 1 << 16
"""Of a value that a session need not keep."""
MOST_INLINE_KEPT = 1 << 18
"""Of a tensor, or of a value, kept or not, that travels in the frame of a task."""
MOST_IN_FRAME = 4 << 20
"""Of all such bytes in one frame together."""

REMOTE_BUFFER_ACCESS_READ = 1
REMOTE_BUFFER_ACCESS_WRITE = 2
REMOTE_BUFFER_ACCESS_READ_WRITE = REMOTE_BUFFER_ACCESS_READ | REMOTE_BUFFER_ACCESS_WRITE

SIZES = {"values_size": 1 << 30}
"""Memory of an endpoint's Worker, unless told otherwise."""

COUNTERS = (
    *("session", "tasks", "frames_sent", "frames_received", "bytes_sent", "bytes_received"),
    *("health", "round_trip_ns", "clock_offset_ns", "pid"),
    "task_ns",
)
"""What a link counts; `task_ns` is how long a task lasts, once all is stored for it: a mean."""
SESSION, TASKS, FRAMES_SENT, FRAMES_RECEIVED, BYTES_SENT, BYTES_RECEIVED = range(6)
HEALTH, ROUND_TRIP, CLOCK_OFFSET, PID, TASK_NS = range(6, 11)
LATE_TASKS = 32
"""How many tasks that mean is of: the first ones may be slow."""
ANY_MODULE = "*"
