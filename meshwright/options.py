"""The flags that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Catalogue name, Hugging Face config.json, or YAML file.")
]
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER", help="Catalogue name or YAML file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file written by `meshwright plan -o`.")]

Gpus = Annotated[
    int | None,
    typer.Option(
        "--gpus", metavar="N", help="GPUs to use; the cluster is sized to them.", show_default=False
    ),
]
GpuChoice = Annotated[
    str | None,
    typer.Option("--gpus", metavar="N", help="GPUs to use; a choice: 64,96 or 64..1024.", show_default=False),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Tokens to train on, e.g. 1.4T.", show_default=False),
]
Price = Annotated[
    float | None,
    typer.Option("--price", metavar="MONEY", help="Of one GPU-hour, for cost.", show_default=False),
]
Deadline = Annotated[
    str | None,
    typer.Option("--deadline", metavar="TIME", help="For all tokens, e.g. 30d.", show_default=False),
]
GlobalBatch = Annotated[
    int | None,
    typer.Option("--global-batch", metavar="N", help="Sequences per optimizer step.", show_default=False),
]
Sequence = Annotated[
    int | None, typer.Option("--sequence", metavar="N", help="Tokens per sequence.", show_default=False)
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", metavar="TYPE", help="bf16, fp16, fp32 or fp8.", show_default=False),
]
Precisions = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="TYPE[,TYPE]",
        help="bf16, fp16, fp32 or fp8; of several the fastest.",
        show_default=False,
    ),
]
Training = Annotated[
    Path | None,
    typer.Option("--training", metavar="FILE", help="Training YAML; flags override it.", show_default=False),
]
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack", metavar="NAME", help="Software stack: catalogue name or file.", show_default=False
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="Hardware profile: catalogue name or file.", show_default=False
    ),
]

Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix", metavar="AXIS=VALUE", help="Keep an axis, e.g. tp=8, tp=2,4, pp>=2.", show_default=False
    ),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option(
        "--forbid",
        metavar="CHOICE",
        help="Exclude a choice, e.g. zero3, cp or recompute=full.",
        show_default=False,
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", metavar="TRAINER", help="Obey its rules: megatron or torchtitan.", show_default=False
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory", metavar="SIZE", help="Device memory to fill, e.g. 70GiB.", show_default=False
    ),
]
TIME_LIMIT = 60.0
"""Seconds after which a search ends with the gap it has proven, so that no question hangs."""
TimeLimit = Annotated[
    float,
    typer.Option("--time-limit", metavar="SECONDS", min=0.001, help="Then stop with the gap."),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", metavar="FILE", help="Also write the table as CSV.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, notes or hints.")]
