"""accelerate: layout and precision of its YAML; model, sequence and batch are the program's.

Sources: accelerate 1.15.0: commands/config/config_args.py, commands/launch.py; transformers' TrainingArguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.accelerate.writing import CHECKPOINTING, MBS, PATHS, STEPS, STRATEGY
from planner.formats.reading.settings import Reading, Settings, also_words, by_path
from planner.formats.table import table_of

MARKS = frozenset({"distributed_type", "fsdp_config"})
"""Keys that tell its YAML from other files: each has one of them."""
_CONTEXTS = {"allgather": "all-gather", "alltoall": "ring"}


def read_accelerate(
    document: Mapping[str, Any],
    model: TransformerSpec,
    *,
    sequence: int,
    also: str = "",
    stack: str | None = None,
) -> Reading:
    """The run of a file, of a model in sequences of so many tokens; `also` are arguments of the program.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    said = Settings(dict(by_path(document)) | _of_program(also), table_of("accelerate"))
    kind = str(said.get("distributed_type"))
    if kind not in ("FSDP", "MULTI_GPU", "NO"):
        raise InputError(f"`distributed_type: {kind}` is not read here", hint="FSDP, MULTI_GPU and NO are")
    gpus = said.whole("num_processes") or 1
    if kind == "NO" and gpus > 1:
        raise InputError(f"`distributed_type: NO` with {gpus} processes", hint="MULTI_GPU or FSDP share them")
    mbs, steps = said.whole(MBS), said.whole(STEPS)
    assumed = [
        f"`--{name} {size}`: --also says otherwise"
        for name, size in ((MBS, mbs), (STEPS, steps))
        if name not in said.values
    ]
    layout = fsdp2.sharded_layout(said, PATHS, model, gpus, mbs, fsdp=kind == "FSDP")
    base = load_stack(stack or fsdp2.STACK)
    way = _CONTEXTS.get(str(said.get(STRATEGY)))
    if layout.cp > 1 and way != base.context_parallel:
        layout = layout.model_copy(update={"context": way})
    precision = {"no": "fp32"}.get(str(said.get("mixed_precision")), said.get("mixed_precision"))
    if precision not in ("fp32", "bf16", "fp16"):
        raise InputError(f"`mixed_precision: {precision}` is not priced here", hint="no, bf16 and fp16 are")
    training = TrainingSpec(
        global_batch=mbs * steps * layout.dp, sequence_length=sequence, precision=precision
    )
    return Reading(
        model=model,
        training=training,
        layout=layout,
        stack=base,
        assumptions=(*said.unread(), *assumed, "AdamW: the file names no optimizer"),
    )


def _of_program(also: str) -> dict[str, Any]:
    """Batch and recompute among the arguments of a program, with underscores or hyphens. Raises InputError."""
    found: dict[str, Any] = {}
    words = iter(also_words(also.replace("=", " ")))
    for word in words:
        name = word.removeprefix("--").replace("-", "_")
        if name in (MBS, STEPS):
            value = next(words, "")
            if not value.isdecimal():
                raise InputError(f"--also: `{word} {value}` is no whole number")
            found[name] = int(value)
        elif name == CHECKPOINTING and next(words, "true").lower() == "true":
            found[PATHS.recompute] = True
    return found
