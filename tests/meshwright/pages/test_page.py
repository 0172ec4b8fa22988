"""A page tells what the plan tells, escapes what users named, and needs nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

import meshwright as mw
from cost_models.errors import InputError
from meshwright.pages.chapters import Block, Chapter, Fact, Listing
from meshwright.pages.html import page
from meshwright.render.tables import table
from meshwright.render.words import money
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


def test_chapters_tell_the_answer_its_reasons_and_its_end() -> None:
    said = told().html.replace("\N{NO-BREAK SPACE}", " ")
    assert told().chapters[0] == "The answer"
    assert {"Why this layout", "What would change it", "Memory", "One step", "When it ends"} <= set(
        told().chapters
    )
    assert planned().plan.layout.brief in said
    assert "Proved optimal" in said
    assert said.count('role="img"') + said.count("<img") >= 5
    assert f"layout: {planned().plan.layout}" in said  # the plan, to copy


def test_a_page_opens_with_the_end_and_the_money() -> None:
    page = report(planned(), tokens="20B", price="2.5/gpu-hour", start="2027-01-04")
    said = page.html.replace("\N{NO-BREAK SPACE}", " ").replace("\N{WORD JOINER}", "")
    told = page.record()["forecast"]
    dates, costs = told["dates"], told["costs"]
    ends = f"<dt>ends</dt><dd>on {dates['expected']}, 90 % interval {dates['p5']} to {dates['p95']}"
    assert said.index(ends) < said.index("<dt>costs</dt>") < said.index("<dt>train with</dt>")
    assert f"{money(costs['expected'])}, 90 % interval {money(costs['p5'])} to {money(costs['p95'])}" in said
    assert costs["expected"] == pytest.approx(2.5 * 2 * told["ends_seconds"]["expected"] / 3600)


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


def test_text_stands_out_from_its_ground() -> None:
    """WCAG AA: 4.5 between the luminance of letters and of what is behind them."""
    style = Path("meshwright/pages/page.css").read_text()
    letters = set(re.findall(r"(?<![-\w])color: (#[0-9a-f]{3,6})", style))
    grounds = set(re.findall(r"background: (#[0-9a-f]{3,6})", style))
    assert len(letters) >= 3
    assert len(grounds) == 2
    for one in letters:
        assert min((_luminance(ground) + 0.05) / (_luminance(one) + 0.05) for ground in grounds) >= 4.5, one


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


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
