"""torchtitan's own ConfigManager: modules as JSON on stdin, what it read or why it refused as JSON on stdout.

    python benchmarks/exporters/read_torchtitan.py < cases.json

A case is {"text": .., "world": 16}. The mesh's own check (`ParallelDims`) and the model's (`update_from_config`)
follow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any


def read(folder: Path, number: int, case: dict[str, Any]) -> dict[str, Any]:
    """What the parser makes of one case."""
    from torch.distributed.pipelining.schedules import get_schedule_class
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims

    name = f"exported_{number}"
    (folder / f"{name}.py").write_text(case["text"], encoding="utf-8")
    try:
        config: Any = ConfigManager().parse_args(["--module", name, "--config", "plan"])
        config = dataclasses.replace(config)  # its own checks, which settings by attribute pass by
        dims = ParallelDims.from_config(config.parallelism, case["world"])
        get_schedule_class(config.parallelism.pipeline_parallel_schedule)
        config.model_spec.model.update_from_config(config=config)
        divisor = dims.tp if config.parallelism.enable_sequence_parallel else 1
        divisor *= 2 * dims.cp if dims.cp > 1 else 1
        if config.training.seq_len % divisor:  # as torchtitan/trainer.py checks with a process group
            raise ValueError(f"sequences must be divisible by {divisor}")
    except (AssertionError, ValueError, NotImplementedError, RuntimeError, SystemExit) as error:
        return {"refused": str(error) or type(error).__name__}
    values = {
        f"{part}.{field.name}": getattr(getattr(config, part), field.name)
        for part in ("parallelism", "training", "compile", "debug")
        for field in dataclasses.fields(getattr(config, part))
    }
    policy = config.activation_checkpoint
    values["activation_checkpoint"] = (
        None if policy is None else type(policy).__qualname__.removesuffix(".Config")
    )
    values["model"] = [config.model_spec.name, config.model_spec.flavor]
    inner = config.model_spec.model.layers[0].attention.inner_attention
    values["attention"] = type(inner).__qualname__.removesuffix("Attention.Config").lower()
    values["layers"] = len(config.model_spec.model.layers)
    return {"values": values}


def main() -> None:
    """Read all cases."""
    cases = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        logging.disable(logging.WARNING)
        answers = [read(Path(folder), number, case) for number, case in enumerate(cases)]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
