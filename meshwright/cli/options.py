"""The flags that several verbs share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from meshwright.cli import completion


def optional(
    flag: str,
    metavar: str,
    help: str,
    *,
    min: float | None = None,
    max: float | None = None,
    offers: Callable[..., list[str]] | None = None,
) -> Any:
    """A flag that may be left out; what happens then is in `help`, as typer has no default to show.

    `offers` are the words that a shell completes.
    """
    return typer.Option(
        flag, metavar=metavar, help=help, min=min, max=max, show_default=False, autocompletion=offers
    )


def out(help: str, metavar: str = "FILE") -> Any:
    """`-o`, without which nothing is written, or where the help says."""
    return typer.Option("-o", "--out", metavar=metavar, help=help, show_default=False)


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Catalogue name, Hugging Face config.json, or YAML file.",
        autocompletion=completion.models,
    ),
]
Cluster = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", help="Catalogue name or YAML file.", autocompletion=completion.clusters
    ),
]
PlanFile = Annotated[
    Path,
    typer.Argument(
        metavar="PLAN", help="Plan file written by `meshwright plan -o`.", autocompletion=completion.plans
    ),
]

Gpus = Annotated[int | None, optional("--gpus", "N", "GPUs to use; the cluster is sized to them.")]
GpuChoice = Annotated[str | None, optional("--gpus", "N", "GPUs to use; a choice: 64,96 or 64..1024.")]
Tokens = Annotated[str | None, optional("--tokens", "N", "Tokens to train on, e.g. 1.4T.")]
Price = Annotated[str | None, optional("--price", "MONEY", "Of one GPU-hour, for cost.")]
Prices = Annotated[
    str | None, optional("--price", "MONEY[,MONEY]", "Of one GPU-hour, for cost; one for each cluster.")
]
Deadline = Annotated[str | None, optional("--deadline", "TIME", "For all tokens, e.g. 30d.")]
Operations = Annotated[
    str | None,
    optional(
        "--operations", "NAME", "Failures, storage: catalogue name or file.", offers=completion.operations
    ),
]
GlobalBatch = Annotated[
    str | None, optional("--global-batch", "N", "Sequences per optimizer step, or '4M tokens'.")
]
Sequence = Annotated[str | None, optional("--sequence", "N", "Tokens per sequence; also 8K.")]
Precision = Annotated[str | None, optional("--precision", "TYPE", "bf16, fp16, fp32, fp8 or fp4.")]
Precisions = Annotated[
    str | None,
    optional("--precision", "TYPE[,TYPE]", "bf16, fp16, fp32, fp8 or fp4; of several the fastest."),
]
Dropout = Annotated[
    float | None,
    optional("--dropout", "SHARE", "Of hidden activations that are dropped; else as usual with the stack."),
]
Optimizer = Annotated[str | None, optional("--optimizer", "NAME", "adamw (default), lamb or sgd.")]
Training = Annotated[Path | None, optional("--training", "FILE", "Training YAML; flags override it.")]
Stack = Annotated[
    str | None,
    optional("--stack", "NAME", "Software stack: catalogue name or file.", offers=completion.stacks),
]
Profile = Annotated[
    str | None,
    optional("--profile", "NAME", "Hardware profile: catalogue name or file.", offers=completion.profiles),
]

Fix = Annotated[list[str] | None, optional("--fix", "AXIS=VALUE", "Keep an axis, e.g. tp=8, tp=2,4, pp>=2.")]
Forbid = Annotated[
    list[str] | None, optional("--forbid", "CHOICE", "Exclude a choice, e.g. zero3, cp or recompute=full.")
]
Allow = Annotated[
    list[str] | None,
    optional("--allow", "AXIS", "Open offload, overlap, replicas, parallel-block, window=N, lamb."),
]
Together = Annotated[
    list[str] | None, optional("--together", "TABLE,TABLE", "Recommenders: tables that lie on one GPU.")
]
For = Annotated[
    str | None, optional("--for", "TRAINER", "Obey its rules: megatron, torchtitan, deepspeed or nemo.")
]
MaxMemory = Annotated[str | None, optional("--max-memory", "SIZE", "Device memory to fill, e.g. 70GiB.")]
HostMemory = Annotated[
    str | None, optional("--host-memory", "SIZE", "Of each host, e.g. 128GiB; default the cluster's.")
]
Confidence = Annotated[
    str | None, optional("--confidence", "SHARE", "Least chance that it fits, e.g. 95%; default 50%.")
]
TIME_LIMIT = 60.0
"""Seconds after which a search ends with the gap it has proven, so that no question hangs."""
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", metavar="SECONDS", min=0.001, help="Then stop with the gap."),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Csv = Annotated[Path | None, optional("--csv", "FILE", "Also write the table as CSV.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or hints.")]
