"""Writes `include/simpler_layout.h`, the structures of `jit/structures.py` for C.

python -m tests.layout_header
"""

from __future__ import annotations

from collections.abc import Iterator

from simpler_ref.jit.structures import STRUCTURES, Structure
from simpler_ref.native_chip.abi import INCLUDE_DIR

HEADER = INCLUDE_DIR / "simpler_layout.h"

_TOP = """\
/* The structures of the L2 ABI, where each member begins, and how large they are.
 *
 * Written by tests/layout_header.py from simpler_ref/jit/structures.py: change that, and run
 * python -m tests.layout_header. Everything is little-endian. The sizes and offsets are part
 * of the contract: the sizes are asserted below, the offsets by a test.
 *
 * Rule CHIP-LAYOUT-1, CHIP-LAYOUT-4
 */
#ifndef SIMPLER_LAYOUT_H
#define SIMPLER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SIMPLER_STATIC_ASSERT(what) static_assert(what, #what)
#else
#define SIMPLER_STATIC_ASSERT(what) _Static_assert(what, #what)
#endif
"""


def text() -> str:
    lengths = {m.macro: m.elements for one in STRUCTURES for m in one.members if m.macro}
    parts = [
        _TOP,
        "\n".join(f"#define {name} {count}" for name, count in lengths.items()) + "\n",
        *("\n".join(_definition(one)) + "\n" for one in STRUCTURES),
        *(f"SIMPLER_STATIC_ASSERT(sizeof({one.in_c}) == {one.size});" for one in STRUCTURES),
        "",
        "#endif\n",
    ]
    return "\n".join(parts)


def _definition(structure: Structure) -> Iterator[str]:
    yield f"/* {structure.meaning}, {structure.size} bytes. */"
    packed = "__attribute__((packed)) " if structure.packed else ""
    yield f"typedef struct {packed}{structure.in_c} {{"
    for member in structure.members:
        comment = f"/* {member.meaning} */" if member.meaning else ""
        yield f"    {member.declaration + ';':27} {comment}".rstrip()
    yield f"}} {structure.in_c};"


def offsets() -> Iterator[str]:
    """Yield assertions, for a test, of where each member begins."""
    for one in STRUCTURES:
        for name, at in one.offsets.items():
            yield f"SIMPLER_STATIC_ASSERT(offsetof({one.in_c}, {name}) == {at});"


if __name__ == "__main__":
    HEADER.write_text(text())
