"""Shows, for every rule, the tests that cite it and the code that names it.

The directive ``{rule-coverage}`` makes the table. Tests and code are read from their
files, and lead to the pages that `code_links` makes of the sources.
"""

from html import escape

from code_links import page_of
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from tests import spec_rules

HEAD = "<tr><th>rule</th><th>tests</th><th>code</th></tr>"


def link(path, line, text):
    """Return a link from the page of the table to a line of a file."""
    page = page_of(path.relative_to(spec_rules.ROOT).as_posix())
    return f'<a href="../{page}.html#line-{line}"><code>{escape(text)}</code></a>'


def all_of(summary, links):
    """Return links, folded away behind a few words."""
    items = "".join(f"<li>{one}</li>" for one in links)
    return f"<details><summary>{summary}</summary><ul>{items}</ul></details>"


class Coverage:
    """What is known of every rule."""

    def __init__(self):
        self.groups = spec_rules.read_groups()
        self.tests = {}
        for test in spec_rules.all_tests():
            for rule in dict.fromkeys(test.rules):
                self.tests.setdefault(rule, []).append(test)
        self.code = {}
        for place in spec_rules.read_code():
            for name in place.names:
                self.code.setdefault(name, []).append(place)

    def files(self):
        """Return every file that the table leads to."""
        places = [*self.tests.values(), *self.code.values()]
        return sorted({one.path for some in places for one in some})

    def row(self, rule, group):
        """Return the table's row of a rule."""
        page = group.path.with_suffix(".html").name
        name = f'<a href="{page}#{rule.id.lower()}">{rule.id}</a>'
        start = f'<tr id="cov-{rule.id.lower()}"><td>{name}</td>'
        tests = self.tests.get(rule.id, [])
        places = self.code.get(rule.id, [])
        cells = [
            all_of(len(tests), [link(one.path, one.line, one.name) for one in tests]),
            all_of(len(places), [link(one.path, one.line, code_name(one)) for one in places]),
        ]
        return f"{start}<td>{cells[0]}</td><td>{cells[1]}</td></tr>"


def code_name(place):
    """Return ``jit/ring.py alloc``."""
    path = place.path.relative_to(spec_rules.ROOT / "simpler_ref").as_posix()
    return path if place.name == path else f"{path} {place.name}"


class RuleCoverage(SphinxDirective):
    """``{rule-coverage}``."""

    def run(self):
        """Return a section for each file of rules, with a table for each group."""
        coverage = Coverage()
        for path in [*spec_rules.rule_files(), *coverage.files()]:
            self.env.note_dependency(str(path))
        sections = []
        for path in spec_rules.rule_files():
            title = path.read_text().splitlines()[0].removeprefix("# ")
            section = nodes.section(ids=[f"cov-{path.stem}"])
            section += nodes.title("", title)
            for group in coverage.groups.values():
                if group.path == path:
                    rows = "".join(coverage.row(rule, group) for rule in group.rules)
                    caption = f"<caption>{group.name} — {escape(group.title)}</caption>"
                    table = f'<table class="coverage">{caption}{HEAD}{rows}</table>'
                    section += nodes.raw("", table, format="html")
            sections.append(section)
        return sections


def setup(app):
    """Register with Sphinx."""
    app.add_directive("rule-coverage", RuleCoverage)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
