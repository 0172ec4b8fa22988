"""Arguments of Megatron-LM's `pretrain_gpt.py` as settings: by the names of their values, contradictions named.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py; names of 2021 and 2022 that are
still in people's scripts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import InputError, Problem
from cost_models.units import LARGEST
from planner.formats.reading.shell_words import is_known, may_hold_arguments, plain

KINDS = {
    name: kind
    for kind, names in {
        "switch": """
            bf16 fp16 group_query_attention swiglu squared_relu qk_layernorm add_qkv_bias use_rope_scaling
            untie_embeddings_and_output_weights multi_latent_attention moe_router_pre_softmax moe_shared_expert_gate
            moe_grouped_gemm sequence_parallel use_distributed_optimizer use_tp_pp_dp_mapping optimizer_cpu_offload
            use_precision_aware_optimizer fine_grained_activation_offloading overlap_cpu_optimizer_d2h_h2d
            overlap_grad_reduce overlap_param_gather tp_comm_overlap accumulate_allreduce_grads_in_fp32
            grad_reduce_in_bf16 deterministic_mode cross_entropy_loss_fusion account_for_embedding_in_pipeline_split
            account_for_loss_in_pipeline_split recompute_activations use_flash_attn use_rotary_position_embeddings
            bias_gelu_fusion checkpoint_activations
        """,
        "whole": """
            num_layers hidden_size num_attention_heads ffn_hidden_size kv_channels num_query_groups seq_length
            max_position_embeddings vocab_size padded_vocab_size make_vocab_size_divisible_by rotary_base
            rotary_seq_len_interpolation_factor micro_batch_size global_batch_size train_iters train_samples
            tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size
            expert_tensor_parallel_size num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank
            decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers recompute_num_layers
            num_distributed_optimizer_instances num_experts moe_router_topk moe_ffn_hidden_size
            moe_shared_expert_intermediate_size moe_router_num_groups moe_router_group_topk mtp_num_layers
            q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
        """,
        "share": """
            layernorm_epsilon rotary_percent rope_scaling_factor hidden_dropout attention_dropout
            moe_router_topk_scaling_factor optimizer_offload_fraction
        """,
        "name": """
            position_embedding_type normalization attention_backend transformer_impl optimizer fp8 fp4
            recompute_granularity recompute_method softmax_type moe_router_score_function moe_token_dispatcher_type
            moe_flex_dispatcher_backend pipeline_model_parallel_layout exp_avg_dtype exp_avg_sq_dtype
            main_params_dtype main_grads_dtype
        """,
        "list": """
            recompute_modules offload_modules cp_comm_type rampup_batch_size moe_router_load_balancing_type
            moe_aux_loss_coeff
        """,
        "pattern": """
            moe_layer_freq no_rope_freq window_attn_skip_freq window_size
        """,
    }.items()
    for name in names.split()
}
"""Name of a value → how it is written."""
NEGATIONS = {
    "--disable-bias-linear": "add_bias_linear",
    "--no-overlap-p2p-communication": "overlap_p2p_comm",
    "--no-gradient-accumulation-fusion": "gradient_accumulation_fusion",
    "--no-bias-gelu-fusion": "bias_gelu_fusion",
    "--no-bias-swiglu-fusion": "bias_swiglu_fusion",
    "--no-bias-dropout-fusion": "bias_dropout_fusion",
    "--no-position-embedding": "position_embedding",
}
_OTHER_NAMES = {
    "--norm-epsilon": "layernorm_epsilon",
    "--fp8-format": "fp8",
    "--fp4-format": "fp4",
    "--model-parallel-size": "tensor_model_parallel_size",
    "--batch-size": "micro_batch_size",
    "--activations-checkpoint-method": "recompute_method",
    "--activations-checkpoint-num-layers": "recompute_num_layers",
}
_SAYS_NOTHING = re.compile(
    r"""--(?:no-)?(?:
    lr|min-lr|decoupled|weight-decay|clip-grad|adam|sgd-momentum|init-method|seed|start-weight|end-weight|
    data|split|train-data|valid|test-data|per-split|mock-data|tokenizer|vocab-file|merge-file|num-workers|
    reset-|eod-mask|create-attention-mask|mmap|dataloader|
    save|load|ckpt|async-save|use-dist-ckpt|dist-ckpt|auto-detect-ckpt|finetune|override-opt|use-checkpoint-opt|
    log|tensorboard|wandb|timing|eval|exit|profile|use-pytorch-profiler|one-logger|check-|
    distributed-(?:backend|timeout)|local-rank|lazy-mpu|rank|init-method-std|use-mcore-models|use-legacy|
    manual-gc|use-cpu-init|hysteresis|initial-loss-scale|loss-scale|attention-softmax-in-fp32|
    apply-query-key|masked-softmax|calculate-per-token|DDP-impl|empty-unused|untied|disable-straggler
    )""",
    re.VERBOSE,
)
_EXCLUDE = (
    ("bf16", "fp16"),
    ("swiglu", "squared_relu"),
    ("pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage"),
    ("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"),
    ("train_iters", "train_samples"),
    ("fp8", "fp4"),
)
_MOST_BLOCKS = 100_000
_PATTERN_PART = re.compile(r"\(?\[([01](?:,[01])*)\]\)?(?:\*(\d{1,4}))?", re.ASCII)


@dataclass(slots=True)
class Arguments:
    """Settings by the names of their values, with what nobody reads."""

    values: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    """Name → the words that said it."""
    unread: dict[str, str] = field(default_factory=dict)
    """Flag → its words, of those that are not known here."""
    problems: list[Problem] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        """A setting, or what it is without a word."""
        return self.values.get(name, default)

    def has(self, name: str) -> bool:
        """Whether it is said."""
        return name in self.values

    def say(self, name: str, value: Any, words: str) -> None:
        """Take a setting; one that was said otherwise before is a contradiction."""
        if name in self.values and self.values[name] != value:
            self.problems.append(Problem(f"`{words}`", f"contradicts `{self.flags[name]}`"))
        self.values[name] = value
        self.flags[name] = words


def read_arguments(words: Sequence[str]) -> Arguments:
    """Arguments as settings.

    Raises:
        InputError: values that cannot be read, arguments that contradict one another, what only the shell knows; all.
    """
    said = Arguments()
    for flag, values in _by_flag(words, said):
        _take(said, flag, values)
    for one, other in _EXCLUDE:
        if said.get(one) and said.get(other):
            said.problems.append(Problem(f"`{said.flags[other]}`", f"contradicts `{said.flags[one]}`"))
    if said.get("recompute_activations"):
        if said.get("recompute_granularity", "selective") != "selective":
            words_ = said.flags["recompute_granularity"]
            said.problems.append(Problem(f"`{words_}`", "contradicts `--recompute-activations`"))
        said.values["recompute_granularity"] = "selective"
    if said.problems:
        hint = ""
        if any("only the shell knows" in one.what for one in said.problems):
            hint = (
                "paste the command with values in place, as `bash -x run.sh` or `ps -ww -o args` prints it; "
                '--also "SIZE=7b" sets variables that the script is started with'
            )
        raise InputError("the command cannot be read", problems=said.problems, hint=hint)
    return said


def _by_flag(words: Sequence[str], said: Arguments) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        elif found:
            found[-1][1].append(word)
        else:
            what = "is no argument" if is_known(word) else "only the shell knows what this is"
            said.problems.append(Problem(f"`{plain(word)}`", what))
    return found


def _take(said: Arguments, flag: str, values: list[str]) -> None:
    words = plain(" ".join([flag, *values]))
    name = _OTHER_NAMES.get(flag, flag[2:].replace("-", "_"))
    if flag in NEGATIONS:
        name, arity, value = NEGATIONS[flag], 0, False
    elif (kind := KINDS.get(name)) == "switch":
        arity, value = 0, True
    elif kind is not None:
        arity, value = (max(1, len(values)) if kind == "list" else 1), None
    elif flag.startswith("--no-") and KINDS.get(flag[5:].replace("-", "_")) == "switch":
        name, arity, value = flag[5:].replace("-", "_"), 0, False
    else:
        if not _SAYS_NOTHING.match(flag):
            said.unread[flag] = words
        first = len(values) if "data-path" in flag else 1
        for one in values:
            if "[@]" in one or (one in values[first:] and may_hold_arguments(one)):
                said.problems.append(
                    Problem(f"`{plain(one)}`", "only the shell knows which arguments it holds")
                )
        return
    if unknown := [one for one in values if not is_known(one)]:
        what = f"only the shell knows what `{plain(unknown[0])}` is"
        said.problems.append(Problem(f"`{words}`", what))
    elif len(values) != arity:
        what = f"takes {'no value' if not arity else 'one value'}, not {len(values)}"
        said.problems.append(Problem(f"`{words}`", what))
    elif value is not None:
        said.say(name, value, flag)
    else:
        try:
            said.say(name, _value(name, values), words)
        except ValueError as error:
            said.problems.append(Problem(f"`{words}`", str(error)))


def _value(name: str, values: list[str]) -> Any:
    kind, text = KINDS[name], values[0]
    if kind in ("list", "name"):
        return tuple(values) if kind == "list" else text
    if kind == "pattern":
        return _pattern(text)
    wanted = "whole number" if kind == "whole" else "number"
    try:
        value = int(text) if kind == "whole" else float(text)
    except ValueError:
        raise ValueError(f"`{text}` is no {wanted}") from None
    if not abs(value) <= LARGEST:
        raise ValueError(f"`{text[:40]}` is no {wanted} that counts anything")
    return value


def _pattern(text: str) -> Any:
    """`3`, `127,0` or `([0]*3+[1]*58)`."""
    bare = text.replace(" ", "")
    if re.fullmatch(r"\d{1,9}", bare, re.ASCII):
        return int(bare)
    if re.fullmatch(r"\(?-?\d{1,9},-?\d{1,9}\)?", bare, re.ASCII):
        return tuple(ast.literal_eval(bare if bare.startswith("(") else f"({bare})"))
    found: list[int] = []
    inner, _, times = bare.rpartition(")*") if bare.startswith("(") and ")*" in bare else (bare, "", "1")
    inner = inner.removeprefix("(").removesuffix(")")
    for part in inner.split("+"):
        match = _PATTERN_PART.fullmatch(part)
        if match is None or not times.isdecimal():
            raise ValueError(f"`{text}` is no pattern like `[0]*3+[1]*58`")
        found += [int(one) for one in match[1].split(",")] * int(match[2] or 1)
        if len(found) * int(times[:9]) > _MOST_BLOCKS:
            raise ValueError(f"`{text[:40]}` names more blocks than any model has")
    return tuple(found) * int(times)
