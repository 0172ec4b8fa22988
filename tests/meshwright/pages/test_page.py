"""A page tells what the plan tells, escapes what users named, needs nothing from elsewhere, and fits a telephone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser

import pytest
from chromium import CHROMIUM, opened

import meshwright as mw
from cost_models.errors import InputError
from meshwright.pages.chapters import Block, Chapter, Fact, Listing
from meshwright.pages.html import page
from meshwright.render.tables import table
from meshwright.verbs.report import report

HOSTILE = "</pre><script>alert('x')</script>&\"<img src=x onerror=alert(1)>"
LARGEST = 1_000_000


@cache
def planned() -> mw.Planned:
    job = mw.TrainingSpec(global_batch=16, sequence_length=256, tokens=1e9)
    found = mw.plan("gpt2-tiny", "dgx-a100-80gb", job, gpus=2)
    assert isinstance(found, mw.Planned)
    return found


@cache
def told() -> mw.Reported:
    return report(planned())


class _Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def addresses(html: str) -> Iterator[str]:
    for _, attributes in _Elements(html).found:
        yield from (
            attributes[name] or "" for name in ("src", "href", "xlink:href", "data") if name in attributes
        )


def test_a_page_needs_no_script_and_no_other_file() -> None:
    elements = _Elements(told().html).found
    assert "script" not in {tag for tag, _ in elements}
    assert not [one for one in addresses(told().html) if not one.startswith(("#", "data:"))]
    assert not re.findall(r"url\((?!#)|@import", told().html)
    assert len(told().html.encode()) <= LARGEST


def test_names_of_users_are_text(tmp_path) -> None:
    plan = planned().plan
    named = plan.model_copy(update={"model": plan.model.model_copy(update={"name": HOSTILE})})
    html = report(named).html
    assert {tag for tag, _ in _Elements(html).found} == {tag for tag, _ in _Elements(told().html).found}
    assert "&lt;script&gt;" in html
    assert not [attrs for _, attrs in _Elements(html).found if "onerror" in attrs]


def test_blocks_become_what_they_are() -> None:
    rows = table(("a", "b"), [("x", "1")], words=("a",))
    facts = (Fact(name="step", value="1 s"),)
    blocks: list[Block] = ["Binds: memory.\n  one\n  two", facts, Listing(text="a: <b>"), rows]
    html = page("T", [Chapter(title="Of all", blocks=blocks)], foot="f")
    assert html.count("<li>") == 2
    assert "<dt>step</dt><dd>1\N{NO-BREAK SPACE}s</dd>" in html
    assert "a: &lt;b&gt;" in html
    assert re.search(r'<td class="left words">x</td>\s*<td>1</td>', html)


def test_findings_of_pictures_are_text_where_the_picture_is_cut() -> None:
    html = told().html
    findings = re.findall(r'<p class="finding" aria-hidden="true">(.*?)</p>', html)
    assert len(findings) == html.count("<figure>") >= 5
    assert all(findings)


def test_errors(tmp_path) -> None:
    (tmp_path / "no.json").write_text("{}")
    with pytest.raises(InputError, match="is no run report"):
        report(planned(), tmp_path / "no.json")
    with pytest.raises(InputError, match="no such file"):
        report(planned(), tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="--tokens"):
        report(planned(), tokens="many")
    plan = planned().plan
    nothing = plan.model_copy(update={"training": plan.training.model_copy(update={"tokens": None})})
    with pytest.raises(InputError, match="nobody says for how long"):
        report(nothing, price=2.5)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_page_in_a_browser(tmp_path) -> None:
    path = tmp_path / "plan.html"
    told().save(path)
    with opened(tmp_path / "profile") as page:
        for width in (390, 1000):
            page.resize(width, 800)
            page.open(path.as_uri())
            assert page.look("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
            assert page.look("document.querySelectorAll('section').length") == len(told().chapters)
        assert {one for one in page.asked if not one.startswith("data:")} == {path.as_uri()}
        assert not page.complaints
