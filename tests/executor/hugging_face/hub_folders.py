"""Small folders as Hugging Face's hub has them, and jobs of worker processes that read and write such."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cost_models.files.loading import resolve_model
from cost_models.specs.transformer import TransformerSpec
from planner.plan import Plan, make_plan

_LLAMA: dict[str, Any] = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
_LLAMA |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 256}
_LLAMA |= {"max_position_embeddings": 64}
_BERT = {
    name: _LLAMA[name]
    for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
} | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "dropout_rate": 0.0}
_T5 |= {"num_heads": 4, "vocab_size": 256}
_STATES = {"n_groups": 2, "conv_kernel": 3, "chunk_size": 8, "mamba_num_heads": 8, "mamba_head_dim": 8}
_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENTS = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
_LATENTS |= {"v_head_dim": 8}
_LATENT_EXPERTS = _LLAMA | _EXPERTS | _LATENTS | {"num_key_value_heads": 4, "first_k_dense_replace": 1}
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
_DELTA |= {"linear_value_head_dim": 8}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 255}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA | {"tie_word_embeddings": False, "rope_theta": 5e5},
    "qwen2": _LLAMA | {"tie_word_embeddings": True},
    "qwen3": _LLAMA | {"head_dim": 16},
    "mistral": _LLAMA | {"sliding_window": 8},
    "phi3": _LLAMA | {"pad_token_id": 0},
    "cohere": _LLAMA | {"rope_theta": 1e4},
    "gemma": _LLAMA | {"head_dim": 8},
    "nemotron": _LLAMA,
    "gpt2": _GPT,
    "gpt_neox": _LLAMA | {"rotary_pct": 0.5, "num_key_value_heads": 4},
    "mixtral": _LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "bert": _BERT | {"max_position_embeddings": 64},
    "roberta": _BERT | {"max_position_embeddings": 66, "pad_token_id": 1, "type_vocab_size": 1},
    "t5": _T5 | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
    "mt5": _T5 | {"feed_forward_proj": "gated-gelu"},
    "deepseek_v3": _LATENT_EXPERTS | {"n_group": 2, "topk_group": 1},
    "nemotron_h": _LLAMA
    | _STATES
    | _EXPERTS
    | {
        "head_dim": 8,
        "layers_block_type": ["mamba", "moe", "attention", "mamba", "mlp"],
        "ssm_state_size": 16,
        "moe_shared_expert_intermediate_size": 24,
    },
    "granitemoehybrid": _LLAMA
    | {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 24,
        "shared_intermediate_size": 48,
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_state": 16,
        "position_embedding_type": "nope",
        "residual_multiplier": 0.5,
    },
    "kimi_linear": _LATENT_EXPERTS
    | {
        "num_hidden_layers": 4,
        "q_lora_rank": None,
        "num_local_experts": 4,
        "n_shared_experts": 1,
        "pad_token_id": 0,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
    },
    "qwen3_next": _LLAMA
    | _DELTA
    | {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
}
"""Rows as they are, tied, with norms of heads, joined, of neighbours, turned over, grouped, by expert; encoders, a
router's bias, recurrences."""
LLAVA: dict[str, Any] = {
    "text_config": _LLAMA | {"model_type": "llama"},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 24,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 4,
        "projection_dim": 16,
    },
    "image_token_index": 255,
    "image_seq_length": 4,
}
"""Features are the tower's last block's but one."""
ENCODERS, STACKS = ("bert", "roberta"), ("t5", "mt5")


def make_folder(
    folder: Path, model_type: str, dtype: torch.dtype = torch.float32
) -> tuple[TransformerSpec, dict[str, Tensor]]:
    """A config and random weights of its family; the model and the weights."""
    from safetensors.torch import save_file

    from executor.hugging_face.names import Names

    folder.mkdir(exist_ok=True)
    config = (CONFIGS | {"llava": LLAVA})[model_type] | {"model_type": model_type}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    spec = resolve_model(str(folder)).spec
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: (torch.randn(shape, generator=generator) * 0.1 + ("norm" in name.lower() or "ln_" in name)).to(
            dtype
        )
        for name, shape in Names(spec, model_type).shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return spec, tensors


def plan_of(spec: TransformerSpec, layout: str, **training: Any) -> Plan:
    """A plan for this layout on the local machine."""
    from training import question_for

    from cost_models.axes.layout import parse_layout
    from cost_models.pipeline.pricing import estimate

    parsed = parse_layout(layout)
    question = question_for(spec.model_dump(), parsed.num_gpus, **training)
    return make_plan(question, estimate(question, parsed))


class LookupCounts(dict[str, Any]):
    """Tensors that count the elements that are read of them."""

    read = 0

    def __getitem__(self, name: str) -> Any:
        return _Slices(self, super().__getitem__(name))


class _Slices:
    def __init__(self, counted: LookupCounts, tensor: Any) -> None:
        self.counted, self.tensor = counted, tensor

    def __getitem__(self, part: Any) -> Tensor:
        found: Tensor = self.tensor[part]
        self.counted.read += found.numel()
        return found


def train_from(plan: Plan, source: Path, target: Path, steps: int) -> tuple[list[tuple[float, float]], int]:
    """(loss and gradient norm of each step, elements that this rank read); the weights then go to `target`."""
    from executor.data.batches import Batches
    from executor.engine.engine import Engine, mean_over_data
    from executor.hugging_face.reading import Folder, FromTensors
    from executor.hugging_face.writing import keeps_gains_less_one, save_weights
    from executor.models.initial import InitialValues
    from executor.run_config import EngineOptions, Rate

    options = EngineOptions(rate=Rate(peak=1e-2))
    engine = Engine(plan, torch.device("cpu"), options, filled=False)
    folder = Folder(source, plan.model)
    counted = LookupCounts(folder)
    values = FromTensors(folder.names, counted, InitialValues.of(plan, engine.options))
    if keeps_gains_less_one(plan, folder):
        engine.optimizer.decay_gains_to_one()
    engine.fill_frozen(values)
    engine.fill(values)
    how = {"encoder": plan.model.encoder, "tower": plan.model.tower}
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0, **how)
    curve = []
    for step in range(steps):
        value, norm = engine.step(*batches.between(step, engine.share.first, engine.share.last))
        curve.append((mean_over_data(value, engine), norm))
    save_weights(engine, target, folder)
    return curve, counted.read


def written(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder."""
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        found |= load_file(file)
    return found


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether both have the same tensors, of the same types."""
    return one.keys() == other.keys() and all(
        torch.equal(_bits(tensor), _bits(other[name])) for name, tensor in one.items()
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)
