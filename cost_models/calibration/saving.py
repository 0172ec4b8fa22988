"""A profile → its YAML file, so that a calibration outlives the process that made it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import yaml

from cost_models.specs.hardware import HardwareProfile

_YAML_WIDTH = 100


def save_profile(profile: HardwareProfile, path: Path) -> None:
    """Write the profile as YAML that `load_profile` reads; an existing file is replaced in one step."""
    text = yaml.safe_dump(
        profile.model_dump(mode="json", exclude_none=True), sort_keys=False, width=_YAML_WIDTH
    )
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
    ) as temporary:
        temporary.write(text)
    os.replace(temporary.name, path)
