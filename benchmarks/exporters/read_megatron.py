"""Megatron-LM's own argument parser: cases as JSON on stdin, what it read or why it refused as JSON on stdout.

    python benchmarks/exporters/read_megatron.py CHECKOUT < cases.json

A case is {"arguments": [..], "world": 16}. Checks are Megatron's (`parse_args`, `validate_args`). What it asks of
the machine is stood in for: triton's kernels, Transformer Engine, `typing.override` of Python 3.12, and the compute
capability of a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import importlib.util
import json
import os
import sys
import typing
import warnings
from typing import Any


def load(checkout: str) -> Any:
    """The module `megatron.training.arguments`."""
    import torch
    import typing_extensions

    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    if importlib.util.find_spec("triton") is None:
        from unittest.mock import MagicMock

        for name in ("triton", "triton.language", "triton.runtime"):
            sys.modules[name] = MagicMock()
    sys.path.insert(0, checkout)
    import megatron.training.arguments as module

    parser = module.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    module.add_megatron_arguments = lambda another: parser  # built once: it takes most of a second
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.transformer.transformer_config as config

    rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb_thd = object()
    config.is_te_min_version = module.is_te_min_version = lambda version, check_equality=True: True
    module.get_device_arch_version = lambda: 9
    torch.cuda.get_device_capability = lambda *device: (9, 0)  # type: ignore[assignment]
    return module


def read(module: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What the parser makes of one case."""
    os.environ.update(case.get("environment", {}), WORLD_SIZE=str(case["world"]), RANK="0", LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *case["arguments"]]
    try:
        args = module.validate_args(module.parse_args())
        module.core_transformer_config_from_args(args)  # whose own checks follow
    except (AssertionError, ValueError, RuntimeError, SystemExit) as error:
        return {"refused": str(error) or type(error).__name__}
    return {"values": {name: _plain(value) for name, value in vars(args).items()}}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, enum.Enum):
        return value.name
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def main() -> None:
    """Read all cases."""
    cases = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        module = load(sys.argv[1])
        answers = [read(module, case) for case in cases]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
