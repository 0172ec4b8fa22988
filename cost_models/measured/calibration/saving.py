"""Writing a hardware profile to a file."""

from __future__ import annotations

from pathlib import Path

import yaml

from cost_models.files.whole import write_whole
from cost_models.specs.hardware import HardwareProfile

_YAML_WIDTH = 100


def save_profile(profile: HardwareProfile, path: Path) -> None:
    """Write the profile as YAML that `load_profile` reads, whole or not at all. Raises OSError, which names `path`."""
    text = yaml.safe_dump(
        profile.model_dump(mode="json", exclude_none=True), sort_keys=False, width=_YAML_WIDTH
    )
    write_whole(path, text)
