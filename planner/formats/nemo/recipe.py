"""NeMo's Megatron Bridge: a plan as a recipe, a module whose `plan()` is a `ConfigContainer`.

It starts from Bridge's recipe without a model of its own (`vanilla_gpt_pretrain_config`) and sets what Megatron Core
calls so (`megatron_core`), in the part of the container that has it. Sources: NVIDIA-NeMo/Megatron-Bridge 0.6, August
2026: src/megatron/bridge/training/config.py, training/comm_overlap.py, training/mixed_precision.py,
models/gpt_provider.py, models/mla_provider.py, recipes/gpt/h100/vanilla_gpt.py.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from planner.formats import python_text as py
from planner.formats.launching import torchrun_by_hand
from planner.formats.megatron.layout import core_words
from planner.formats.target import Target
from planner.formats.words import NOTHING, Asked, Settings, Word, lacks, otherwise

_BRIDGE = "megatron.bridge"
_PARTS = {
    "train": ("micro_batch_size", "global_batch_size", "train_samples"),
    "ddp": ("num_distributed_optimizer_instances", "overlap_grad_reduce", "overlap_param_gather"),
    "dist": ("use_tp_pp_dp_mapping",),
    "optimizer": (
        "optimizer",
        "optimizer_cpu_offload",
        "optimizer_offload_fraction",
        "overlap_cpu_optimizer_d2h_h2d",
        "use_precision_aware_optimizer",
    ),
}
"""Part of the container → settings that it has; all others are the model's."""
_PART_OF = {setting: part for part, settings in _PARTS.items() for setting in settings}
_RENAMED = {
    "num_experts": "num_moe_experts",
    "use_rope_scaling": "rope_scaling",
    "rotary_seq_len_interpolation_factor": "seq_len_interpolation_factor",
    "bias_gelu_fusion": "bias_activation_fusion",
    "bias_swiglu_fusion": "bias_activation_fusion",
}
_SAID_ELSEWHERE = frozenset(
    {
        "group_query_attention",  # by the number of groups
        "num_layers_per_virtual_pipeline_stage",  # by the number of chunks
        "multi_latent_attention",  # by the provider of the model
        *("bf16", "fp16", "fp8", "fp4"),  # by the mixed precision
    }
)
_MIXES = {"fp8": "bf16_with_fp8_delayed_scaling_mixed", "fp4": "bf16_with_nvfp4_mixed"}
_MIXES_IN_16_BITS = {"bf16": "bf16_mixed", "fp16": "fp16_mixed"}

Imports = defaultdict[str, list[str]]
Lines = Iterator[tuple[str, Any]]


def _lines(asked: Asked, settings: Settings, imports: Imports) -> Lines:
    """Paths in the container with their values, in order."""
    if settings.get("multi_latent_attention"):
        imports[f"{_BRIDGE}.models.mla_provider"].append("MLAModelProvider")
        yield "model", py.call("MLAModelProvider")
    yield from _precision(settings, imports)
    if asked.layout.vpp > 1:
        yield "model.virtual_pipeline_model_parallel_size", asked.layout.vpp
    for name, value in settings.items():
        if name not in _SAID_ELSEWHERE:
            yield from _said(name, value, imports)


def _precision(settings: Settings, imports: Imports) -> Lines:
    mixes = [mix for name, mix in {**_MIXES, **_MIXES_IN_16_BITS}.items() if settings.get(name)]
    if not mixes:
        yield "mixed_precision", None
        return
    imports[f"{_BRIDGE}.training.mixed_precision"].append(mixes[0])
    yield "mixed_precision", py.call(mixes[0])


def _said(name: str, value: Any, imports: Imports) -> Lines:
    """Where the container has one setting of Megatron Core."""
    match name:
        case "seq_length":
            yield from ((f"{part}.seq_length", value) for part in ("model", "dataset"))
        case "vocab_size":
            yield from ((f"{part}.vocab_size", value) for part in ("model", "tokenizer"))
        case "make_vocab_size_divisible_by":
            yield "model.should_pad_vocab", True
            yield "model.make_vocab_size_divisible_by", value
        case "use_distributed_optimizer":
            yield from ((f"{part}.use_distributed_optimizer", value) for part in ("ddp", "optimizer"))
        case "accumulate_allreduce_grads_in_fp32" | "grad_reduce_in_bf16":
            wide = name == "accumulate_allreduce_grads_in_fp32"
            yield from ((f"{part}.grad_reduce_in_fp32", wide) for part in ("mixed_precision", "ddp"))
        case "exp_avg_dtype" | "exp_avg_sq_dtype":
            imports["torch"].append("bfloat16")
            yield f"optimizer.{name}", py.name("bfloat16")
        case "swiglu" | "squared_relu":
            yield from _activation(name, imports)
        case "untie_embeddings_and_output_weights":
            yield "model.share_embeddings_and_output_weights", False
        case "attention_backend":
            imports["megatron.core.transformer.enums"].append("AttnBackend")
            yield "model.attention_backend", py.name(f"AttnBackend.{value}")
        case "cp_comm_type":
            yield "model.cp_comm_type", value[0]
        case "tp_comm_overlap":
            imports[f"{_BRIDGE}.training.comm_overlap"].append("CommOverlapConfig")
            yield "comm_overlap", py.call("CommOverlapConfig", tp_comm_overlap=True)
        case "train_samples":
            yield "train.train_iters", None
            yield "train.train_samples", value
        case _:
            yield f"{_PART_OF.get(name, 'model')}.{_RENAMED.get(name, name)}", value


def _activation(name: str, imports: Imports) -> Lines:
    if name == "squared_relu":
        imports["megatron.core.activations"].append("squared_relu")
        yield "model.activation_func", py.name("squared_relu")
        return
    imports["torch.nn.functional"].append("silu")
    yield "model.gated_linear_unit", True
    yield "model.activation_func", py.name("silu")


def _text(asked: Asked, settings: Settings, name: str) -> str:
    imports: Imports = defaultdict(list)
    imports[f"{_BRIDGE}.recipes.gpt"].append("vanilla_gpt_pretrain_config")
    imports[f"{_BRIDGE}.training.gpt_step"].append("forward_step")
    imports[f"{_BRIDGE}.training.pretrain"].append("pretrain")
    body: list[ast.stmt] = [py.assign("config", py.call("vanilla_gpt_pretrain_config"))]
    body += [py.assign(f"config.{path}", value) for path, value in _lines(asked, settings, imports)]
    body.append(py.returned("config"))
    about = f"{name} for NeMo's Megatron Bridge, as `meshwright export --to nemo` wrote it."
    started = py.when_started(py.call("pretrain", py.call("plan"), py.name("forward_step")))
    return py.module(about, imports, "plan", body, [started])


def _usage(asked: Asked, name: str) -> tuple[str, ...]:
    return (
        "data (here mock), tokenizer, learning rate and checkpoints are yours: change `config` at its end",
        f"run it as recipe.py: {torchrun_by_hand(asked)} recipe.py",
    )


def _positions(asked: Asked) -> Word:
    length, longest = asked.training.sequence_length, asked.model.max_positions
    if asked.model.positions != "learned" or length == longest:
        return NOTHING
    return otherwise(f"its table of positions is as long as a sequence, {length:,}")


def _kind_of_positions(asked: Asked) -> Word:
    words = core_words(own_attention="cudnn")
    plain = asked.model.positions in ("learned", "rotary")
    return words["model.positions"](asked) if plain else lacks("it has learned and rotary positions")


TARGET = Target(
    name="nemo",
    called="NeMo (Megatron Bridge 0.6)",
    stack="nemo",
    words=core_words(own_attention="cudnn")
    | {"model.max_positions": _positions, "model.positions": _kind_of_positions},
    text=_text,
    usage=_usage,
)
