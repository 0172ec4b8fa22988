"""A page in headless Chromium: nothing is fetched, nothing is complained of, nothing is wider than a telephone."""

from __future__ import annotations

import pytest
from chromium import CHROMIUM, opened
from test_page import told


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
