"""Render chapters as one HTML file with style, pictures and data inside; no script, nothing fetched from
elsewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files
from io import BytesIO
from typing import TYPE_CHECKING

from meshwright.pages.chapters import Chapter, Listing, Picture, paragraphs
from meshwright.plots.style import write
from meshwright.render.tables import Table
from meshwright.render.words import unbroken

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

_LARGEST_DRAWING = 150_000
"""Largest number of bytes of a picture as SVG; a larger picture becomes a PNG."""
_LARGEST_DATA = 60_000
"""Largest number of bytes of a picture's data in the page; for more, the page names the command that prints the
data."""
_PNG_DOTS_PER_INCH = 110.0
_PROLOG = re.compile(r"\A.*?(?=<svg)|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_NAMES_OF_GROUPS = re.compile(r'(<g) id="[^"]*"')
_SIZE = re.compile(r'(<svg[^>]*?) width="[^"]*"| height="[^"]*pt"')


def page(title: str, chapters: Sequence[Chapter], *, foot: str) -> str:
    """Render a complete HTML page of these chapters; everything that users named is escaped."""
    template = _environment().get_template("page.html.j2")
    style = (files("meshwright.pages") / "page.css").read_text(encoding="utf-8")
    return template.render(title=title, chapters=chapters, foot=foot, style=style)


def section(chapter: Chapter, *, largest_drawing: int = _LARGEST_DRAWING) -> str:
    """Render one chapter as an HTML element; a picture whose SVG exceeds `largest_drawing` bytes becomes a PNG."""
    return _environment(largest_drawing).get_template("chapter.html.j2").render(chapter=chapter)


def templates(package: str, *, escaped: bool = True) -> Environment:
    """Jinja environment for the templates of a package: values are escaped for HTML, undefined names are errors."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _environment(largest_drawing: int = _LARGEST_DRAWING) -> Environment:
    """Jinja environment for pages, with tests and filters for their blocks."""
    environment = templates("meshwright.pages")
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["picture"] = lambda block: isinstance(block, Picture)
    environment.tests["listing"] = lambda block: isinstance(block, Listing)
    environment.filters |= {
        "paragraphs": paragraphs,
        "image": partial(_image, largest=largest_drawing),
        "data": _data,
        "unbroken": unbroken,
    }
    return environment


def _image(picture: Picture, *, largest: int) -> str:
    """Picture as HTML: an SVG, or a PNG if the SVG exceeds `largest` bytes."""
    from markupsafe import Markup

    figure, title = picture.drawing.figure, picture.drawing.title
    svg = _svg(figure)
    if len(svg) <= largest:
        return Markup('<div role="img" aria-label="{}">{}</div>').format(title, Markup(svg))
    stream = BytesIO()
    write(figure, stream, "png", _PNG_DOTS_PER_INCH)
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(title, _base64(stream.getvalue()))


def _svg(figure: Figure) -> str:
    """Figure as an SVG element; matplotlib escapes its texts."""
    import matplotlib as mpl

    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "meshwright"}):
        write(figure, stream, "svg", _PNG_DOTS_PER_INCH)
    text = _PROLOG.sub("", stream.getvalue().decode())
    return _SIZE.sub(r"\1", _NAMES_OF_GROUPS.sub(r"\1", text))


def _data(picture: Picture) -> str | None:
    """Data of a picture as a `data:` URL of a CSV file; None if too large for a page."""
    frame = picture.drawing.frame
    if 2 * frame.size > _LARGEST_DATA:  # a cell has a letter and what parts it from the next
        return None
    written = frame.to_csv(index=False).encode()
    return None if len(written) > _LARGEST_DATA else f"data:text/csv;base64,{_base64(written)}"


def _base64(content: bytes) -> str:
    """Bytes as base64 text."""
    return base64.b64encode(content).decode()
