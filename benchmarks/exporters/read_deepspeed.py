"""DeepSpeed's own `DeepSpeedConfig`: files as JSON on stdin, what it read or why it refused as JSON on stdout.

    python benchmarks/exporters/read_deepspeed.py < cases.json

A case is {"text": .., "world": 16}. There is no process group: `DeepSpeedConfig` is told the data-parallel ranks that
are left of so many processes by the sizes that it was given itself.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import warnings
from typing import Any


class Ranks:
    """What DeepSpeed asks of a model-parallel unit."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_data_parallel_world_size(self) -> int:
        return self.size


def read(module: Any, case: dict[str, Any]) -> dict[str, Any]:
    """What the parser makes of one case."""
    said = json.loads(case["text"])
    others = said.get("tensor_parallel", {}).get("autotp_size", 1) * said.get("sequence_parallel_size", 1)
    others *= said.get("pipeline", {}).get("stages", 1)
    try:
        config = module.DeepSpeedConfig(said, mpu=Ranks(case["world"] // others))
    except (AssertionError, ValueError, module.DeepSpeedConfigError) as error:
        return {"refused": str(error) or type(error).__name__}
    zero, experts = config.zero_config, config.expert_parallel_config
    return {
        "values": {
            "train_batch_size": config.train_batch_size,
            "train_micro_batch_size_per_gpu": config.train_micro_batch_size_per_gpu,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "world_size": config.world_size,
            "zero_optimization.stage": int(zero.stage),
            "zero_optimization.overlap_comm": zero.overlap_comm,
            "zero_optimization.sub_group_size": zero.sub_group_size,
            "zero_optimization.reduce_bucket_size": zero.reduce_bucket_size,
            "zero_optimization.allgather_bucket_size": zero.allgather_bucket_size,
            **_device("offload_optimizer", zero.offload_optimizer),
            **_device("offload_param", zero.offload_param),
            "tensor_parallel.autotp_size": config.tensor_parallel_config.autotp_size,
            "sequence_parallel_size": config._param_dict.get("sequence_parallel_size", 1),
            "data_parallel_size": config._param_dict.get("data_parallel_size"),
            "expert_parallel.enabled": bool(experts and experts.enabled),
            "expert_parallel.autoep_size": experts.autoep_size if experts else 1,
            "expert_parallel.expert_tensor_parallel_size": experts.expert_tensor_parallel_size
            if experts
            else None,
            "pipeline.stages": config.pipeline["stages"],
            "pipeline.partition": config.pipeline["partition"],
            "pipeline.activation_checkpoint_interval": config.pipeline["activation_checkpoint_interval"],
            "activation_checkpointing.partition_activations": (
                config.activation_checkpointing_config.partition_activations
            ),
            "bf16.enabled": config.bfloat16_config.enabled,
            "bf16.bf16_master_weights_and_grads": config.bfloat16_config.bf16_master_weights_and_grads,
            "bf16.bf16_optimizer_states": config.bfloat16_config.bf16_optimizer_states,
            "fp16.enabled": config.float16_config.enabled,
            "data_types.grad_accum_dtype": config.grad_accum_dtype,
            "optimizer.type": _spelled(said, config.optimizer_name),
            "optimizer.params.lr": config.optimizer_params["lr"],
        }
    }


def _spelled(said: dict[str, Any], name: str) -> str:
    """The optimizer as the file spells it, where that is the one it was read as (without regard to case)."""
    spelled: str = said["optimizer"]["type"]
    return spelled if spelled.lower() == name.lower() else name


def _device(name: str, config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    return {f"zero_optimization.{name}.{key}": value for key, value in config.model_dump(mode="json").items()}


def main() -> None:
    """Read all cases."""
    cases = json.load(sys.stdin)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        import deepspeed.runtime.config as module

        logging.disable(logging.WARNING)
        module.dist.get_rank = lambda group=None: 0
        answers = [read(module, case) for case in cases]
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
