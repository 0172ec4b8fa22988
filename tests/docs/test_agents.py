"""The page for coding agents is short, and what it names exists; `test_console_blocks.py` runs its commands."""

from __future__ import annotations

import re

from console_blocks import ROOT

from cost_models.axes.layout import parse_layout

TEXT = (ROOT / "AGENTS.md").read_text("utf-8")


def test_it_is_one_page() -> None:
    assert len(TEXT.split()) <= 400


def test_paths_and_targets_exist() -> None:
    paths = re.findall(r"(?<![\w/-])(?:[a-z_]+/[\w/.-]*|[A-Z]+\.md)", TEXT)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert [
        name for name in re.findall(r"^make (\w+)", TEXT, re.MULTILINE) if f"\n{name}:" not in makefile
    ] == []


def test_layouts_are_layouts() -> None:
    layouts = re.findall(r'[`"]((?:tp|pp|dp)\d[^`"\n]*)[`"]', TEXT)
    assert len(layouts) == 3
    assert [parse_layout(layout).tp for layout in layouts] == [4, 2, 8]
