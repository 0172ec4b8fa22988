"""axolotl: layout and job of its YAML; the model is the checkpoint's.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.cluster import Precision
from cost_models.specs.training import OptimizerName, TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.tuning import TuningSpec
from planner.formats import fsdp2
from planner.formats.axolotl.writing import MODULES, OPTIMIZERS, PATHS
from planner.formats.reading.settings import Reading, Settings, by_path
from planner.formats.table import table_of

MARKS = frozenset({"base_model", "micro_batch_size"})
"""Keys that tell its YAML from other files: each has one of them."""
_FSDP, _PREFIX = "fsdp_config", "fsdp_"


def read_axolotl(
    document: Mapping[str, Any], model: TransformerSpec, *, gpus: int, stack: str | None = None
) -> Reading:
    """The run of a file, of a model on so many GPUs.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    said = Settings(dict(by_path(_as_now(document))), table_of("axolotl"))
    if rl := said.get("rl"):
        raise InputError(f"`rl: {rl}` is not read here", hint="--task dpo of plan prices preferences")
    if "deepspeed" in document:
        raise InputError("the file trains with DeepSpeed", hint="import its JSON")
    mbs, steps = said.whole("micro_batch_size"), said.whole("gradient_accumulation_steps")
    layout = fsdp2.sharded_layout(said, PATHS, model, gpus, mbs, fsdp=_FSDP in document)
    if layout.cp > 1 and said.get("ring_attn_func") != "batch_ring":
        raise InputError("context ranks of `ring_attn_func` are priced as a ring alone", hint="batch_ring is")
    precision: Precision = "fp16" if said.get("fp16") is True else "bf16" if said.get("bf16") else "fp32"
    training = TrainingSpec(
        global_batch=mbs * steps * layout.dp,
        sequence_length=said.whole("sequence_len"),
        precision=precision,
        optimizer=_optimizer(said),
        tuning=_adapters(said),
    )
    return Reading(
        model=model,
        training=training,
        layout=layout,
        stack=load_stack(stack or fsdp2.STACK),
        assumptions=(*said.unread(), "sequences are full: packed, or cut to `sequence_len`"),
    )


def _optimizer(said: Settings) -> OptimizerName:
    """The optimizer, by any of its names."""
    name = str(said.get("optimizer"))
    exact = {theirs: ours for ours, theirs in OPTIMIZERS.items()}
    if name in exact:
        return exact[name]
    if name.startswith(("adamw", "paged_adamw")):
        eight = "8bit" in name
        return ("paged-adamw-8bit" if name.startswith("paged") else "adamw-8bit") if eight else "adamw"
    raise InputError(f"`optimizer: {name}` is not priced here", hint="AdamW and Adafactor are")


def _adapters(said: Settings) -> TuningSpec | None:
    """Adapters of low rank; None: every weight is trained."""
    adapter, four, eight = (said.get(name) for name in ("adapter", "load_in_4bit", "load_in_8bit"))
    if not adapter:
        return None
    if adapter not in ("lora", "qlora"):
        raise InputError(f"`adapter: {adapter}` is not priced here", hint="lora and qlora are")
    if (rank := said.whole("lora_r")) is None:
        raise InputError(f"`adapter: {adapter}` needs `lora_r`")
    named = said.listed("lora_target_modules") or []
    usual = {theirs: ours for ours, theirs in MODULES.items()}
    if unknown := [str(name) for name in named if name not in usual]:
        raise InputError(f"`lora_target_modules` {', '.join(unknown)} are not known here")
    if not (linear := bool(said.get("lora_target_linear"))) and not named:
        raise InputError(
            f"`adapter: {adapter}` says no modules", hint="lora_target_linear or lora_target_modules does"
        )
    return TuningSpec.model_validate(
        {
            "rank": rank,
            "targets": ("all-linear",) if linear else tuple(usual[name] for name in named),
            "base": "nf4" if four else "int8" if eight else None,
            "dropout": said.get("lora_dropout"),
            "alpha": None if (alpha := said.whole("lora_alpha")) == rank else alpha,
        }
    )


def _as_now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The file with the version beside `fsdp_config` and its older names, `fsdp_…`, without their beginning."""
    found = dict(document)
    if isinstance(inner := found.get(_FSDP), Mapping):
        version = inner.get("fsdp_version") or inner.get("version")
        found.setdefault("fsdp_version", version)
        found[_FSDP] = {
            key.removeprefix(_PREFIX) if key != "fsdp_version" else key: value for key, value in inner.items()
        }
    return found
