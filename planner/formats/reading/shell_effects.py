"""What commands of the shell's own do to names: taken where the text says it, forgotten where it does not."""

from __future__ import annotations

import re

from planner.formats.reading.shell_tests import Truth
from planner.formats.reading.shell_values import UNKNOWN, Values
from planner.formats.reading.shell_words import plain

CALLS = ("source", ".", "eval")
"""Commands that take names from elsewhere."""
SAYS = ("echo", "printf", "[", "[[", "test")
"""Commands whose words start nothing."""
_READS = ("read", "readarray", "mapfile", "getopts", "let")
"""Commands that give names values which no text says."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def take_effect(said: list[str], runs: Truth, values: Values) -> None:
    """Change what is known of names as a command does that runs, or may."""
    forgotten: list[str] = []
    if said[0] in CALLS:
        text = plain(" ".join(said))[:60]
        values.assumptions[f"nothing that the command needs from `{text}`"] = None
        if said[0] == "eval":
            forgotten = re.findall(r"([A-Za-z_]\w*)\+?=", " ".join(said), re.ASCII)
    elif said[0] in _READS or said[:2] == ["printf", "-v"]:
        forgotten = [name for word in said[1:] if word[:1] != "-" for name in _NAME.findall(word)]
    elif said[0] == "unset":
        for name in said[1:]:
            values.assign(name, [] if runs else UNKNOWN)
    for name in forgotten:
        values.assign(name, UNKNOWN)


def forget_counted(text: str, values: Values) -> None:
    """What `((N++))` changes is not followed."""
    if re.search(r"(?<![=!<>])=(?!=)|\+\+|--", text):
        for name in _NAME.findall(text):
            values.assign(name, UNKNOWN)
