"""axolotl: layout and job of its YAML, under FSDP or DeepSpeed.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py,
integrations/liger/args.py, integrations/cut_cross_entropy/args.py, integrations/expert_parallel/plugin.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.training import TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.axolotl.writing import PATHS
from planner.formats.deepspeed.reading import read_deepspeed
from planner.formats.reading.settings import Beside, Reading, Settings, settings_of
from planner.formats.table import table_of

MARKS = frozenset({"base_model", "micro_batch_size"})
"""Keys that tell its YAML from other files: each has one of them."""
_FSDP, _PREFIX = "fsdp_config", "fsdp_"
_FULL = "sequences are full: packed, or cut to `sequence_len`"
_CUTS = "cut_cross_entropy"


def read_axolotl(document: Mapping[str, Any], model: TransformerSpec, beside: Beside) -> Reading:
    """The run of a file, of a model.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    said = settings_of(_as_now(document) | beside.also, table=table_of("axolotl"))
    if rl := said.get("rl"):
        raise InputError(f"`rl: {rl}` is not read here", hint="--task dpo of plan prices preferences")
    mbs, total = said.whole("micro_batch_size"), said.whole("batch_size")
    steps = said.whole("gradient_accumulation_steps", None) or max(1, (total or mbs) // mbs)
    half, brain, cuts = said.get("fp16") is True, said.get("bf16"), said.get(_CUTS) is not False
    precision = "fp16" if half else "bf16" if brain else "fp32"
    job = {
        "sequence_length": said.whole("sequence_len"),
        "tuning": _adapters(said),
        "optimizer": said.ours("optimizer"),
    }
    packed, attention = said.get("sample_packing"), said.get("attn_implementation")
    plugins = said.ours("plugins")
    way = said.ours("ring_attn_func") or ("all-gather" if packed else "ring")
    settings = [document.get("fsdp"), *(document.get(_FSDP) or {}).values()]
    fsdp, assumed = any(one not in (None, []) for one in settings), [_FULL]
    fused = said.get("liger_fused_linear_cross_entropy") or (cuts and _CUTS in plugins)
    if config := document.get("deepspeed"):
        program = {
            "train_micro_batch_size_per_gpu": mbs,
            "gradient_accumulation_steps": steps,
            "bf16.enabled": precision == "bf16",
            "fp16.enabled": precision == "fp16",
            "gradient_checkpointing": said.ours(PATHS.recompute) == "full",
            "tensor_parallel.autotp_size": said.whole(PATHS.tp),
            "optim": said.get("optimizer"),
        }
        if said.whole(PATHS.cp) > 1:
            raise InputError(f"`{PATHS.cp}` under DeepSpeed is not priced here", hint="under FSDP it is")
        with_program = replace(beside, also=program, sequence=said.whole("sequence_len"))
        known = read_deepspeed(config, model, with_program)
        training = known.training.model_copy(update={"tuning": job["tuning"]})
        base, layout = known.stack, known.layout
        assumed += known.assumptions
    else:
        base = load_stack(beside.stack or fsdp2.STACK)
        layout = fsdp2.sharded_layout(said, PATHS, model, beside, mbs, assumed, fsdp=fsdp)
        layout = fsdp2.with_context(layout, way, base)
        sizes = {"global_batch": mbs * steps * layout.dp, "precision": precision}
        training = TrainingSpec.model_validate(sizes | job)
    if said.get("eager_attention") or attention == "eager":
        base = base.model_copy(update={"attention": "unfused"})
    own = fsdp2.with_fused_loss(base) if fused else base
    words = (*said.unread(), *assumed)
    return Reading(model=model, training=training, layout=layout, stack=own, assumptions=words)


def _adapters(said: Settings) -> TuningSpec | None:
    """Adapters of low rank; None: every weight is trained."""
    four, eight, linear = (said.get(name) for name in ("load_in_4bit", "load_in_8bit", "lora_target_linear"))
    rank, alpha, dropout = said.whole("lora_r"), said.whole("lora_alpha"), said.get("lora_dropout")
    named = said.ours("lora_target_modules")
    if not said.get("adapter"):
        return None
    adapter = said.ours("adapter")
    if rank is None:
        raise InputError(f"`adapter: {adapter}` needs `lora_r`")
    if not linear and not named:
        hint = "lora_target_linear or lora_target_modules does"
        raise InputError(f"`adapter: {adapter}` says no modules", hint=hint)
    return TuningSpec.model_validate(
        {
            "rank": rank,
            "targets": ("all-linear",) if linear else tuple([named] if isinstance(named, str) else named),
            "base": "nf4" if four else "int8" if eight else None,
            "dropout": dropout,
            "alpha": None if alpha == rank else alpha,
        }
    )


def _as_now(document: Mapping[str, Any]) -> dict[str, Any]:
    """The file with the version beside `fsdp_config`, its older names, `fsdp_…`, without their beginning, and the list
    `fsdp` of FSDP 1 among them."""
    found = dict(document)
    listed = found.pop("fsdp", None) or []
    words = [str(word).lower() for word in (listed.split() if isinstance(listed, str) else listed)]
    inner = {str(key).removeprefix(_PREFIX): value for key, value in (found.get(_FSDP) or {}).items()}
    found["fsdp_version"] = found.get("fsdp_version") or inner.pop("version", None)
    if inner.pop("activation_checkpointing", None):
        found["gradient_checkpointing"] = True
    if "offload" in words:
        inner["offload_params"] = True
    for word in words:
        if word not in ("auto_wrap", "offload"):
            inner.setdefault("sharding_strategy", word)
    return found | {_FSDP: inner}
