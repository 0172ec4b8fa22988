"""accelerate: layout and precision of its YAML; model, sequence and batch are the program's.

Sources: accelerate 1.15.0: commands/config/config_args.py, commands/launch.py, utils/dataclasses.py (DeepSpeedPlugin);
transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.accelerate.writing import CHECKPOINTING, MBS, PATHS, STEPS, STRATEGY
from planner.formats.deepspeed.reading import read_deepspeed
from planner.formats.reading.settings import Beside, Reading, settings_of
from planner.formats.table import table_of

MARKS = frozenset({"distributed_type", "fsdp_config"})
"""Keys that tell its YAML from other files: each has one of them."""
_DEEPSPEED, _ZERO_STAGE = "deepspeed_config", 2
"""The stage is DeepSpeedPlugin's where a file has none."""
OPTIMIZER = "optim"


def read_accelerate(document: Mapping[str, Any], model: TransformerSpec, beside: Beside) -> Reading:
    """The run of a file, of a model.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    said = settings_of(dict(document) | {_DEEPSPEED: None} | beside.also, table=table_of("accelerate"))
    kind, stated = said.ours("distributed_type"), said.whole("num_processes")
    gpus = beside.gpus or stated or 1
    if stated and gpus != stated:
        raise InputError(f"{gpus} GPUs contradict `num_processes: {stated}`", hint="leave out --gpus")
    if kind == "NO" and gpus > 1:
        raise InputError(f"`distributed_type: NO` with {gpus} processes", hint="MULTI_GPU or FSDP share them")
    half, brain, precision = said.get("fp16"), said.get("bf16"), said.ours("mixed_precision")
    precision = "bf16" if brain else "fp16" if half else precision
    inner = dict(document.get(_DEEPSPEED) or {})
    inner |= {} if "zero_optimization" in inner else {"zero_stage": inner.get("zero_stage", _ZERO_STAGE)}
    mbs, steps = said.whole(MBS), said.whole(STEPS, None) or inner.pop(STEPS, None) or said.usual(STEPS)
    assumed = [
        f"`--{name} {size}`: --also says otherwise"
        for name, size in ((MBS, mbs), (STEPS, steps))
        if name not in said.values
    ]
    recompute, optimizer = said.ours(PATHS.recompute), said.ours(OPTIMIZER)
    fused = said.get("use_liger_kernel")
    if kind != "FSDP":  # accelerate leaves it alone
        said.read |= {path for path in said.values if path.startswith("fsdp_config.")}
    beside = replace(beside, gpus=gpus, node=max(gpus // said.whole("num_machines"), 1))
    if kind == "DEEPSPEED":
        batch = {"train_micro_batch_size_per_gpu": mbs, STEPS: steps, CHECKPOINTING: recompute == "full"}
        narrow = {} if precision == "fp32" else {f"{precision}.enabled": True}
        named = {name: value for name, value in said.values.items() if name == OPTIMIZER}
        known = read_deepspeed(inner, model, replace(beside, also=batch | narrow | named))
        base, layout, training = known.stack, known.layout, known.training
        assumed += known.assumptions
    else:
        base = load_stack(beside.stack or fsdp2.STACK)
        layout = fsdp2.sharded_layout(said, PATHS, model, beside, mbs, assumed, fsdp=kind == "FSDP")
        layout = fsdp2.with_context(layout, said.ours(STRATEGY), base)
        sizes = {
            "global_batch": mbs * steps * layout.dp,
            "sequence_length": beside.sequence,
            "precision": precision,
        }
        training = TrainingSpec.model_validate(sizes | {"optimizer": optimizer})
        assumed += ["AdamW: the file names no optimizer"] if OPTIMIZER not in said.values else []
    stack = fsdp2.with_fused_loss(base) if fused else base
    words = (*said.unread(), *assumed)
    return Reading(model=model, training=training, layout=layout, stack=stack, assumptions=words)
