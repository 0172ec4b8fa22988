"""Lines of exported scripts that start processes: bash around argument lists that `shlex` quotes."""

from __future__ import annotations

import shlex

from planner.formats.exporter import Job


def head(comment: str) -> list[str]:
    """First lines of a generated bash script, with a comment and `set -euo pipefail`."""
    return ["#!/usr/bin/env bash", *(f"# {line}" for line in comment.splitlines()), "set -euo pipefail"]


def several_nodes(job: Job) -> str:
    """Phrase that names the variables `torchrun_words` needs on every node; empty for a single node."""
    return ", NODE_RANK and MASTER_ADDR on every node" if job.question.cluster.nodes > 1 else ""


def torchrun_by_hand(job: Job) -> str:
    """Start of a torchrun command for a person to complete."""
    cluster = job.question.cluster
    nodes = f"--nnodes {cluster.nodes} --node-rank .. --master-addr .. " if cluster.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {cluster.gpus_per_node}"


def torchrun_words(job: Job) -> list[str]:
    """Lines of bash that set `LAUNCH` to torchrun's arguments; with several nodes, node rank and master address
    come from variables."""
    cluster = job.question.cluster
    per_node, nodes = cluster.gpus_per_node, cluster.nodes
    words = ["--nproc-per-node", str(per_node)]
    if nodes == 1:
        return [f"LAUNCH=({shlex.join(['--standalone', *words])})"]
    return [
        f"LAUNCH=({shlex.join(words)}",
        f'  --nnodes "${{NNODES:-{nodes}}}" --node-rank "${{NODE_RANK:?which of the nodes this is}}"',
        '  --master-addr "${MASTER_ADDR:?a host that all nodes reach}" --master-port "${MASTER_PORT:-29500}")',
    ]
