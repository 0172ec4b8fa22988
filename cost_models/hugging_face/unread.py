"""Keys of a Hugging Face config that nothing here reads: said, unless they cannot change a shape or a price."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.documents import printable
from cost_models.hugging_face.families import Noted

_OF_NO_PRICE = frozenset(
    (
        "_attn_implementation",
        "_name_or_path",
        "architectures",
        "audio_config",
        "auto_map",
        "cache_implementation",
        "chunk_size_feed_forward",
        "custom_pipelines",
        "dtype",
        "ep_size",
        "finetuning_task",
        "hidden_dropout_prob",
        "id2label",
        "init_std",
        "initial_context_length",
        "initializer_factor",
        "initializer_range",
        "input_jitter_noise",
        "label2id",
        "max_length",
        "min_length",
        "mlp_type",
        "model_type",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pretraining_tp",
        "problem_type",
        "quantization_config",
        "return_dict",
        "router_dtype",
        "router_jitter_noise",
        "seq_aux",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "unsloth_fixed",
        "use_bfloat16",
        "use_cache",
        "vision_config",
    )
)
"""Tokens' numbers, dropout (which the training says), checkpoints' formats and what generation needs are none of a
model's shape."""
_ENDINGS = ("_token_id", "_token_ids", "_token_index", "_dropout", "_pdrop")
_MOST = 8


def unread(config: Noted, told: Sequence[str] = ()) -> str:
    """Keys with values that say something and that nothing read, in words; empty where there is none."""
    keys = [
        key
        for key in config.keys() - config.read - _OF_NO_PRICE - set(told)
        if not key.endswith(_ENDINGS) and config[key] not in (None, False, [], {}, "")
    ]
    words = [f"{printable(key, limit=40)} {printable(str(config[key]), limit=30)}" for key in sorted(keys)]
    more = f" and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more
