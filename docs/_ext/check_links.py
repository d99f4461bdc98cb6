"""Looks at the pages once they are built: every link within them leads to a page, and to a place on it.

Nothing is fetched; links to other sites are left alone. A link that leads nowhere is a warning, and so an
error in `make docs`.
"""

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

from sphinx.util import logging

HREF = re.compile(r"""<a [^>]*href=["']([^"'#?]*)(?:\?[^"'#]*)?(?:#([^"']*))?["']""")
ID = re.compile(r"""[< ](?:id|name)=["']([^"']+)["']""")
ELSEWHERE = re.compile(r"[a-z]+:|//")
log = logging.getLogger(__name__)


def broken_links(folder):
    """Return (page, link) of every link that leads nowhere."""
    pages = {path.relative_to(folder).as_posix(): path for path in Path(folder).rglob("*.html")}
    texts = {page: path.read_text() for page, path in pages.items()}
    places = {page: set(ID.findall(text)) for page, text in texts.items()}
    broken = set()
    for page, text in texts.items():
        for target, place in set(HREF.findall(text)):
            if ELSEWHERE.match(target):
                continue
            there = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(target)))
            there = there if target else page
            if there in places:
                found = place in ("", "top") or unquote(place) in places[there]
            else:
                found = not place and (Path(folder) / there).exists()
            if not found:
                broken.add((page, f"{target}#{place}" if place else target))
    return sorted(broken)


def check(app, error):
    """Complain about each of them."""
    if error is None and app.builder.name == "html":
        for page, link in broken_links(app.outdir):
            log.warning("%s: the link %s leads nowhere", page, link)


def setup(app):
    """Register with Sphinx."""
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
