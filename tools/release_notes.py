"""Release notes from the changelog: `python tools/release_notes.py [VERSION]`; without one, of what is unreleased."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
UNRELEASED = "Unreleased"


def release_notes(version: str, changelog: str) -> str:
    """The changelog's section of a version, under a heading of its own. Raises KeyError with the versions there are."""
    sections = {
        heading.split()[0]: (heading, body.strip())
        for heading, body in re.findall(
            r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
        )
    }
    if version not in sections:
        raise KeyError(f"no section `{version}` in the changelog; it has {', '.join(sections)}")
    heading, body = sections[version]
    return f"# Meshwright {heading}\n\n{body}\n"


if __name__ == "__main__":
    try:
        notes = release_notes((sys.argv[1:] or [UNRELEASED])[0], CHANGELOG.read_text("utf-8"))
    except KeyError as error:
        sys.exit(f"error: {error.args[0]}")
    sys.stdout.write(notes)
