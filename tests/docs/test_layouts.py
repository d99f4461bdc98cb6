"""The drawings of records and rings are those of the code, and refuse what does not fit."""

import re

import pytest

from simpler_ref.jit import layout as L

STORY = ["alloc a 2000", "alloc b 3000", "release b", "alloc c 2500", "release a", "alloc d 1500"]


@pytest.fixture
def layouts(extension):
    return extension("layouts")


SIZES = {
    "ContinuousTensor": L.TENSOR_WORDS * L.WORD,
    "CallConfig": L.CALL_CONFIG_SIZE,
    "ChipStorageTaskArgs": 6152,
    "mailbox": L.MAILBOX_SIZE,
    "frame": L.WORKER_WORDS * L.WORD,
    "slot": L.SLOT_WORDS * L.WORD,
    "ring": L.LINE * L.WORD,
}


def test_a_record_is_drawn_from_its_first_byte_to_its_last(layouts):
    for name, nbytes in SIZES.items():
        fields, _ = layouts.FIGURES[name]()
        assert [one.at for one in fields[1:]] == [one.at + one.size for one in fields[:-1]]
        assert (fields[0].at, fields[-1].at + fields[-1].size) == (0, nbytes)
        assert f'">{nbytes}</text>' in layouts.draw(name)


def test_every_part_of_a_record_has_its_box(layouts):
    fields, _ = layouts.FIGURES["ContinuousTensor"]()
    boxes = re.findall(r'<rect class="(field|gap)"', layouts.draw("ContinuousTensor"))
    assert [one.name for one in fields if one.name][:3] == ["data", "shapes", "ndims"]
    assert boxes.count("field") == 1 + 2 + 1 + 1 + 1  # shapes ends in the row of ndims
    assert boxes.count("gap") == 1
    drawing, names = layouts.draw("slot"), [field.name for field in L.SLOT.fields]
    assert len(names) > 10
    assert all(f">{name}" in drawing for name in names)


def test_what_does_not_fit_is_refused(layouts):
    with pytest.raises(Exception, match="overlaps"):
        layouts.fill([layouts.Field(0, 8, "one"), layouts.Field(4, 8, "other")], 16)
    with pytest.raises(Exception, match="cannot fill a 3"):
        layouts.draw_ring(8192, ["fill a 3"])


def test_areas_are_drawn_with_their_sizes_private_ones_apart(layouts):
    private, areas = layouts.areas(sub=2)
    total, geometry = L.plan(window=L.DEFAULT_TASK_WINDOW, rings=4, next_level=0, sub=2)
    assert private == geometry[L.PRIVATE]
    assert sum(count for _, count, _ in areas) == total
    assert layouts.draw_areas().count('class="own"') == sum(at >= private for at, _, _ in areas)
    assert {what for _, _, what in areas} == set(layouts.AREAS.values())


def test_a_ring_is_drawn_as_it_is_after_each_step(layouts):
    held = [[one.name for one in slabs] for _, slabs, _ in layouts.tell(8192, STORY)]
    assert held == [["a"], ["b", "a"], ["b", "a"], ["c", "b", "a"], ["c"], ["d", "c"]]
    *_, (_, slabs, released) = layouts.tell(8192, STORY)
    assert ([one.start for one in slabs], released) == ([0, 5120], {"a", "b"})
    assert layouts.draw_ring(8192, STORY).count('class="free"') == 2
