"""Copies of a folder or of some files, in which a file and a line may be added while all else is the real thing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cost_models

HOME = Path(cost_models.__file__).parent


def edited(into: Path, changes: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Copies of files, each with some pieces of text replaced, in packages whose other files are links."""
    for path, pairs in changes.items():
        text = (HOME.parent / path).read_text("utf-8")
        for old, new in pairs:
            assert text.count(old) == 1, f"{path} has no one place like {old!r}"
            text = text.replace(old, new)
        for folder in reversed(Path(path).parents[:-1]):
            if (into / folder).is_symlink() or not (into / folder).exists():
                (into / folder).unlink(missing_ok=True)
                (into / folder).mkdir()
                for one in (HOME.parent / folder).iterdir():
                    (into / folder / one.name).symlink_to(one)
        (into / path).unlink()
        (into / path).write_text(text, encoding="utf-8")


def answer_with(root: Path, code: str) -> Any:
    """The JSON that the code prints in a process of its own that imports the packages below a folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(HOME.parent)])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
