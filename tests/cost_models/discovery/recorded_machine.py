"""A machine from a text: what its commands print (`$ ...`), fail to (`! ...`), its files (`@ path`), its environment.

The texts are written after public documentation of what the tools print on such machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_models.files.local import Machine

MACHINES = Path(__file__).parent / "machines"


class RecordedMachine(Machine):
    """Answers as the text has it; a command that the text lacks is not installed."""

    def __init__(self, text: str) -> None:
        self.unsaid: list[str] = []
        self.commands: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.failing: set[str] = set()
        for part in f"\n{text}".split("\n$ ")[0:1] + [f"$ {one}" for one in f"\n{text}".split("\n$ ")[1:]]:
            self._read_part(part)
        lines = self.files.pop("environment", "").splitlines()
        self.environment = dict(line.split("=", 1) for line in lines)

    def _read_part(self, part: str) -> None:
        """One command, with the files and failures behind it."""
        for at, piece in enumerate(part.split("\n@ ")):
            head, _, body = piece.partition("\n")
            if at:
                self.files[head] = body
            elif head.startswith("$ "):
                self.commands[head[2:]] = body
        for line in part.splitlines():
            if line.startswith("! "):
                self.failing.add(line[2:])

    def run(self, *command: str) -> str | None:
        said = self.commands.get(" ".join(command))
        if said is None:
            known = any(one.split()[0] == command[0] for one in self.commands)
            self.unsaid.append(
                f"`{' '.join(command[:2])}` failed" if known else f"`{command[0]}` is not installed"
            )
        return said

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> Sequence[str]:
        inside = (file[len(path) + 1 :] for file in self.files if file.startswith(f"{path}/"))
        return sorted({one.split("/")[0] for one in inside})


def recorded(name: str, *, without: str = "") -> RecordedMachine:
    """A machine of the folder; `without` is a command that it does not have."""
    machine = RecordedMachine((MACHINES / f"{name}.txt").read_text("utf-8"))
    for command in [one for one in machine.commands if without and one.startswith(without)]:
        del machine.commands[command]
    return machine
