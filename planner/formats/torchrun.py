"""torchrun and SLURM: scripts that start this project's executor on a plan, and lines of scripts that start
other trainers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable

from cost_models.defaults import OWN_STACKS
from cost_models.errors import InfeasibleError, InputError
from cost_models.units import format_bytes, format_seconds
from planner.formats.exporter import Exported, Exporter, FieldExport, Job, field_paths
from planner.plan import Plan
from planner.rules.stack import estimate_as_executed

_FOLDER = "run"
_MINUTES = 30


def script(comment: str, lines: Iterable[str], directives: Iterable[str] = ()) -> str:
    """Text of a bash script made of `directives`, a comment and `lines`, which stops at the first error."""
    comments = (f"# {line}" for line in comment.splitlines())
    return "\n".join(["#!/usr/bin/env bash", *directives, *comments, "set -euo pipefail", *lines]) + "\n"


def several_nodes(job: Job) -> str:
    """Phrase that names the variables that `torchrun_words` needs on every node; empty for a single node."""
    return ", NODE_RANK and MASTER_ADDR on every node" if job.question.cluster.nodes > 1 else ""


def torchrun_by_hand(job: Job) -> str:
    """Beginning of a torchrun command, for the user to complete."""
    cluster = job.question.cluster
    nodes = f"--nnodes {cluster.nodes} --node-rank .. --master-addr .. " if cluster.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {cluster.gpus_per_node}"


def torchrun_words(job: Job) -> list[str]:
    """Lines of bash that set `LAUNCH` to torchrun's arguments; with several nodes, variables give node rank
    and master address."""
    per_node, nodes = job.question.cluster.gpus_per_node, job.question.cluster.nodes
    if nodes == 1:
        return [f"LAUNCH=(--standalone --nproc-per-node {per_node})"]
    return [
        f"LAUNCH=(--nproc-per-node {per_node}",
        f'  --nnodes "${{NNODES:-{nodes}}}" --node-rank "${{NODE_RANK:?which of the nodes this is}}"',
        '  --master-addr "${MASTER_ADDR:?a host that all nodes reach}" --master-port "${MASTER_PORT:-29500}")',
    ]


def _exporter(name: str, text: Callable[[Job, str], str], usage: Callable[[Job], str]) -> Exporter:
    """Exporter called `name` whose file has the text `text` and whose usage note is `usage`."""

    def write(plan: Plan, plan_file: str, partly: bool) -> Exported:
        """Export a plan as the script; raise InputError if the cluster has several pools."""
        if plan.question.has_pools:
            message = f"{name} starts as many ranks on every node, and pools of several kinds may differ"
            hint = "`meshwright run` on each node, in the order of the pools, trains it"
            raise InputError(message, hint=hint)
        job = Job(plan.question, plan.layout)
        try:
            executed = estimate_as_executed(plan.question, plan.layout)
        except InputError as error:
            raise InfeasibleError(error.headline, problems=error.problems, hint=error.hint) from None
        fields = tuple(FieldExport(field, str(job.value(field)), {}) for field in field_paths())
        sizes = f"{format_seconds(executed.step_seconds)} a step, {format_bytes(executed.peak_bytes)} a GPU"
        prices = f"prices are of `{job.stack.name}`; as the executor runs it {sizes}: --stack meshwright"
        remarks = (usage(job),) if job.stack.name in OWN_STACKS else (prices, usage(job))
        return Exported(text=text(job, plan_file), remarks=remarks, fields=fields)

    return Exporter(write=write)


def _torchrun(job: Job, plan_file: str) -> str:
    """Text of the bash script that starts the executor with torchrun."""
    command = shlex.join(["-m", "meshwright", "run", plan_file, "-o", _FOLDER])
    comment = f"{plan_file} on torchrun, as `meshwright export --to torchrun` wrote it; run it on every node"
    safe_path = "export PYTHONSAFEPATH=1  # ranks import nothing from the current directory"
    start = f'exec torchrun "${{LAUNCH[@]}}" {command} "$@"'
    return script(comment, [*torchrun_words(job), safe_path, start])


def _slurm(job: Job, plan_file: str) -> str:
    """Text of the SLURM batch script that starts the executor."""
    cluster = job.question.cluster
    devices = {} if cluster.gpu.kind == "cpu" else {"gpus-per-node": cluster.gpus_per_node}
    options = {"nodes": cluster.nodes, "ntasks-per-node": 1, **devices, "time": _MINUTES}
    words, setup, nodes = shlex.join(["meshwright", "run", plan_file]), list[str](), ""
    if cluster.nodes > 1:
        setup = ['HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)']
        nodes = ' --nodes "$SLURM_NNODES" --rendezvous "$HEAD:${MASTER_PORT:-29500}"'
    start = f'exec srun {words} -o "{_FOLDER}-$SLURM_JOB_ID"{nodes} "$@"'
    comment = f"{plan_file} under SLURM, as `meshwright export --to slurm` wrote it"
    return script(comment, [*setup, start], [f"#SBATCH --{name}={value}" for name, value in options.items()])


_OPTIONS = "steps, data and checkpoints are options behind it: `bash run.sh --steps 20`"
_YOURS = (
    f"account, partition and time ({_MINUTES} minutes here) are yours to set: `sbatch --partition .. job.sh`"
)
TORCHRUN = _exporter("torchrun", _torchrun, lambda job: _OPTIONS + several_nodes(job))
SLURM = _exporter("slurm", _slurm, lambda job: _YOURS)
