"""Shows what is declared of memory in `simpler_ref.jit`.

``{words} slot`` makes the ownership tables of a record: its sections become headings, their fields rows.
``{structures}`` makes a table of the structures that are more than words.
"""

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from simpler_ref.jit import layout as L
from simpler_ref.jit.structures import STRUCTURES

HEAD = ("word", "at", "written by", "read by", "ordering", "purpose")


def heading(section):
    """Return the heading of a section: its first word, and what the section has."""
    first, *_ = section.fields
    if not section.begins_a_line:
        return section.title
    lines = {line for field in section.fields for line in field.lines}
    start = f"Line `{first.name}`" if len(lines) == 1 else f"Lines from `{first.name}`"
    return f"{start}: {section.title}"


def table(section):
    """Return the fields of a section as a Markdown table."""
    rows = [
        (
            f"`{one.name}`",
            f"{one.at}" if one.words == 1 else f"{one.at}, {one.words} words",
            one.written_by,
            one.read_by,
            one.ordering,
            one.meaning,
        )
        for one in section.fields
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ["---"] * len(HEAD), *rows))


def structures():
    """Return the structures as a Markdown table."""
    rows = ["| structure | bytes | members |", "| --- | ---: | --- |"]
    for one in STRUCTURES:
        members = ", ".join(f"`{member.declaration}`" for member in one.members)
        rows.append(f"| `{one.in_c}` | {one.size} | {members} |")
    return "\n".join(rows)


class Words(SphinxDirective):
    """``{words} record``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        """Return a section for each of the record, or a table alone if it has but one."""
        name = self.arguments[0]
        if name not in L.RECORDS:
            raise ExtensionError(f"no record {name}; there are {', '.join(L.RECORDS)}")
        sections = L.RECORDS[name].sections
        if not sections[0].title:
            return self.parse_text_to_nodes(table(sections[0]))
        return [self.section(one) for one in sections]

    def section(self, section):
        """Return heading, note and table."""
        title = heading(section)
        made = nodes.section(names=[nodes.fully_normalize_name(title.replace("`", ""))])
        text, messages = self.parse_inline(title, lineno=self.lineno)
        made += [nodes.title(title, "", *text), *messages]
        made += self.parse_text_to_nodes(f"{section.note}\n\n{table(section)}")
        self.state.document.note_implicit_target(made, made)
        return made


class Structures(SphinxDirective):
    """``{structures}``."""

    def run(self):
        """Return the table."""
        return self.parse_text_to_nodes(structures())


def setup(app):
    """Register with Sphinx."""
    app.add_directive("structures", Structures)
    app.add_directive("words", Words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
