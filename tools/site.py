"""The documentation as a site: `python tools/site.py FOLDER`, by Sphinx and MyST; any warning is an error.

The pages are the repository's own, in their own places, so that a link that works there works here; the reference is
written beside them, read from the program.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
INDEX = "docs/index"
PAGES = (
    "docs/**/*.md",
    "benchmarks/**/*.md",
    "notebooks/*.ipynb",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
)
SETTINGS = {
    "project": "Meshwright",
    "extensions": ["myst_parser"],
    "root_doc": INDEX,
    "html_theme": "alabaster",
    "html_show_copyright": False,
    "html_theme_options": {"description": "Parallelism planning with a proof", "page_width": "1100px"},
    "myst_heading_anchors": 4,
    "suppress_warnings": ["misc.highlighting_failure"],  # `...` in a sample of JSON
}
_LINK = re.compile(r"\]\(([^)\s#]+)")


def build(out: Path) -> None:
    """Write the site into a folder. Raises SystemExit with Sphinx's code where it has anything to complain of."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    from tools.reference import write_reference

    with TemporaryDirectory(prefix="meshwright-docs-") as folder:
        source = Path(folder)
        for file in _files():
            target = source / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.suffix == ".md":
                target.write_text(_leading_to_pages(file), "utf-8")
            else:
                shutil.copy(file, target)
        write_reference(source / "docs" / "reference")
        with patch_docutils(), docutils_namespace():
            site = Sphinx(
                source, None, out, source / ".doctrees", "html", SETTINGS, status=None, warningiserror=True,
                exception_on_warning=False,
            )  # fmt: skip
            site.build()
        if site.statuscode:
            sys.exit(site.statuscode)


def _files() -> Iterator[Path]:
    """The pages, and the files of the repository that they link to."""
    pages = [file for pattern in PAGES for file in ROOT.glob(pattern)]
    yield from pages
    for page in pages:
        for target in _LINK.findall(page.read_text("utf-8")) if page.suffix == ".md" else ():
            file = (page.parent / target).resolve()
            if file.is_file() and file.is_relative_to(ROOT):
                yield file


def _leading_to_pages(page: Path) -> str:
    """The page, in which a link to a folder leads to the index of all pages."""

    def replaced(link: re.Match[str]) -> str:
        if "://" in link[1] or not (page.parent / link[1]).is_dir():
            return link[0]
        return f"]({os.path.relpath(ROOT / INDEX, page.parent)}.md"

    return _LINK.sub(replaced, page.read_text("utf-8"))


if __name__ == "__main__":
    build(Path(sys.argv[1]))
