"""Which memory of this process is shared with the processes it forks."""

from __future__ import annotations


def shared_mappings() -> list[tuple[int, int, str]]:
    """Return (start, end, identity) of this process's shared, writable mappings, sorted."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode, offset, device, inode, *_ = line.split(maxsplit=5)
            if mode[3] == "s" and mode[1] == "w":
                start, end = (int(part, 16) for part in span.split("-"))
                found.append((start, end, f"{device} {inode} {int(offset, 16) - start}"))
    return found


def covers(mappings: list[tuple[int, int, str]], address: int, nbytes: int) -> set[str] | None:
    """Return the identities of the mappings that contain bytes [address, address + n), or None.

    Rule     ORCH-MISUSE-2
    """
    identities = set()
    at = address
    for start, end, identity in mappings:
        if start <= at < end:
            identities.add(identity)
            at = end
            if at >= address + nbytes:
                return identities
    return None
