"""Megatron Bridge: what a recipe of NeMo trains that starts from its own without a model, in Megatron-LM's names.

Sources: NVIDIA-NeMo/Megatron-Bridge 0.6, August 2026: src/megatron/bridge/recipes/gpt/h100/vanilla_gpt.py,
training/config.py, training/mixed_precision.py, training/comm_overlap.py, models/gpt_provider.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from planner.formats.megatron.reading import reading_of
from planner.formats.nemo.taken import Taken, overrides
from planner.formats.reading.python_values import Built, Unknown, built_by, module_of
from planner.formats.reading.run import Reading
from planner.formats.reading.settings import Settings

STACK = "nemo"
MARK = "megatron.bridge"
"""What every such file imports from."""
_BASE = "vanilla_gpt_pretrain_config"
_MODELS = {"": False, "GPTModelProvider": False, "MLAModelProvider": True}
"""Provider of a model without settings of its own → whether its attention is latent."""
_RENAMED = {
    "num_moe_experts": "num_experts",
    "rope_scaling": "use_rope_scaling",
    "seq_len_interpolation_factor": "rotary_seq_len_interpolation_factor",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "gated_linear_unit": "swiglu",
}
_TO_ONE = ("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff")
"""Lists of arguments that have one value there."""
_WORDS = (
    "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype",
    "model.attention_backend",
    "model.activation_func",
)
"""Settings whose values are names of Python."""
_PARTS = ("model", "train", "ddp", "dist", "optimizer")
_SAYS_NOTHING = (
    *(
        "dataset",
        "tokenizer",
        "logger",
        "checkpoint",
        "rng",
        "scheduler",
        "validation",
        "profiling",
        "logging",
    ),
    *(
        "model.should_pad_vocab",
        "mixed_precision",
        "comm_overlap",
        "optimizer.use_distributed",
        "optimizer.lr",
    ),
    *(
        "optimizer.min_lr",
        "optimizer.weight_decay",
        "optimizer.adam",
        "optimizer.clip_grad",
        "model.init_method",
    ),
)


def read_bridge(text: str, *, gpus: int | None, stack: str | None = None, also: str = "") -> Reading:
    """The run of a recipe on so many GPUs; `also` are overrides like `train.global_batch_size=512`.

    Raises:
        InputError: the file has no recipe, or one that starts from what only Bridge knows, or contradicts itself.
    """
    if gpus is None:
        raise InputError("the recipe does not say on how many GPUs it runs", hint="--gpus says it")
    config = _recipe(text)
    mix, values = _mix(config.fields.pop("mixed_precision", "bf16_mixed")), _values(config)
    taken = Taken(Settings({**values, **overrides(also)}))
    _take_all(taken)
    said = taken.said
    for name in mix:
        said.say(name, "hybrid" if name == "fp8" else "nvfp4" if name == "fp4" else True, "mixed_precision")
    for name in ("overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer"):
        if not said.has(name):
            said.say(name, False, f"ddp.{name}")
    overlaps = config.fields.get("comm_overlap")
    inside = isinstance(overlaps, Built) and overlaps.fields.get("tp_comm_overlap") is True
    said.say("tp_comm_overlap", inside, "comm_overlap")
    wide = values.get("mixed_precision.grad_reduce_in_fp32", values.get("ddp.grad_reduce_in_fp32", True))
    said.say(
        "accumulate_allreduce_grads_in_fp32" if wide else "grad_reduce_in_bf16", True, "grad_reduce_in_fp32"
    )
    if said.problems:
        raise InputError(
            "the recipe cannot be read", problems=said.problems, hint='--also "model.KEY=VALUE" says one'
        )
    assumed: list[str] = []
    if unread := taken.settings.unread((*_SAYS_NOTHING, "ddp.grad_reduce_in_fp32")):
        assumed.append(f"nothing of a step from settings that are not known here: {', '.join(unread)}")
    return reading_of(said, gpus, None, load_stack(stack or STACK), True, assumed)


def _recipe(text: str) -> Built:
    module = module_of(text)
    built = {name: built_by(module, name) for name, node in module.functions.items() if not node.args.args}
    found = {
        name: one for name, one in built.items() if isinstance(one, Built) and one.name.endswith("_config")
    }
    if len(found) != 1:
        raise InputError(
            f"the file has {len(found) or 'no'} recipe{'s' if len(found) > 1 else ''} of Megatron Bridge",
            hint="a function that starts from one of its recipes and returns it",
        )
    name, recipe = next(iter(found.items()))
    if recipe.name != _BASE:
        raise InputError(
            f"`{name}` starts from `{recipe.name}`, whose settings only Bridge has",
            hint=f"start from `{_BASE}` and write out what the other sets",
        )
    return recipe


def _mix(said: Any) -> tuple[str, ...]:
    """Precisions of a mixture by its name."""
    name = said.name if isinstance(said, Built) else said
    if name is None:
        return ()
    known = {"bf16_mixed": ("bf16",), "fp16_mixed": ("fp16",)}
    if isinstance(name, str) and name.startswith(("bf16_with_fp8", "bf16_with_mxfp8")):
        return ("bf16", "fp8")
    if name == "bf16_with_nvfp4_mixed":
        return ("bf16", "fp4")
    if name not in known:
        raise InputError(f"`mixed_precision: {printable(str(name))}` is not known here")
    return known[name]


def _values(config: Built) -> dict[str, Any]:
    """Settings by path, names of Python as their last word."""
    model = config.fields.get("model")
    if isinstance(model, Built) and model.name not in _MODELS:
        raise InputError(
            f"`{model.name}` has settings that only Bridge has", hint="write them out on a `GPTModelProvider`"
        )
    found: dict[str, Any] = {}
    for part, of in config.fields.items():
        if isinstance(of, Built) and part in (*_PARTS, "mixed_precision"):
            found |= {f"{part}.{name}": _plain(value) for name, value in of.fields.items()}
        elif part not in _SAYS_NOTHING:
            found[part] = _plain(of)
    if isinstance(model, Built) and _MODELS[model.name]:
        found["model.multi_latent_attention"] = True
    for path in _WORDS:
        if isinstance(found.get(path), Unknown):
            found[path] = str(found[path]).rpartition(".")[2].replace("bfloat16", "bf16")
    return found


def _plain(value: Any) -> Any:
    return Unknown(f"{value.name}(..)") if isinstance(value, Built) else value


def _take_all(taken: Taken) -> None:
    values, said = taken.settings.values, taken.said
    if (kind := taken.get("model.activation_func")) == "squared_relu":
        said.say("squared_relu", True, "activation_func: squared_relu")
    elif kind not in (None, "silu", "gelu"):
        raise InputError(f"`model.activation_func: {printable(str(kind))}` is not known here")
    if taken.get("model.share_embeddings_and_output_weights") is False:
        said.say("untie_embeddings_and_output_weights", True, "share_embeddings_and_output_weights: False")
    for path in values:
        part, _, name = path.partition(".")
        ours = _RENAMED.get(name, name)
        if part not in _PARTS or f"{path}".startswith(_SAYS_NOTHING) or ours in said.values:
            continue
        if ours in _TO_ONE and not isinstance(values[path], list | Unknown | None):
            said.say(ours, (str(taken.get(path)),), f"{path}: {values[path]}")
        elif taken.knows(ours):
            taken.take(path, ours)
    gated = said.get("swiglu", False)
    taken.take("model.bias_activation_fusion", "bias_swiglu_fusion" if gated else "bias_gelu_fusion")
    if said.has("num_query_groups"):
        said.say("group_query_attention", True, said.flags["num_query_groups"])
