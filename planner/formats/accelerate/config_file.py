"""accelerate 1.15.0: a plan as the YAML that `accelerate launch --config_file` takes, and back.

Model, sequence and batch are the program's. Sources: accelerate 1.15.0: commands/config/config_args.py (ClusterConfig),
commands/launch.py, parallelism_config.py, utils/dataclasses.py (DeepSpeedPlugin); transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from cost_models.errors import InputError
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.deepspeed.config_file import read_deepspeed
from planner.formats.exporter import Job, JobExport, Settings, nested
from planner.formats.settings import Reading, ReadOptions, settings_of
from planner.formats.table import table_of
from planner.formats.target import Target

_TABLE = "accelerate"
STRATEGY = "parallelism_config.parallelism_config_cp_comm_strategy"
MBS, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
"""Arguments of programs over the Hugging Face Trainer."""


def _export(export: JobExport) -> None:
    job, layout = export.job, export.job.layout
    fsdp2.export_job(export, _TABLE)
    is_sharded, gpus, nodes = fsdp2.is_sharded(job), layout.num_gpus, job.question.cluster.nodes
    kind = "FSDP" if is_sharded else "MULTI_GPU" if gpus > 1 else "NO"
    started = {"distributed_type": kind, "num_processes": gpus, "num_machines": nodes}
    export.sets("layout.zero", started | fsdp2.sharding(job, _TABLE))
    ways = {"": {}, "all-gather": {STRATEGY: "allgather"}, "ring": {STRATEGY: "alltoall"}}
    export.choose("layout.context", job.context, ways, "its context ranks pass keys or gather them")
    if not is_sharded:
        difference = f"without FSDP `--{CHECKPOINTING} true` of the program turns it on"
        fsdp2.export_recompute(export, {}, difference)
    steps = layout.microbatches(job.training.global_batch)
    export.sets("layout.mbs", differs=f"`--{MBS} {layout.mbs}` of the program")
    export.sets("training.global_batch", differs=f"`--{STEPS} {steps}` of the program")
    export.sets("training.sequence_length", differs="what the program feeds it")
    export.sets("training.optimizer", differs="the program's")
    precisions = {name: {"mixed_precision": "no" if name == "fp32" else name} for name in fsdp2.PRECISIONS}
    export.choose("training.precision", job.training.precision, precisions, fsdp2.OTHER_PRECISION)


def _command(job: Job) -> str:
    """Command that starts a program over the Hugging Face Trainer by the YAML, with arguments that set microbatch and
    accumulation, and recompute without FSDP."""
    steps = job.layout.microbatches(job.training.global_batch)
    recomputes = not fsdp2.is_sharded(job) and job.layout.recompute != ("none",)
    words = f"--{MBS} {job.layout.mbs} --{STEPS} {steps}" + f" --{CHECKPOINTING} true" * recomputes
    return f"accelerate launch --config_file accelerate.yaml train.py {words}"


def _text(job: Job, settings: Settings, name: str) -> str:
    written = {"compute_environment": "LOCAL_MACHINE", **nested(settings)}
    return f"# {_command(job)}\n{yaml.safe_dump(written, sort_keys=False)}"


def _usage(job: Job, name: str) -> tuple[str, ...]:
    several = ", --machine_rank and --main_process_ip on every node" if job.question.cluster.nodes > 1 else ""
    length = job.training.sequence_length
    yours = f"the model (`{job.model.name}`) and sequences of {length:,} are your program's"
    return (f"use it as {_command(job)}{several}", yours)


TARGET = Target("accelerate", "accelerate 1.15.0", _TABLE, _export, fsdp2.FACTS, _text, _usage)


MARKS = frozenset({"distributed_type", "fsdp_config"})
"""Keys that identify its YAML: every file has at least one."""
_DEEPSPEED, _ZERO_STAGE = "deepspeed_config", 2
"""The stage is DeepSpeedPlugin's where a file has none."""
OPTIMIZER = "optim"


def read_accelerate(document: Mapping[str, Any], model: TransformerSpec, options: ReadOptions) -> Reading:
    """Read an Accelerate configuration file as model, training job, layout and stack.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    settings = settings_of(dict(document) | {_DEEPSPEED: None} | options.also, table=table_of(_TABLE))
    kind, processes = settings.plan_value("distributed_type"), settings.integer("num_processes")
    gpus = options.gpus or processes or 1
    if processes and gpus != processes:
        raise InputError(f"{gpus} GPUs contradict `num_processes: {processes}`", hint="leave out --gpus")
    if kind == "NO" and gpus > 1:
        raise InputError(f"`distributed_type: NO` with {gpus} processes", hint="MULTI_GPU or FSDP share them")
    fp16, bf16, precision = settings.get("fp16"), settings.get("bf16"), settings.plan_value("mixed_precision")
    precision = "bf16" if bf16 else "fp16" if fp16 else precision
    inner = dict(document.get(_DEEPSPEED) or {})
    inner |= {} if "zero_optimization" in inner else {"zero_stage": inner.get("zero_stage", _ZERO_STAGE)}
    steps = settings.integer(STEPS, None) or inner.pop(STEPS, None) or settings.default_of(STEPS)
    mbs = settings.integer(MBS)
    silent = {name: size for name, size in ((MBS, mbs), (STEPS, steps)) if name not in settings.values}
    assumed = [f"`--{name} {size}`: --also says otherwise" for name, size in silent.items()]
    recompute = settings.plan_value("fsdp_config.fsdp_activation_checkpointing")
    optimizer = settings.plan_value(OPTIMIZER)
    fused = settings.get("use_liger_kernel")
    if kind != "FSDP":  # accelerate leaves it alone
        settings.read |= {path for path in settings.values if path.startswith("fsdp_config.")}
    options = replace(options, gpus=gpus, node=max(gpus // settings.integer("num_machines"), 1))
    if kind == "DEEPSPEED":
        program = {"train_micro_batch_size_per_gpu": mbs, STEPS: steps, CHECKPOINTING: recompute == "full"}
        program |= {} if precision == "fp32" else {f"{precision}.enabled": True}
        program |= {name: value for name, value in settings.values.items() if name == OPTIMIZER}
        run = read_deepspeed(inner, model, replace(options, also=program))
    else:
        job = {"sequence_length": options.sequence, "precision": precision, "optimizer": optimizer}
        job |= {"mbs": mbs, "steps": steps, "context": settings.plan_value(STRATEGY)}
        run = fsdp2.read_sharded(settings, model, options, job, kind == "FSDP")
    stack = fsdp2.with_fused_loss(run.stack) if fused else run.stack
    unnamed = kind != "DEEPSPEED" and OPTIMIZER not in settings.values
    assumed += [*run.assumptions, *["AdamW: the file names no optimizer"] * unnamed]
    return replace(run, stack=stack, assumptions=(*settings.unread(), *assumed))
