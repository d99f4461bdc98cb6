"""Makes every rule and group of rules of spec/ a target, and every mention of its id a link to it.

A rule also gets a link to its tests and code. A mention of a rule or group that does not exist is a
warning, and so an error in `make docs`.
"""

import re

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms import SphinxTransform

from tests.spec_rules import read_groups, rule_files

WORDS = "|".join(sorted({name.split("-")[0] for name in read_groups()}))
RULE = re.compile(rf"((?:{WORDS})-[A-Z]+(?:-\d+)?)")
GROUP = re.compile(RULE.pattern + " — ")
NOT_LINKED = (nodes.literal, nodes.literal_block, nodes.reference, nodes.title, nodes.raw)


class RuleLinks(SphinxTransform):
    """Targets: paragraphs that begin with a bold id, and headings. Links: ids in running text."""

    default_priority = 400

    def apply(self, **_):
        """Mark the rules of this page and link its mentions of rules."""
        if self.env.docname in {f"spec/{path.stem}" for path in rule_files()}:
            self.mark_rules()
        for text in list(self.document.findall(nodes.Text)):
            if RULE.search(text) and not self.is_apart(text):
                parts = [self.link(part) for part in RULE.split(text) if part]
                text.parent.replace(text, parts)

    def mark_rules(self):
        """Make the rules and groups of a page targets, each rule with a link to what proves it."""
        for paragraph in list(self.document.findall(nodes.paragraph)):
            first = next((child for child in paragraph if child.astext()), None)
            if isinstance(first, nodes.strong) and RULE.fullmatch(first.astext()):
                paragraph["names"].append(first.astext().lower())
                paragraph["classes"].append("rule")
                self.document.note_explicit_target(paragraph)
                first["classes"].append("rule-id")
                where = f'<a class="rule-where" href="coverage.html#cov-{first.astext().lower()}">'
                paragraph += nodes.raw("", f" {where}tests, code</a>", format="html")
        for title in self.document.findall(nodes.title):
            if group := GROUP.match(title.astext()):
                title.parent["names"].append(group[1].lower())
                self.document.note_explicit_target(title.parent)

    def is_apart(self, node):
        """Say whether some text is the id of its own rule, code, a heading, or a link already."""
        while node.parent is not None:
            node = node.parent
            if isinstance(node, NOT_LINKED) or "rule-id" in node.get("classes", ()):
                return True
        return False

    def link(self, part):
        """Return a link for an id, plain text for anything else."""
        if not RULE.fullmatch(part):
            return nodes.Text(part)
        reference = pending_xref(
            "",
            nodes.inline("", part, classes=["rule-link"]),
            refdomain="std",
            reftype="ref",
            reftarget=part.lower(),
            refexplicit=True,
            refwarn=True,
            refdoc=self.env.docname,
        )
        reference.source, reference.line = self.document["source"], None
        return reference


def setup(app):
    """Register with Sphinx."""
    app.add_transform(RuleLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
