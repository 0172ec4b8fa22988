"""What plans of all kinds share: the fields and duties of a trained plan, and the YAML of their files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from cost_models.base import Spec
from cost_models.documents import Document
from cost_models.errors import InputError, Problem
from cost_models.files.whole import write_whole
from cost_models.specs.cluster import GpuSpec

PLAN_SCHEMA = 1


class AnyPlan(Spec):
    """A question and its answer, everything needed to train with it; each family adds its own fields."""

    kind: str
    """The kind of plan file."""
    schema_version: int = PLAN_SCHEMA
    meshwright_version: str

    @property
    def model_name(self) -> str:
        """The name of the model."""
        raise NotImplementedError

    @property
    def num_ranks(self) -> int:
        """Processes that train with it: a GPU each."""
        raise NotImplementedError

    @property
    def gpu(self) -> GpuSpec:
        """The GPU (or CPU) that the plan is for; with several pools, the one whose limits hold for all."""
        raise NotImplementedError

    @property
    def searched(self) -> bool:
        """Whether a search found it, so that it claims to be the best."""
        raise NotImplementedError

    def require_readable(self) -> None:
        """Check that its restrictions can be read. Raises InputError."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """Broken rules on its own cluster, and parts without a place."""
        raise NotImplementedError


def plan_yaml(header: str, fields: Mapping[str, Any]) -> str:
    """The text of a plan file: comments, then the fields, ended by YAML's end-of-document mark."""
    return header + yaml.safe_dump(
        dict(fields), sort_keys=False, explicit_end=True, allow_unicode=True, width=120
    )


def write_plan(path: str | Path, text: str) -> None:
    """Write a plan file whole or not at all. Raises InputError where the place cannot be written to."""
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise InputError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from None


def require_ended(document: Document) -> None:
    """Raises InputError where the file of a plan lacks the mark of its end, as one that was cut short does."""
    if not document.ended:
        raise InputError(f"`{document.source}` is cut short: it does not end with `...`", hint="plan again")


def own_version() -> str:
    """Version of the installed package; a checkout that is only on the path has none."""
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "not installed"
