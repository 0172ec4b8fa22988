"""Meshwright: this model, this cluster: how should it be trained in parallel, how fast, and will it fit?

    import meshwright as mw

    answer = mw.plan("gpt3-175b", "dgx-a100-80gb", mw.TrainingSpec(global_batch=1536, sequence_length=2048), gpus=1024)
    answer.to_frame(), answer.explain(), answer.save("plan.yaml")

Names are imported when they are first used, so that importing the package costs little. The stub beside this file says
where each lives, to type checkers and here.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text("utf-8")
_HOME_OF = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \2$", _STUB, re.MULTILINE)}
"""Public name → the module that holds it."""

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name from the module that defines it, on first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module `meshwright` has no attribute `{name}`")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, sorted."""
    return sorted(__all__)
