"""Sharding and batch that trainers over PyTorch's `fully_shard` (FSDP2) share, written and read.

Sources: accelerate 1.15.0: utils/dataclasses.py (FullyShardedDataParallelPlugin), parallelism_config.py,
utils/fsdp_utils.py (fsdp2_prepare_model).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.exporter import Job, JobExport
from planner.formats.rules import FSDP2, FUSED_LOSS
from planner.formats.settings import Reading, ReadOptions, Settings
from planner.formats.table import table_of

PRECISIONS = ("bf16", "fp16", "fp32")
OTHER_PRECISION = "it trains in bf16, fp16 or fp32"


def is_sharded(job: Job) -> bool:
    """Whether the job runs under FSDP; otherwise each rank holds all weights, plainly or as
    DistributedDataParallel."""
    return job.layout.zero > 0 or job.layout.tp > 1 or any(job.layout.offload)


def sharding(job: Job, table: str) -> dict[str, Any]:
    """FSDP settings of a job (version, whether weights are resharded after forward, sizes of the mesh) by the
    trainer's table of arguments; empty without FSDP."""
    if not is_sharded(job):
        return {}
    layout = job.layout
    settings = {"version": 2, "reshard": layout.zero in (0, 3), "wrap": "TRANSFORMER_BASED_WRAP"}
    shard = max(layout.shard_group // layout.cp, 1)
    replicas = layout.dp // shard
    if layout.tp * layout.cp * replicas > 1:
        settings |= {"shard": shard, "replicate": replicas, "tp": layout.tp, "cp": layout.cp}
    paths = table_of(table).spelled("role")
    return {paths[role]: value for role, value in settings.items()}


def export_recompute(export: JobExport, settings: Mapping[str, Any], differs: str = "") -> None:
    """Recompute every block in full by these settings, or none; any other policy is reported as lacking."""
    policies = export.job.layout.policies
    export.sets("layout.recompute", settings, differs=differs, when=policies == ("full",))
    reason = "it recomputes whole blocks, of all or of none"
    export.lacks("layout.recompute", reason, when=policies not in (("full",), ("none",)))


def export_program(export: JobExport, limits: Mapping[str, tuple[Any, ...]], source: str) -> None:
    """Leave the model to the program or the checkpoint; its dropout, where it has any, is that of the `source`."""
    for field in TransformerSpec.model_fields:
        export.sets(f"model.{field}")
    export.supports(limits)
    export.supports({"training.tokens": ("as many steps as the program does", None)}, "otherwise")
    export.sets("training.dropout", differs=f"of the {source}" if export.job.question.dropout else "")


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "layout.order": ("its order is tp-cp-dp-pp", "tp-cp-dp-pp"),
    "layout.ring": ("it fetches one block ahead", Layout.model_fields["ring"].default),
    "layout.overlap": ("it always fetches and scatters behind compute", None),
    "training.gradient_dtype": ("it reduces in the precision of compute", None, "bf16"),
    "training.state_dtype": ("its states are fp32", "fp32"),
    "training.moment_dtype": ("its moments are fp32", None, "fp32"),
}
"""Fields of which trainers over FSDP2 support some values alone: the reason, and the values."""
FACTS = "selective_drops"
"""Fact of the software stack that cannot matter: they recompute whole blocks."""


def export_job(export: JobExport, table: str) -> None:
    """Set what all trainers over FSDP2 express alike, by the names in the trainer's table of arguments."""
    paths = table_of(table).spelled("role")
    export_program(export, _LIMITS, "model's config")
    export.sets("layout.zero", sharding(export.job, table))
    export_recompute(export, {paths["recompute"]: True})
    export.sets("layout.offload", {paths["offload"]: True}, when=any(export.job.layout.offload))


def read_sharded(
    settings: Settings, model: TransformerSpec, options: ReadOptions, job: dict[str, Any], fsdp: bool
) -> Reading:
    """Read a trainer's file without DeepSpeed, on the user's number of GPUs or else the product of its mesh sizes.

    `job` are fields of the training job besides its batch, of the layout `mbs` and `context`, and the number of `steps`
    that accumulate a batch; without `fsdp` every rank holds all weights.

    Raises:
        InputError: sizes that contradict one another, or are not said.
    """
    paths = settings.table.spelled("role")
    mbs, steps, context = (job.pop(name) for name in ("mbs", "steps", "context"))
    tp, cp, replicas = (settings.integer(paths[role]) for role in ("tp", "cp", "replicate"))
    ep = settings.integer(paths["ep"]) if "ep" in paths else 1
    settings.read |= {paths[role] for role in ("wrap", "version", "strategy", "reshard", "offload")}
    if not fsdp and tp * cp > 1:
        raise InputError(f"tp{tp} × cp{cp} of the file needs FSDP")
    ranks, shard = tp * cp * ep * replicas, settings.integer(paths["shard"], None)
    if (gpus := options.gpus or (shard and ranks * shard)) is None:
        missing = [Problem("--gpus", "missing")]
        raise InputError("the file does not say all", problems=missing, hint="--gpus 8 says it")
    shard = shard or max(gpus // ranks, 1)
    is_first = fsdp and int(settings.get(paths["version"])) == 1
    strategy = paths["strategy" if is_first and paths["strategy"] in settings.values else "reshard"]
    stage, _, scope = settings.plan_value(strategy).partition("/") if fsdp else ("0", "", "")
    zero = int(stage)
    same = f"FSDP 1 takes as long, and as much memory, as FSDP 2 with the same layout (zero{zero})"
    settings.assume(same, when=is_first)
    if fsdp and not zero and tp * cp > 1:
        raise InputError(f"tp{tp} × cp{cp} of the file needs FSDP that shards", hint="fsdp_version: 2")
    if scope and not shard % options.node:
        shard, replicas = options.node, replicas * (shard // options.node)
    if tp * cp * ep * replicas * shard != gpus:
        experts = f" × ep{ep}" if ep > 1 else ""
        raise InputError(f"{gpus} GPUs are not tp{tp} × cp{cp}{experts} × {replicas} × {shard} of the file")
    if ep > 1 and shard > 1:
        copies = f"there over {shard}, in {ep} copies"
        settings.assume(f"what is no expert is sharded over all {ep * shard} ranks; {copies}")
    stack = load_stack(options.stack or FSDP2)
    layout = Layout(
        tp=tp,
        cp=cp,
        dp=replicas * shard * ep,
        ep=ep,
        mbs=mbs,
        zero=zero,
        shard=shard * ep * cp if zero else None,
        context=None if context == stack.context_parallel else context,
        recompute=(settings.plan_value(paths["recompute"]),),
        offload=Offload(streamed=EVERY) if settings.get(paths["offload"]) and fsdp else Offload(),
        layers=(model.num_layers,),
    )
    training = TrainingSpec(global_batch=mbs * steps * layout.dp, **job)
    return Reading(model, training, layout, stack, tuple(settings.assumed))


def with_fused_loss(stack: StackSpec) -> StackSpec:
    """Copy of the stack with a loss that never holds all logits, as Liger's and cut cross-entropy."""
    return stack.model_copy(update={"loss_chunk": load_stack(FUSED_LOSS).loss_chunk})
