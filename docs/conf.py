"""How Sphinx builds these pages; `make docs` runs it with every warning an error."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ["NUMBA_DISABLE_JIT"] = "1"  # a ring is drawn by what it does: no reason to compile
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from code_links import resolve as linkcode_resolve  # noqa: E402, F401

from simpler_ref import __version__  # noqa: E402

project = "simpler_ref"
author = "the simpler_ref developers"
version = release = __version__
copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "check_links",
    "code_links",
    "layouts",
    "mutants",
    "peers_page",
    "rule_coverage",
    "rule_links",
    "state_machine",
    "trace_example",
    "waiting_states",
    "words",
]
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"simpler_ref {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",  # what publish.py has put beside these pages
        *(
            f"sidebar/{part}.html"
            for part in ("search", "scroll-start", "navigation", "scroll-end")
        ),
    ]
}
pygments_dark_style = "github-dark"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Array": "numpy.ndarray"}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False


def without_kinds(_app, _what, _name, _thing, _options, signature, result):
    """Show the types of a message's fields, without what they are on the wire."""
    if signature:
        return re.sub(r"~?[\w.]*\bAnnotated\[([^,]+), <[^>]*>\]", r"\1", signature), result
    return None  # as it is


def setup(app):
    """Have signatures shown like that."""
    app.connect("autodoc-process-signature", without_kinds)
