"""A copy of one folder of the cost model, in which a file and a line may be added while all else is the real thing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cost_models

HOME = Path(cost_models.__file__).parent


def copied(name: str, into: Path) -> Path:
    """The copy of the folder, in a package of the same name whose other files are links."""
    package = into / HOME.name
    package.mkdir()
    for one in HOME.iterdir():
        if one.name != name:
            (package / one.name).symlink_to(one)
    shutil.copytree(HOME / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    return package / name


def answer_with(folder: Path, code: str) -> Any:
    """The JSON that the code prints in a process of its own that imports the copy."""
    root = folder.parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(HOME.parent)])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
