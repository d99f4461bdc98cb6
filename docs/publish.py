"""Puts built pages into the folder of a site that has those of all versions.

python docs/publish.py docs/_build/html SITE VERSION
"""

import json
import re
import shutil
import sys
from pathlib import Path


def age(version):
    """Return what sorts versions, the newest first: releases by number, then what is no release."""
    numbers = [int(one) for one in re.findall(r"\d+", version)] if version[:1].isdigit() else []
    return [-one for one in numbers] or [1]


def publish(pages, site, version):
    """Add pages as those of a version; the site begins with the newest release."""
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(pages, site / version, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    versions = sorted((one.parent.name for one in site.glob("*/index.html")), key=age)
    (site / "versions.json").write_text(json.dumps(versions))
    (site / "index.html").write_text(
        f'<!doctype html><meta http-equiv="refresh" content="0; url={versions[0]}/index.html">\n'
    )
    (site / ".nojekyll").touch()


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
