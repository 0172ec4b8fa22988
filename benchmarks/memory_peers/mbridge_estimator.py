"""What the memory estimator of ISEEKYAN's mbridge says, for arguments on stdin; run by a Python that has Megatron.

python benchmarks/memory_peers/mbridge_estimator.py CHECKOUT < arguments.json     needs `megatron-core` 0.13

Modules that it imports for training alone, and Transformer Engine, are stood in for by empty ones.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

_FOR_TRAINING = (
    "training",
    "training.arguments",
    "training.initialize",
    "training.utils",
    "training.yaml_arguments",
    "core.datasets",
    "core.datasets.blended_megatron_dataset_builder",
    "core.datasets.gpt_dataset",
    "core.datasets.utils",
)


class _Nested(type):
    """Of classes that have any class, each doing nothing, but no fields of Megatron's specs."""

    def __getattr__(cls, name: str) -> Any:
        if name in ("module", "params", "submodules"):
            raise AttributeError(name)
        return _nothing(name)


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Nested(name, (), {})


class _Empty(ModuleType):
    """A module in which every name is a class that does nothing."""

    __version__ = "2.2.0"

    def __getattr__(self, name: str) -> Any:
        return _nothing(name)


class _StandIn(MetaPathFinder, Loader):
    """Finds every module of Transformer Engine, from whose classes those derive that Megatron's specs name."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        ours = name.partition(".")[0] == "transformer_engine"
        return ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def loaded(checkout: Path) -> Any:
    """The estimator of the checkout."""
    sys.path.insert(0, str(checkout / "memory_estimator"))
    sys.meta_path.insert(0, _StandIn())
    sys.modules |= {f"megatron.{name}": MagicMock() for name in _FOR_TRAINING}
    import estimate_013

    return estimate_013


def bytes_of(estimator: Any, a: dict[str, Any]) -> list[tuple[float, float]]:
    """Bytes of weights, gradients and optimizer, and of activations, of each pipeline rank."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    common = {
        "num_layers": a["num_layers"],
        "hidden_size": a["hidden_size"],
        "ffn_hidden_size": a["ffn_hidden_size"],
        "num_attention_heads": a["num_attention_heads"],
        "gated_linear_unit": a["swiglu"],
        "normalization": "RMSNorm",  # the only norm that the estimator knows; a layer norm's biases are next to nothing
        "qk_layernorm": a["qk_layernorm"],
        "add_bias_linear": a["add_bias_linear"],
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "tensor_model_parallel_size": a["tensor_model_parallel_size"],
        "pipeline_model_parallel_size": a["pipeline_model_parallel_size"],
        "virtual_pipeline_model_parallel_size": a["virtual_pipeline_model_parallel_size"],
        "context_parallel_size": a["context_parallel_size"],
        "expert_model_parallel_size": a["expert_model_parallel_size"],
        "expert_tensor_parallel_size": a["expert_tensor_parallel_size"],
        "sequence_parallel": a["sequence_parallel"],
        "recompute_granularity": a["recompute_granularity"],
        "bf16": True,
    }
    common |= {"pipeline_dtype": _bf16()}
    if a["recompute_granularity"] == "full":
        common |= {"recompute_method": "uniform", "recompute_num_layers": 1}
    if a["num_experts"]:
        common |= {
            "num_moe_experts": a["num_experts"],
            "moe_router_topk": a["moe_router_topk"],
            "moe_ffn_hidden_size": a["moe_ffn_hidden_size"],
            "moe_shared_expert_intermediate_size": a["moe_shared_expert_intermediate_size"],
            "moe_layer_freq": a["moe_layer_freq"],
            "moe_grouped_gemm": True,
            "moe_token_dispatcher_type": "alltoall",
            "add_bias_linear": False,
        }
    if a["split"] and len(set(a["split"])) > 1:
        common |= {"num_layers_in_first_pipeline_stage": a["split"][0]}
        common |= {"num_layers_in_last_pipeline_stage": _last(a)}
    if a["multi_latent_attention"]:
        names = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
        config = MLATransformerConfig(**common, **{name: a[name] for name in names}, rope_type="rope")
    else:
        config = TransformerConfig(
            **common,
            kv_channels=a["kv_channels"],
            num_query_groups=a["num_query_groups"],
            add_qkv_bias=a["add_qkv_bias"],
        )
    with contextlib.redirect_stdout(io.StringIO()):
        _, reports = estimator.estimate_from_config(config, SimpleNamespace(**a))
    return [(one["weight_grad_optim_gb"] * 2**30, one["activation_gb"] * 2**30) for one in reports]


def _bf16() -> Any:
    import torch

    return torch.bfloat16


def _last(a: dict[str, Any]) -> int:
    """Layers of the last stage, such that Megatron can deal out the others evenly."""
    stages, layers, first = a["pipeline_model_parallel_size"], a["num_layers"], a["split"][0]
    return next(last for last in range(first, 0, -1) if (layers - first - last) % (stages - 2) == 0)


def main(checkout: str) -> None:
    estimator = loaded(Path(checkout))
    found: list[Any] = []
    for arguments in json.load(sys.stdin):
        try:
            found.append(bytes_of(estimator, arguments))
        except Exception as error:  # what it cannot do is a row, too
            found.append(f"{type(error).__name__}: {error}"[:200])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
