"""torchrun and SLURM: a plan as a script that starts this project's own executor on it."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from cost_models.defaults import OWN_STACKS
from cost_models.errors import InfeasibleError, InputError
from planner.formats.exporter import Exported, Exporter, FieldExport, Job, field_paths
from planner.formats.torchrun import head, several_nodes, torchrun_words
from planner.plan import Plan
from planner.rules.stack import require_runnable

_FOLDER = "run"
_MINUTES = 30


def _exporter(name: str, text: Callable[[Job, str], str], usage: Callable[[Job], str]) -> Exporter:
    def write(plan: Plan, plan_file: str, partly: bool) -> Exported:
        if plan.question.has_pools:
            message = f"{name} starts as many ranks on every node, and pools of several kinds may differ"
            hint = "`meshwright run` on each node, in the order of the pools, trains it"
            raise InputError(message, hint=hint)
        job = Job(plan.question, plan.layout)
        try:
            require_runnable(plan.question, plan.layout)
        except InputError as error:
            raise InfeasibleError(error.headline, problems=error.problems, hint=error.hint) from None
        fields = tuple(FieldExport(field, str(job.value(field)), {}) for field in field_paths())
        stack = job.stack.name
        prices = f"prices are of `{stack}`, and the executor works as `meshwright`: --stack meshwright"
        remarks = (usage(job),) if stack in OWN_STACKS else (prices, usage(job))
        return Exported(text=text(job, plan_file), remarks=remarks, fields=fields)

    return Exporter(write=write)


def _torchrun(job: Job, plan_file: str) -> str:
    command = ["-m", "meshwright", "run", plan_file, "-o", _FOLDER]
    comment = f"{plan_file} on torchrun, as `meshwright export --to torchrun` wrote it; run it on every node"
    lines = [
        *head(comment),
        *torchrun_words(job),
        "export PYTHONSAFEPATH=1  # ranks import nothing from the current directory",
        f'exec torchrun "${{LAUNCH[@]}}" {shlex.join(command)} "$@"',
    ]
    return "\n".join(lines) + "\n"


def _slurm(job: Job, plan_file: str) -> str:
    cluster = job.question.cluster
    devices = {} if cluster.gpu.kind == "cpu" else {"gpus-per-node": cluster.gpus_per_node}
    options = {"nodes": cluster.nodes, "ntasks-per-node": 1, **devices, "time": _MINUTES}
    first, *setup = head(f"{plan_file} under SLURM, as `meshwright export --to slurm` wrote it")
    words = shlex.join(["meshwright", "run", plan_file])
    nodes = ""
    if cluster.nodes > 1:
        setup.append('HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)')
        nodes = ' --nodes "$SLURM_NNODES" --rendezvous "$HEAD:${MASTER_PORT:-29500}"'
    directives = [f"#SBATCH --{name}={value}" for name, value in options.items()]
    lines = [first, *directives, *setup, f'exec srun {words} -o "{_FOLDER}-$SLURM_JOB_ID"{nodes} "$@"']
    return "\n".join(lines) + "\n"


_OPTIONS = "steps, data and checkpoints are options behind it: `bash run.sh --steps 20`"
_YOURS = f"account, partition and time ({_MINUTES} minutes here) are yours: `sbatch --partition .. job.sh`"
TORCHRUN = _exporter("torchrun", _torchrun, lambda job: _OPTIONS + several_nodes(job))
SLURM = _exporter("slurm", _slurm, lambda job: _YOURS)
