"""NeMo 1: what its YAML of a GPT trains, in Megatron-LM's names, which are nearly its own.

Sources: NVIDIA/NeMo 2.0: examples/nlp/language_modeling/conf/megatron_gpt_config.yaml,
nemo/collections/nlp/models/language_modeling/megatron_gpt_model.py, megatron_base_model.py; NVIDIA/dgxc-benchmarking.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from planner.formats.megatron.reading import reading_of
from planner.formats.nemo.taken import Taken, overrides
from planner.formats.reading.run import Reading
from planner.formats.reading.settings import Settings, by_path

STACK = "nemo"
_RENAMED = {
    "encoder_seq_length": "seq_length",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "rotary_percentage": "rotary_percent",
    "num_moe_experts": "num_experts",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "ub_tp_comm_overlap": "tp_comm_overlap",
    "bias": "add_bias_linear",
    "bias_dropout_add_fusion": "bias_dropout_fusion",
    "override_vocab_size": "vocab_size",
}
"""Its name, where Megatron-LM has another."""
_SAME = (
    *(
        "micro_batch_size",
        "global_batch_size",
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
    ),
    *(
        "kv_channels",
        "hidden_dropout",
        "attention_dropout",
        "layernorm_epsilon",
        "make_vocab_size_divisible_by",
    ),
    *("max_position_embeddings", "position_embedding_type", "rotary_base", "gradient_accumulation_fusion"),
    *(
        "sequence_parallel",
        "deterministic_mode",
        "cross_entropy_loss_fusion",
        "overlap_p2p_comm",
        "moe_router_topk",
    ),
    *("moe_token_dispatcher_type", "moe_grouped_gemm", "rampup_batch_size"),
    *(f"{axis}_model_parallel_size" for axis in ("tensor", "pipeline", "expert")),
    *("context_parallel_size", "qk_layernorm"),
)
_NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "rmsnorm": "RMSNorm"}
_GATED = ("swiglu", "fast-swiglu")
_OTHER_GATES = ("geglu", "fast-geglu")
_PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16", "32": None}
_SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
_WHOLE = ("fused_adam", "megatron_fused_adam", "adam", "adamw")
_SAYS_NOTHING = (
    *(
        f"model.{one}"
        for one in ("data", "tokenizer", "nsys", "seed", "gc_", "init_method", "native_amp", "hysteresis")
    ),
    *(
        f"model.{one}"
        for one in ("pre_process", "post_process", "onnx", "apex", "resume", "use_cpu", "ub_tp_comm_overlap_")
    ),
    *(
        f"model.{one}"
        for one in ("optim", "fp8_", "fp8", "mcore_gpt", "transformer_engine", "megatron_amp", "headscale")
    ),
    *(
        f"model.{one}"
        for one in ("persist_layer", "do_layer_norm", "layernorm_zero", "transformer_block_type")
    ),
    *(f"model.{one}" for one in ("openai_gelu", "normalize_attention", "attention_type", "log_")),
    *(
        f"model.{one}"
        for one in ("use_scaled_init", "scale_positional", "apply_query", "apply_rope", "masked_softmax")
    ),
    *(f"model.{one}" for one in ("get_attention_mask", "sync_batch", "grad_allreduce", "grad_div")),
    *(
        f"model.{one}"
        for one in (
            "gradient_as_bucket",
            "use_flash",
            "fsdp_",
        )
    ),
    *(f"model.{one}" for one in ("ffn_dropout", "name", "precision")),
    *("trainer", "exp_manager", "run", "hydra", "cluster", "name", "restore", "defaults", "data_dir"),
)


def read_nemo(
    document: Mapping[str, Any], *, gpus: int | None = None, stack: str | None = None, also: str = ""
) -> Reading:
    """The run of a file; `also` are overrides as its command line takes them (`model.global_batch_size=512`). What the
    file does not say is as in NeMo's `megatron_gpt_config.yaml`.

    Raises:
        InputError: it lacks what a price needs, or contradicts itself.
    """
    taken = Taken(Settings(dict(by_path(document)) | overrides(also)))
    for name in _SAME:
        taken.take(f"model.{name}", name)
    for path, name in _RENAMED.items():
        taken.take(f"model.{path}", name)
    assumed: list[str] = []
    _take_shape(taken, assumed)
    _take_job(taken)
    said = taken.said
    if said.problems:
        raise InputError(
            "the file cannot be read", problems=said.problems, hint='--also "model.KEY=VALUE" says one'
        )
    off = [path for path, value in taken.settings.values.items() if value in (None, False)]
    taken.settings.read.update(off)
    if unread := taken.settings.unread(_SAYS_NOTHING):
        assumed.insert(0, f"nothing of a step from settings that are not known here: {', '.join(unread)}")
    tokenizer = taken.get("model.tokenizer.type")
    if not said.has("vocab_size") and tokenizer != "GPT2BPETokenizer":
        raise InputError(
            "the file leaves the size of the vocabulary to its tokenizer",
            hint='--also "model.override_vocab_size=128256" says it',
        )
    base = load_stack(stack or STACK)
    return reading_of(said, _world(taken, gpus), str(tokenizer), base, True, assumed)


def _world(taken: Taken, gpus: int | None) -> int:
    nodes, each = taken.settings.whole("trainer.num_nodes"), taken.settings.whole("trainer.devices")
    if nodes is None or each is None:
        if gpus is None:
            raise InputError("the file does not say on how many GPUs it runs", hint="--gpus says it")
        return gpus
    if gpus not in (None, nodes * each):
        raise InputError(
            f"the file is for {nodes * each} GPUs, --gpus says {gpus}",
            hint=f'--also "trainer.num_nodes={max(1, (gpus or each) // each)}" says another number of nodes',
        )
    return int(nodes * each)


def _take_shape(taken: Taken, assumed: list[str]) -> None:
    said = taken.said
    norm = str(taken.get("model.normalization", "layernorm1p"))
    if norm not in _NORMS:
        raise InputError(f"`model.normalization: {norm}` is not known here")
    said.say("normalization", _NORMS[norm], f"normalization: {norm}")
    activation = str(taken.get("model.activation", "gelu"))
    if activation in (*_GATED, *_OTHER_GATES):
        said.say("swiglu", True, f"activation: {activation}")
        if activation in _OTHER_GATES:
            assumed.append(f"`{activation}` as swiglu")
    elif activation == "squared-relu":
        said.say("squared_relu", True, f"activation: {activation}")
    elif activation != "gelu":
        raise InputError(f"`model.activation: {activation}` is not known here")
    taken.take(
        "model.bias_activation_fusion", "bias_swiglu_fusion" if said.has("swiglu") else "bias_gelu_fusion"
    )
    if not taken.get("model.share_embeddings_and_output_weights", True):
        said.say("untie_embeddings_and_output_weights", True, "share_embeddings_and_output_weights: False")
    taken.take("model.num_query_groups", "num_query_groups")
    if said.has("num_query_groups"):
        said.say("group_query_attention", True, said.flags["num_query_groups"])
    if not said.has("seq_length"):
        taken.take("model.data.seq_length", "seq_length")


def _take_job(taken: Taken) -> None:
    said = taken.said
    if taken.get("model.fsdp", False):
        raise InputError("`model.fsdp` is not priced here", hint="`import` reads torchtitan's recipes")
    precision = str(taken.get("trainer.precision", 32))
    if precision not in _PRECISIONS:
        raise InputError(f"`trainer.precision: {precision}` is not known here")
    if (name := _PRECISIONS[precision]) is not None:
        said.say(name, True, f"trainer.precision: {precision}")
    if taken.get("model.fp8", False):
        said.say("fp8", "hybrid", "model.fp8: True")
    optimizer = str(taken.get("model.optim.name", "fused_adam"))
    if optimizer not in (*_SHARDED, *_WHOLE):
        raise InputError(f"`model.optim.name: {optimizer}` is not priced here", hint="Adam is")
    is_sharded = optimizer in _SHARDED
    said.say("use_distributed_optimizer", is_sharded, f"optim.name: {optimizer}")
    for path, fact in (
        ("overlap_grad_sync", "overlap_grad_reduce"),
        ("overlap_param_sync", "overlap_param_gather"),
    ):
        said.say(fact, is_sharded and bool(taken.get(f"model.optim.{path}", False)), f"optim.{path}")
    if str(taken.get("model.optim.grad_sync_dtype", "")).startswith("bf16"):
        said.say("grad_reduce_in_bf16", True, "optim.grad_sync_dtype: bf16")
    elif is_sharded:
        said.say("accumulate_allreduce_grads_in_fp32", True, "optim.grad_sync_dtype")
    taken.take("trainer.max_steps", "train_iters")
