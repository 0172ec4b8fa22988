"""The command line: one file a verb parses its flags, asks `meshwright.api`, and prints the answer."""

from __future__ import annotations

from meshwright.cli.frame import main

__all__ = ["main"]
