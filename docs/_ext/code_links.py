"""Puts the sources beside the pages, and makes what a page says of them links.

In running text, the name of a file (`jit/graph.py`, `tests/conformance/orchestrator/test_ring.py`), of a
function in a module (`graph.wire`) and of what a class has (`Worker.run`) become links to the source with
that line in view. A file or function that does not exist is a warning, and so an error in `make docs`.
"""

import ast
import html
import re
from functools import cache
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "simpler_ref"
SHOWN = (
    "simpler_ref/**/*.py",
    "simpler_ref/native_chip/include/*.h",
    "simpler_ref/*/src/*.[ch]",
    "tests/**/*.py",
    "spec/vectors/*.json",
    "examples/*.py",
)
PLACES = (
    "",
    "simpler_ref/",
    "simpler_ref/native_chip/",
    "simpler_ref/native_chip/include/",
    "tests/conformance/",
    "tests/extras/",
)
FILE = re.compile(r"[\w/]+\.(py|[ch])")
MEMBER = re.compile(r"(?:simpler_ref\.)?((?:\w+\.)*\w+)\.(?!json$|md$)(\w+)")
log = logging.getLogger(__name__)


@cache
def files():
    """Return every source that is shown, by its path from the repository's root."""
    found = (path for pattern in SHOWN for path in sorted(ROOT.glob(pattern)))
    return {path.relative_to(ROOT).as_posix(): path for path in found}


@cache
def modules():
    """Return the file of each module by the names a page may use: ``graph``, ``jit.graph``."""
    by_name = {}
    for path in files():
        if path.startswith("simpler_ref/") and path.endswith(".py"):
            dotted = path[len("simpler_ref/") : -len(".py")].replace("/", ".")
            by_name.setdefault(dotted.rsplit(".", 1)[-1], []).append(path)
            by_name.setdefault(dotted, []).append(path)
    return {name: set(paths) for name, paths in by_name.items()}


@cache
def lines_of(path):
    """Return the line of every function, class and constant at the top of a file, or in a class."""
    found = {}
    for node in ast.parse(files()[path].read_text()).body:
        for name in names_of(node):
            found.setdefault(name, node.lineno)
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                for name in names_of(inner):
                    found.setdefault(f"{node.name}.{name}", inner.lineno)
    return found


@cache
def members():
    """Return the place of everything that our classes have: ``Worker.run``."""
    ours = [path for paths in modules().values() for path in paths]
    return {
        name: (path, line)
        for path in sorted(ours)
        for name, line in lines_of(path).items()
        if "." in name
    }


def names_of(node):
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    return [
        name.id
        for target in targets
        if target is not None
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    ]


def place_of(words):
    """Return (file, line or None) that some words on a page are about, or None.

    Raises
    ------
    LookupError
        They look like a file or a function of ours, and there is none of that name.
    """
    if FILE.fullmatch(words):
        for place in PLACES:
            if place + words in files():
                return place + words, None
        if "/" in words and not (ROOT / words).exists():
            raise LookupError(f"there is no file {words}")
        return None
    if words in members():
        return members()[words]
    if f"simpler_ref/{words.removeprefix('simpler_ref.').replace('.', '/')}/__init__.py" in files():
        return None  # a package
    member = MEMBER.fullmatch(words)
    if not member or member[1] not in modules():
        return None
    places = [(path, lines_of(path).get(member[2])) for path in modules()[member[1]]]
    known = [place for place in places if place[1] is not None]
    if not known:
        raise LookupError(f"there is no {member[2]} in {' or '.join(sorted(modules()[member[1]]))}")
    return known[0]


def page_of(path):
    """Return the name of the page that shows a source."""
    return f"code/{path}"


class CodeLinks(SphinxPostTransform):
    """Literals in running text that name a file or function of ours."""

    default_priority = 400

    def run(self, **_):
        """Turn them into links."""
        for literal in list(self.document.findall(nodes.literal)):
            if isinstance(literal.parent, nodes.reference | nodes.title):
                continue
            try:
                place = place_of(literal.astext())
            except LookupError as error:
                log.warning("%s", error, location=literal)
                continue
            if place is not None:
                path, line = place
                uri = self.app.builder.get_relative_uri(self.env.docname, page_of(path))
                uri += f"#line-{line}" if line else ""
                link = nodes.reference("", "", internal=True, refuri=uri)
                literal.replace_self(link)
                link += literal


def source_pages(app):
    """Yield a page for each source."""
    if app.builder.name != "html":
        return
    for path, file in files().items():
        lexer = get_lexer_for_filename(file.name)
        formatter = HtmlFormatter(cssclass="highlight source", linespans="line", wrapcode=True)
        body = highlight(file.read_text(), lexer, formatter)
        title = html.escape(path)
        context = {"title": path, "parents": [], "body": f"<h1>{title}</h1>\n{body}"}
        yield page_of(path), context, "page.html"


def resolve(domain, info):
    """Return where the source of a documented object is, for ``sphinx.ext.linkcode``."""
    if domain != "py" or not info["module"]:
        return None
    names = info["fullname"].split(".")
    module = info["module"].removeprefix("simpler_ref.")
    for path in modules().get(module, ()):
        line = lines_of(path).get(".".join(names[:2]))
        if line is not None:
            return f"{page_of(path)}.html#line-{line}"
    return None


def setup(app):
    """Register with Sphinx."""
    app.add_post_transform(CodeLinks)
    app.connect("html-collect-pages", source_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
