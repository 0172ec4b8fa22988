"""Megatron-LM: a plan as a script that starts `pretrain_gpt.py` with torchrun on every node, and such a script read.

Every setting is an argument of megatron/training/arguments.py by the name of its value there; a test reads the
arguments back with that parser.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from planner.formats.exporter import Job, JobExport, Settings
from planner.formats.megatron.arguments import Arguments, read_arguments, unpriced_values, written
from planner.formats.megatron.job import FACTS, STACK, stack_of, training_of, write_facts, write_training
from planner.formats.megatron.launches import Launch, world_size
from planner.formats.megatron.layout import layout_of, write_layout
from planner.formats.megatron.model import model_of, write_model
from planner.formats.settings import Reading, unpriced
from planner.formats.target import Target
from planner.formats.torchrun import script, several_nodes, torchrun_words

_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "layout.zero": ("its distributed optimizer shards optimizer states (zero1)", 0, 1),
    "layout.schedule": ("it runs 1f1b, and interleaved where vpp is above 1", "1f1b", "interleaved"),
    "training.state_dtype": ("its master weights are in fp32 or fp16", "fp32"),
    "model.router_bias": ("its router has no bias", False),
    "model.norm_placement": ("its norms lie before attention and MLP", "before"),
    "model.embedding_norm": ("no norm follows its embedding", False),
    "model.head_bias": ("its head has no bias", False),
    "model.embedding_scale": ("it does not scale embeddings", 1.0),
    "model.residual_scale": ("it does not scale what blocks add", 1.0),
    "model.logit_scale": ("it does not scale logits", 1.0),
    "model.attention_scale": ("it scales scores by 1/√head_dim", None),
    "model.parallel_block": ("its attention and MLP follow one another", False),
}
"""Fields of which Megatron Core supports some values alone: the reason, and the values."""


def write_core(export: JobExport) -> None:
    """Set Megatron Core's arguments for all fields that its table does not write."""
    export.supports(_LIMITS)
    for write in (write_layout, write_training, write_model, write_facts):
        write(export)


def _file(job: Job, settings: Settings, name: str) -> tuple[str, ...]:
    lines = [
        *(f"export {key}={shlex.quote(value)}" for key, value in environment(job, settings).items()),
        "ARGUMENTS=(",
        *(f"  {shlex.join(words)}" for words in written(settings)),
        ")",
        *torchrun_words(job),
        'exec torchrun "${LAUNCH[@]}" "${MEGATRON:-.}/pretrain_gpt.py" "${ARGUMENTS[@]}" "$@"',
    ]
    comment = f"{name} for Megatron-LM, as `meshwright export --to megatron` wrote it; run it on every node"
    return (
        script(comment, lines),
        "data, tokenizer, learning rate and checkpoints are yours: `bash run.sh --data-path .. --lr ..` appends them",
        f"set MEGATRON to the checkout{several_nodes(job)}",
    )


def environment(job: Job, settings: Settings) -> dict[str, str]:
    """Environment variables that Megatron-LM needs for this job."""
    needed = {
        # validate_args asks for this before Blackwell, and for the next with Transformer Engine 2.10
        "CUDA_DEVICE_MAX_CONNECTIONS": job.layout.tp > 1 or job.layout.cp > 1,
        "NVTE_CPU_OFFLOAD_V1": settings.get("fine_grained_activation_offloading"),
        "CUDA_LAUNCH_BLOCKING": job.stack.launches_block,
    }
    return {variable: "1" for variable, is_needed in needed.items() if is_needed}


def _words(settings: Settings) -> str:
    return " ".join(map(shlex.join, written(settings)))


_FACTS = f"{FACTS} launches_block"  # the last in the environment
TARGET = Target("megatron", "Megatron-LM (core 0.20)", write_core, _FACTS, _file, spelled=_words)


def read_megatron(
    launch: Launch, *, gpus: int | None = None, stack: str | None = None, ignore: Sequence[str] = ()
) -> Reading:
    """Read a Megatron-LM command as model, training job, layout and stack. Missing arguments have the defaults
    of `pretrain_gpt.py` (core 0.20); with a software stack named, missing facts are that stack's; flags to
    `ignore` are left out.

    Raises:
        InputError: the command cannot be read, is incomplete, or contradicts itself.
    """
    args = read_arguments(launch.arguments, ignore)
    args.assumed += launch.assumptions
    world, base = world_size(launch, gpus), load_stack(stack or STACK)
    if launch.environment.get("CUDA_LAUNCH_BLOCKING") == "1":
        base = base.model_copy(update={"launches_block": True})
    return reading_of(args, world, base, stack_named=stack is not None)


def reading_of(args: Arguments, world: int, base: StackSpec, *, stack_named: bool = True) -> Reading:
    """Turn Megatron Core's arguments into model, training job, layout and stack; missing switches are off
    unless the user named the stack.

    Raises:
        InputError: they are incomplete, contradict one another, or change layout or memory as no price does.
    """
    unused = [*args.unpriced, *unpriced_values(args)]
    args.assumed += unpriced(one for one in unused if args.get("num_experts") or "moe" not in one.key)
    model = model_of(args)
    layout = layout_of(args, model, world, base)
    training, stack = training_of(args, layout, stack_named), stack_of(args, base, stack_named)
    return Reading(model, training, layout, stack, tuple(args.assumed))
