"""Every exporter of transformer plans with the parser that reads its files back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from benchmarks.exporters import compare
from benchmarks.exporters.draw import DENSE, MIXTURES
from cost_models.question import Question
from planner.formats import deepspeed, fsdp2, megatron, nemo, torchtitan
from planner.formats.exporter import Job, Target, Written
from planner.formats.megatron_arguments import argument_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A target, and how what its parser makes of a file is compared with the plan."""

    target: Target
    stack: str
    """Catalogue name of the stack whose plans are drawn."""
    models: tuple[str, ...]
    read_by: str = ""
    """The parser, as people write it."""
    peer: str = ""
    """Name of the parser (`peers`); empty: it has none that runs here."""
    case: Callable[[Job, Written], dict[str, Any]] = lambda asked, settings: {}
    read: Callable[[Mapping[str, Any], Question], dict[str, Any]] = lambda values, question: {}
    same_names: bool = True
    """Whether the parser calls settings as the exporter does."""
    unread: tuple[str, ...] = ()
    """What the file has no place for, of `compare.planned`."""


def _megatron(asked: Job, settings: Written) -> dict[str, Any]:
    return {
        "arguments": [*chain(*argument_words(settings)), "--lr", "1e-4", "--mock-data"],
        "world": asked.layout.num_gpus,
        "environment": megatron.environment(asked, settings),
    }


def _text(target: Target) -> Callable[[Job, Written], dict[str, Any]]:
    return lambda asked, settings: {
        "text": target.file(asked, settings, "plan.yaml")[0],
        "world": asked.layout.num_gpus,
    }


_OF_STAGES = ("pp", "vpp", "ep", "etp", "sp", "layers")
"""What trainers over FSDP2 have none of."""

TARGETS: dict[str, Read] = {
    "megatron": Read(
        target=megatron.TARGET,
        stack="megatron-core",
        models=DENSE + MIXTURES,
        peer="megatron",
        read_by="`validate_args` and `TransformerConfig`, core 0.20",
        case=_megatron,
        read=compare.megatron,
    ),
    "torchtitan": Read(
        target=torchtitan.TARGET,
        stack="torchtitan",
        models=("llama3.1-8b", "qwen3-8b", "llama3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "llama3.2-1b"),
        peer="torchtitan",
        read_by="`ConfigManager`, `ParallelDims` of 0.3.0",
        case=_text(torchtitan.TARGET),
        read=compare.torchtitan,
    ),
    "nemo": Read(
        target=nemo.TARGET,
        stack="nemo",
        models=DENSE + MIXTURES,
        peer="nemo",
        read_by="fields of Bridge's classes, not run",
        case=_text(nemo.TARGET),
        read=compare.nemo,
        same_names=False,
    ),
    "deepspeed": Read(
        target=deepspeed.TARGET,
        stack="deepspeed",
        models=DENSE + MIXTURES,
        peer="deepspeed",
        read_by="`DeepSpeedConfig` of 0.19.8",
        case=_text(deepspeed.TARGET),
        read=compare.deepspeed,
        unread=("etp", "sequence", "shard", "sp", "recompute", "layers"),
    ),
    "accelerate": Read(
        target=fsdp2.ACCELERATE,
        stack="fsdp",
        models=DENSE + MIXTURES,
        peer="accelerate",
        read_by="`accelerate launch`'s arguments, its plugin and mesh, 1.15.0",
        case=_text(fsdp2.ACCELERATE),
        read=compare.accelerate,
        same_names=False,
        unread=(*_OF_STAGES, "sequence", "mbs", "batch", "microbatches"),
    ),
    "axolotl": Read(
        target=fsdp2.AXOLOTL,
        stack="fsdp",
        models=DENSE + MIXTURES,
        peer="axolotl",
        read_by="its FSDP schema, and fields of its other schemas, not run",
        case=_text(fsdp2.AXOLOTL),
        read=compare.axolotl,
        unread=_OF_STAGES,
    ),
}
