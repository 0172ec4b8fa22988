"""axolotl 0.18.0: a plan as the YAML that `axolotl train` takes, under FSDP, and back, under FSDP or DeepSpeed.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py,
loaders/adapter.py, loaders/model.py (nf4 with scales quantised once more), integrations/liger/args.py,
integrations/cut_cross_entropy/args.py, integrations/expert_parallel/plugin.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from cost_models.errors import InputError
from cost_models.operators.parameters import target_names
from cost_models.specs.training import TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.deepspeed.config_file import read_deepspeed
from planner.formats.exporter import Job, JobExport, nested
from planner.formats.settings import Reading, ReadOptions, Settings, settings_of
from planner.formats.table import table_of
from planner.formats.target import Target
from planner.formats.torchrun import torchrun_by_hand

_RATE = 2e-5


def _export(export: JobExport) -> None:
    job, training = export.job, export.job.training
    fsdp2.export_job(export, "axolotl")
    rings = {"": {}, "ring": {"ring_attn_func": "batch_ring"}}
    export.choose("layout.context", job.context, rings, "its context ranks pass keys in a ring")
    steps = job.layout.microbatches(training.global_batch)
    export.sets("training.global_batch", gradient_accumulation_steps=steps)
    precisions = {"bf16": {"bf16": True}, "fp16": {"fp16": True}, "fp32": {"bf16": False}}
    export.choose("training.precision", training.precision, precisions, fsdp2.OTHER_PRECISION)
    if training.tuning is not None:
        _export_adapters(export, training.tuning)


def _export_adapters(export: JobExport, tuning: TuningSpec) -> None:
    path, alpha = "training.tuning", tuning.scale * tuning.rank
    settings: dict[str, Any] = {"adapter": "qlora" if tuning.base == "nf4" else "lora", "lora_r": tuning.rank}
    settings["lora_alpha"] = int(alpha) if alpha == int(alpha) else alpha
    settings["lora_dropout"] = tuning.dropout
    if tuning.base:
        settings["load_in_4bit" if tuning.base == "nf4" else "load_in_8bit"] = True
    if "all-linear" in tuning.targets:
        difference = "on routers, too" if export.job.model.has_experts else ""
        export.sets(path, settings, differs=difference, lora_target_linear=True)
    elif "experts" in (targets := target_names(tuning)):
        export.lacks(path, "its adapters beside experts alone are named by the model")
    else:
        names = sorted(table_of("axolotl").arguments["lora_target_modules"].values[name] for name in targets)
        export.sets(path, settings, differs="modules have the names of Llama's", lora_target_modules=names)


def _text(job: Job, settings: Mapping[str, Any], name: str) -> str:
    data = [{"path": "data.jsonl", "type": "completion"}]
    defaults: dict[str, Any] = {"base_model": f"./{job.model.name}", "datasets": data, "output_dir": "./out"}
    defaults |= {"attn_implementation": "flash_attention_2", "learning_rate": _RATE, "num_epochs": 1}
    return f"# {_command(job)}\n{yaml.safe_dump(defaults | nested(settings), sort_keys=False)}"


def _usage(job: Job, name: str) -> tuple[str, ...]:
    yours = "`base_model`, `datasets` and `output_dir` are yours: name the checkpoint and its data"
    return (yours, f"use it as {_command(job)}")


def _command(job: Job) -> str:
    """Command that trains by the YAML, for a person to complete."""
    arguments = torchrun_by_hand(job).removeprefix("torchrun ")
    return f"axolotl train axolotl.yaml --launcher torchrun -- {arguments}"


TARGET = Target("axolotl", "axolotl 0.18.0", "axolotl", _export, fsdp2.FACTS, _text, _usage)


MARKS = frozenset({"base_model", "micro_batch_size"})
"""Keys that identify its YAML: every file has at least one."""
_FSDP, _PREFIX = "fsdp_config", "fsdp_"
_FULL = "sequences are full: packed, or cut to `sequence_len`"
_CUTS = "cut_cross_entropy"


def read_axolotl(document: Mapping[str, Any], model: TransformerSpec, options: ReadOptions) -> Reading:
    """Read an Axolotl configuration file as training job, layout and stack, for a model that is given.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    settings = settings_of(_with_current_names(document) | options.also, table=table_of("axolotl"))
    if rl := settings.get("rl"):
        raise InputError(f"`rl: {rl}` is not read here", hint="--task dpo of plan prices preferences")
    mbs, total = settings.integer("micro_batch_size"), settings.integer("batch_size")
    steps = settings.integer("gradient_accumulation_steps", None) or max(1, (total or mbs) // mbs)
    fp16, bf16, cuts = settings.get("fp16") is True, settings.get("bf16"), settings.get(_CUTS) is not False
    precision = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    sequence, tuning = settings.integer("sequence_len"), _tuning_of(settings)
    job = {"sequence_length": sequence, "tuning": tuning, "optimizer": settings.plan_value("optimizer")}
    packed, attention = settings.get("sample_packing"), settings.get("attn_implementation")
    plugins = settings.plan_value("plugins")
    context = settings.plan_value("ring_attn_func") or ("all-gather" if packed else "ring")
    fsdp_values = [document.get("fsdp"), *(document.get(_FSDP) or {}).values()]
    fsdp = any(one not in (None, []) for one in fsdp_values)
    fused = settings.get("liger_fused_linear_cross_entropy") or (cuts and _CUTS in plugins)
    if config := document.get("deepspeed"):
        program = {"train_micro_batch_size_per_gpu": mbs, "gradient_accumulation_steps": steps}
        program |= {f"{one}.enabled": precision == one for one in ("bf16", "fp16")}
        program["gradient_checkpointing"] = settings.plan_value("gradient_checkpointing") == "full"
        program["tensor_parallel.autotp_size"] = settings.integer("tensor_parallel_size")
        program["optim"] = settings.get("optimizer")
        if settings.integer("context_parallel_size") > 1:
            message = "`context_parallel_size` under DeepSpeed is not priced here"
            raise InputError(message, hint="under FSDP it is")
        run = read_deepspeed(config, model, replace(options, also=program, sequence=sequence))
        run = replace(run, training=run.training.model_copy(update={"tuning": tuning}))
    else:
        job |= {"precision": precision, "mbs": mbs, "steps": steps, "context": context}
        run = fsdp2.read_sharded(settings, model, options, job, fsdp)
    stack = run.stack
    if settings.get("eager_attention") or attention == "eager":
        stack = stack.model_copy(update={"attention": "unfused"})
    stack = fsdp2.with_fused_loss(stack) if fused else stack
    return replace(run, stack=stack, assumptions=(*settings.unread(), _FULL, *run.assumptions))


def _tuning_of(settings: Settings) -> TuningSpec | None:
    """LoRA settings of an Axolotl file; None if every weight is trained."""
    bases = {"nf4": settings.get("load_in_4bit"), "int8": settings.get("load_in_8bit")}
    rank, alpha = (settings.integer(name) for name in ("lora_r", "lora_alpha"))
    linear, dropout = (settings.get(name) for name in ("lora_target_linear", "lora_dropout"))
    modules = settings.plan_value("lora_target_modules")
    if not settings.get("adapter"):
        return None
    adapter = settings.plan_value("adapter")
    if rank is None:
        raise InputError(f"`adapter: {adapter}` needs `lora_r`")
    if not linear and not modules:
        hint = "lora_target_linear or lora_target_modules does"
        raise InputError(f"`adapter: {adapter}` says no modules", hint=hint)
    names = "all-linear" if linear else modules
    targets = (names,) if isinstance(names, str) else tuple(names)
    base = next((base for base, is_set in bases.items() if is_set), None)
    fields = {"rank": rank, "targets": targets, "base": base, "dropout": dropout}
    return TuningSpec.model_validate(fields | {"alpha": None if alpha == rank else alpha})


def _with_current_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Axolotl's document with older names of FSDP settings replaced by current ones (`fsdp_config.fsdp_…`, the
    list `fsdp` of FSDP 1)."""
    renamed = dict(document)
    listed = renamed.pop("fsdp", None) or []
    words = [str(word).lower() for word in (listed.split() if isinstance(listed, str) else listed)]
    inner = {str(key).removeprefix(_PREFIX): value for key, value in (renamed.get(_FSDP) or {}).items()}
    renamed["fsdp_version"] = renamed.get("fsdp_version") or inner.pop("version", None)
    if inner.pop("activation_checkpointing", None):
        renamed["gradient_checkpointing"] = True
    if "offload" in words:
        inner["offload_params"] = True
    for word in words:
        if word not in ("auto_wrap", "offload"):
            inner.setdefault("sharding_strategy", word)
    return renamed | {_FSDP: inner}
