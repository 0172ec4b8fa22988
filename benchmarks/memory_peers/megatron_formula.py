"""What Megatron-LM's own `theoretical_memory_usage.py` says, from a checkout of it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def bytes_of(checkout: Path, arguments: dict[str, Any], microbatches: int) -> tuple[float, float]:
    """Bytes of weights, gradients and optimizer, and of activations, of the fullest rank."""
    with contextlib.redirect_stdout(io.StringIO()):
        states, activations, _ = _module(checkout).report_theoretical_memory(
            SimpleNamespace(**arguments), num_microbatches=microbatches
        )
    return states * 2**20, activations * 2**20


def _module(checkout: Path) -> Any:
    """The file alone: of the package around it, which wants a GPU, it needs two helpers."""
    package = ModuleType("megatron_file")
    package.__path__ = []
    helpers = ModuleType("megatron_file.utils")
    helpers.is_hybrid_model = lambda arguments: False  # type: ignore[attr-defined]
    helpers.print_rank_0 = print  # type: ignore[attr-defined]
    sys.modules |= {"megatron_file": package, "megatron_file.utils": helpers}
    file = checkout / "megatron" / "training" / "theoretical_memory_usage.py"
    spec = importlib.util.spec_from_file_location("megatron_file.memory", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
