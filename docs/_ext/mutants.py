"""Lists the faults of `tests.mutation.faults` and the tests that catch each: ``{mutants}``."""

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from tests.mutation.faults import FAULTS


def in_words(test):
    """Return a test's name as the sentence that it is, and its file."""
    file, name = test.split("::")
    return name.removeprefix("test_").replace("_", " "), file.removeprefix("tests/conformance/")


class Mutants(SphinxDirective):
    """``{mutants}``."""

    def run(self):
        """Return a definition list: fault, tests."""
        found = nodes.definition_list(classes=["mutants"])
        for fault in FAULTS:
            tests = nodes.bullet_list()
            for test in fault.caught_by:
                sentence, file = in_words(test)
                text = nodes.paragraph("", f"{sentence} ")
                text += nodes.literal("", file)
                tests += nodes.list_item("", text)
            found += nodes.definition_list_item(
                "", nodes.term("", fault.what), nodes.definition("", tests)
            )
        return [found]


def setup(app):
    """Register with Sphinx."""
    app.add_directive("mutants", Mutants)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
