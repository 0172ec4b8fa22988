"""The machine that is asked: its commands, files of its kernel, its environment; what is missing is said."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

_SECONDS = 20.0
"""Seconds that a command may take; a driver that initialises eight GPUs needs some."""
_MOST = 4 * 2**20
"""Bytes of a file that are read."""


class Machine(Protocol):
    """Whatever can be asked: this machine, or the record of another."""

    environment: Mapping[str, str]
    unsaid: list[str]
    """What could not be asked, and why, in words."""

    def run(self, *command: str) -> str | None:
        """What a command prints; None where it fails, which `unsaid` says."""

    def read(self, path: str) -> str | None:
        """A file's text; None where there is none."""

    def names(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted; none where there is no folder."""


class ThisMachine:
    """The machine the program runs on."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.unsaid: list[str] = []

    def run(self, *command: str) -> str | None:
        """No shell, an end after some seconds, and words in English."""
        told = f"`{' '.join(command[:2])}`"
        if shutil.which(command[0]) is None:
            self._miss(f"`{command[0]}` is not installed")
            return None
        try:
            said = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**self.environment, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            self._miss(f"{told} said nothing in {_SECONDS:.0f} s")
            return None
        except OSError as error:
            self._miss(f"{told} does not start: {(error.strerror or str(error)).lower()}")
            return None
        if said.returncode:
            why = (said.stdout + said.stderr).strip().partition("\n")[0]
            self._miss(f"{told} ended with {said.returncode}" + (f": {why}" if why else ""))
            return None
        return said.stdout

    def read(self, path: str) -> str | None:
        """The first megabytes of it."""
        try:
            with Path(path).open("rb") as file:
                return file.read(_MOST).decode("utf-8", errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> Sequence[str]:
        """As the kernel lists devices: a folder of links."""
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except OSError:
            return ()

    def _miss(self, what: str) -> None:
        if what not in self.unsaid:
            self.unsaid.append(what)
