"""accelerate 1.15.0: a plan as the YAML that `accelerate launch --config_file` takes; model and data are the program's.

Sources: accelerate 1.15.0: commands/config/config_args.py (ClusterConfig), commands/launch.py, parallelism_config.py.
"""

from __future__ import annotations

import yaml

from planner.formats import fsdp2
from planner.formats.exporter import NOTHING, Job, Settings, Word, lacks, nested, otherwise, says
from planner.formats.target import Target

VERSION = "1.15.0"
_FSDP, _MESH = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_"
PATHS = fsdp2.Paths(
    version=f"{_FSDP}version",
    reshard=f"{_FSDP}reshard_after_forward",
    strategy=f"{_FSDP}sharding_strategy",
    offload=f"{_FSDP}offload_params",
    wrap=f"{_FSDP}auto_wrap_policy",
    tp=f"{_MESH}tp_size",
    cp=f"{_MESH}cp_size",
    shard=f"{_MESH}dp_shard_size",
    replicate=f"{_MESH}dp_replicate_size",
    recompute=f"{_FSDP}activation_checkpointing",
)
STRATEGY = f"{_MESH}cp_comm_strategy"
MBS, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
"""Arguments of programs over the Hugging Face Trainer."""


def _zero(job: Job) -> Word:
    """Everything that says how many processes there are and what they share."""
    gpus, nodes = job.layout.num_gpus, job.question.cluster.nodes
    kind = "FSDP" if fsdp2.is_sharded(job) else "MULTI_GPU" if gpus > 1 else "NO"
    started = {"distributed_type": kind, "num_processes": gpus, "num_machines": nodes}
    return says(**started, **fsdp2.sharding(job, PATHS))


def _context(job: Job) -> Word:
    if job.layout.cp == 1:
        return NOTHING
    kind = job.layout.context or job.stack.context_parallel
    names = {"all-gather": "allgather", "ring": "alltoall"}
    return (
        says(**{STRATEGY: names[kind]})
        if kind in names
        else lacks("its context ranks pass keys or gather them")
    )


def _recompute(job: Job) -> Word:
    word = fsdp2.recompute(job, PATHS.recompute)
    if fsdp2.is_sharded(job) or not word.settings:
        return word
    return otherwise(f"without FSDP `--{CHECKPOINTING} true` of the program turns it on")


def _precision(job: Job) -> Word:
    named = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}
    if job.training.precision not in named:
        return lacks("it trains in bf16, fp16 or fp32")
    return says(mixed_precision=named[job.training.precision])


def program_words(job: Job) -> str:
    """Arguments of a program over the Hugging Face Trainer that make the plan's batch, and without FSDP recompute."""
    steps = job.layout.microbatches(job.training.global_batch)
    recomputes = not fsdp2.is_sharded(job) and job.layout.recompute != ("none",)
    return f"--{MBS} {job.layout.mbs} --{STEPS} {steps}" + f" --{CHECKPOINTING} true" * recomputes


def _text(job: Job, settings: Settings, name: str) -> str:
    written = {"compute_environment": "LOCAL_MACHINE", **nested(settings)}
    head = f"accelerate launch --config_file accelerate.yaml train.py {program_words(job)}"
    return f"# {head}\n{yaml.safe_dump(written, sort_keys=False)}"


def _usage(job: Job, name: str) -> tuple[str, ...]:
    several = ", --machine_rank and --main_process_ip on every node" if job.question.cluster.nodes > 1 else ""
    return (
        f"use it as accelerate launch --config_file accelerate.yaml train.py {program_words(job)}{several}",
        f"the model (`{job.model.name}`) and sequences of {job.training.sequence_length:,} are your program's",
    )


TARGET = Target(
    name="accelerate",
    called=f"accelerate {VERSION}",
    stack=fsdp2.STACK,
    table="accelerate",
    translated={
        **fsdp2.translated(PATHS),
        "layout.zero": _zero,
        "layout.context": _context,
        "layout.recompute": _recompute,
        "layout.mbs": lambda job: otherwise(f"`--{MBS} {job.layout.mbs}` of the program"),
        "training.global_batch": lambda job: otherwise(
            f"`--{STEPS} {job.layout.microbatches(job.training.global_batch)}` of the program"
        ),
        "training.sequence_length": lambda job: otherwise("what the program feeds it"),
        "training.precision": _precision,
        "training.optimizer": lambda job: otherwise("the program's"),
    },
    text=_text,
    usage=_usage,
)
