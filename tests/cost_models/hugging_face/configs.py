"""Configs of Hugging Face models by name, as they are published (`configs.yaml`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from cost_models.files.loading import LoadedModel, resolve_model

_PUBLISHED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
CONFIGS: dict[str, dict[str, Any]] = {name: one["config"] for name, one in _PUBLISHED.items()}
PARAMETERS: dict[str, int] = {
    name: one["parameters"] for name, one in _PUBLISHED.items() if "parameters" in one
}


def load(folder: Path, config: dict[str, Any]) -> LoadedModel:
    """The model that the config describes, from a file of its own."""
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return resolve_model(str(folder))
