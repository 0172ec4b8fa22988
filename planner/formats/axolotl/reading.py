"""axolotl: layout and job of its YAML; the model is the checkpoint's.

Sources: axolotl 0.18.0: src/axolotl/utils/schemas/config.py, fsdp.py, training.py, validation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats import fsdp2
from planner.formats.axolotl.writing import PATHS
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
    if adapter := said.get("adapter"):
        raise InputError(f"`adapter: {adapter}` is not priced here", hint="training of all weights is")
    if "deepspeed" in document:
        raise InputError("the file trains with DeepSpeed", hint="import its JSON")
    mbs, steps = said.whole("micro_batch_size"), said.whole("gradient_accumulation_steps")
    layout = fsdp2.sharded_layout(said, PATHS, model, gpus, mbs, fsdp=_FSDP in document)
    if layout.cp > 1 and said.get("ring_attn_func") != "batch_ring":
        raise InputError("context ranks of `ring_attn_func` are priced as a ring alone", hint="batch_ring is")
    if not str(optimizer := said.get("optimizer")).startswith("adamw"):
        raise InputError(f"`optimizer: {optimizer}` is not priced here", hint="AdamW is")
    precision: Precision = "fp16" if said.get("fp16") is True else "bf16" if said.get("bf16") else "fp32"
    training = TrainingSpec(
        global_batch=mbs * steps * layout.dp,
        sequence_length=said.whole("sequence_len"),
        precision=precision,
    )
    return Reading(
        model=model,
        training=training,
        layout=layout,
        stack=load_stack(stack or fsdp2.STACK),
        assumptions=(*said.unread(), "sequences are full: packed, or cut to `sequence_len`"),
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
