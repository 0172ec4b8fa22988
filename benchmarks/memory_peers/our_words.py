"""A model and its layout in the words of Megatron's arguments, which both peers read."""

from __future__ import annotations

from typing import Any

from cost_models.axes.layout import Layout
from cost_models.operators.parameters import padded_vocabulary
from cost_models.specs.transformer import TransformerSpec


def arguments(model: TransformerSpec, layout: Layout, gpus: int, sequence: int) -> dict[str, Any]:
    """Name of an argument → value."""
    latent = model.latent_attention
    mixture = model.has_experts
    recompute = {"none": None, "selective": "selective", "full": "full"}[layout.recompute[0]]
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_dim,
        "group_query_attention": latent is None and model.num_kv_heads < model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "swiglu": model.gated_mlp,
        "squared_relu": model.activation == "squared-relu",
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "qk_layernorm": model.qk_norm,
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.attention_bias,
        "padded_vocab_size": int(padded_vocabulary(model, layout.tp)),
        "max_position_embeddings": max(sequence, model.max_positions),
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "num_experts": model.num_experts or None,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size if mixture else None,
        "moe_shared_expert_intermediate_size": model.shared_expert_ffn_hidden_size or None,
        "moe_shared_expert_gate": model.shared_expert_gate,
        "moe_layer_freq": [int(model.is_mixture(layer)) for layer in range(model.num_layers)],
        "moe_latent_size": None,
        "mtp_num_layers": None,
        "multi_latent_attention": latent is not None,
        "q_lora_rank": latent and latent.query_rank,
        "kv_lora_rank": latent and latent.kv_rank,
        "qk_head_dim": latent and model.head_dim - latent.position_dim,
        "qk_pos_emb_head_dim": latent and latent.position_dim,
        "v_head_dim": latent and latent.value_dim,
        "tensor_model_parallel_size": layout.tp,
        "pipeline_model_parallel_size": layout.pp,
        "virtual_pipeline_model_parallel_size": layout.vpp if layout.vpp > 1 else None,
        "context_parallel_size": layout.cp,
        "expert_model_parallel_size": layout.ep,
        "expert_tensor_parallel_size": layout.etp or layout.tp,
        "data_parallel_size": layout.dp,
        "world_size": gpus,
        "sequence_parallel": layout.sp,
        "use_distributed_optimizer": layout.zero > 0,
        "recompute_granularity": recompute,
        "micro_batch_size": layout.mbs,
        "seq_length": sequence,
        "split": list(layout.layers or ()),
    }
