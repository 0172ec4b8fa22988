"""The command line: builds typer commands from the options of verbs, and completes words for the shell."""

from __future__ import annotations

from meshwright.cli.frame import main

__all__ = ["main"]
