"""The command line: commands made of the options of verbs, and what frames them."""

from __future__ import annotations

from meshwright.cli.frame import main

__all__ = ["main"]
