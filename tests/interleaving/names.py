"""What the words of an engine are called."""

from simpler_ref.jit import layout as L

NOTES = 8
"""A journal is no larger here."""
DATA = 1 << 40
"""First of the words that stand for the contents of tensors."""

_HEADER = {field.at: field.name for field in L.HEADER.fields if field.at >= L.ORCH}
_WORKER = {field.at: field.name for field in L.WORKER.fields}
_JOURNAL = {field.at: field.name for field in L.JOURNAL.fields}
_SLOT = {field.at: field.name for field in L.SLOT.fields}


def name_of(mem, i):
    """Return what a word is called: ``PARK_ORCH``, ``worker 1 W_AT``, ``slot 2 S_STATE``."""
    i = int(i)
    if i >= DATA:
        return f"data {i - DATA}"
    if i < L.HEADER_WORDS:
        return _nearest(_HEADER, i) if i >= L.ORCH else f"geometry {i}"
    peek = mem.peek
    first, stride = peek(L.A_WORKERS), peek(L.WORKER_STRIDE)
    if first <= i < first + peek(L.WORKERS) * stride:
        worker, place = divmod(i - first, stride)
        frame, place = divmod(place, L.WORKER_WORDS)
        name = _nearest(_WORKER, place)
        if place == L.W_MAILBOX + L.MAIL_STATE:
            name = "MAIL_STATE"
        return f"worker {worker} " + (f"frame {frame} " if frame else "") + name
    if peek(L.A_SLOTS) <= i < peek(L.A_SPILL):
        slot, place = divmod(i - peek(L.A_SLOTS), L.SLOT_WORDS)
        return f"slot {slot} {_nearest(_SLOT, place)}"
    for journal in range(L.JOURNALS_OF_WORKERS + peek(L.WORKERS)):
        place = i - L.journal_offset(peek(L.A_JOURNALS), journal)
        if 0 <= place < L.JOURNAL_HEAD_WORDS + L.NOTE_WORDS * NOTES:
            what = f"note {(place - L.JOURNAL_HEAD_WORDS) // L.NOTE_WORDS}"
            name = _nearest(_JOURNAL, place) if place < L.JOURNAL_HEAD_WORDS else what
            return f"journal {journal} {name}"
    areas = {"wiring": L.A_WIRING, "map": L.A_MAP, "fifo": L.A_FIFO}
    before = [(peek(where), name) for name, where in areas.items() if peek(where) <= i]
    start, name = max(before)
    return f"{name} {i - start}"


def _nearest(names, i):
    start = max((value for value in names if value <= i), default=0)
    return names.get(start, "word") + (f" + {i - start}" if i != start else "")
