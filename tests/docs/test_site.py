"""The site builds without a warning, and its reference names every verb, field and public name there is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from effort import THOROUGH

import meshwright
from cost_models.files.catalog import KINDS
from meshwright.cli import VERBS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict[str, str]:
    """The pages of the reference, by name."""
    folder = tmp_path_factory.mktemp("reference")
    program = "from pathlib import Path; from tools.reference import write_reference"
    _python("-c", f"{program}; write_reference(Path({str(folder)!r}))")
    return {page.stem: page.read_text("utf-8") for page in folder.glob("*.md")}


def test_every_verb_has_its_flags(reference) -> None:
    page = reference["command-line"]
    for verb in VERBS:
        assert f"\n## {verb}\n" in page
    assert "| `--global-batch N` | Sequences per optimizer step" in page
    assert "| `--help" not in page


def test_every_field_of_every_file_is_told(reference) -> None:
    page = reference["files"]
    for kind, spec in KINDS.items():
        section = page.partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
        assert [name for name in spec.model_fields if f"| `{name}` | " not in section] == [], kind
    assert "\n## LinkSpec\n" in page
    assert "| `num_layers` | Number of transformer blocks, l. Required. |" in page
    assert "| `num_kv_heads` | " in page
    assert "`num_heads`. Required." not in page  # it is derived


def test_every_public_name_is_told(reference) -> None:
    page = reference["python"]
    assert [name for name in meshwright.__all__ if f"\n## mw.{name}\n" not in page] == []
    assert "object at 0x" not in page


@pytest.mark.skipif(not THOROUGH, reason="builds for half a minute")
@pytest.mark.skipif(
    find_spec("sphinx") is None or find_spec("myst_parser") is None, reason="Sphinx is not installed"
)
def test_the_site_builds_without_a_warning(tmp_path) -> None:
    told = _python("tools/site.py", str(tmp_path))
    assert told == ""
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.html")}
    assert {"docs/index.html", "docs/tutorial.html", "docs/reference/files.html", "README.html"} <= pages
    for page in ROOT.glob("docs/**/*.md"):
        assert page.relative_to(ROOT).with_suffix(".html").as_posix() in pages
    for page in pages:
        assert 'src="http' not in (tmp_path / page).read_text("utf-8"), page


def _python(*arguments: str) -> str:
    """What it says on stdout and stderr, which fails the test if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
