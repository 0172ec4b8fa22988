"""DeepSpeed 0.19.8: export of a plan to the JSON that `deepspeed.initialize(config=..)` takes, and import
from it.

The model is the program's. Sources: DeepSpeed 0.19.8: deepspeed/runtime/config.py, runtime/constants.py,
runtime/zero/config.py, runtime/zero/offload_config.py, runtime/tensor_parallel/config.py, runtime/precision_config.py,
module_inject/auto_ep_config.py; for values of `auto`: transformers' integrations/deepspeed.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.exporter import Job, JobExport, Target, Written, nested
from planner.formats.settings import Reading, ReadOptions, Settings, by_path, settings_of, table_of

PRECISIONS = ("bf16", "fp16", "fp32")
OTHER_PRECISION = "it trains in bf16, fp16 or fp32"


def export_program(export: JobExport, limits: Mapping[str, tuple[Any, ...]], source: str) -> None:
    """Record that the plan fields which the training program or the checkpoint determines, such as the
    model's, need no settings. Messages name `source` as the origin of the dropout."""
    for field in TransformerSpec.model_fields:
        export.sets(f"model.{field}")
    export.supports(limits)
    export.supports({"training.tokens": ("as many steps as the program does", None)}, "otherwise")
    export.sets("training.dropout", differs=f"of the {source}" if export.job.question.dropout else "")


def export_recompute(export: JobExport, settings: Mapping[str, Any], differs: str = "") -> None:
    """Export full recompute of every block as `settings`, and no recompute without settings; report any other
    policy as one that the trainer lacks."""
    policies = export.job.layout.policies
    export.sets("layout.recompute", settings, differs=differs, when=policies == ("full",))
    reason = "it recomputes whole blocks, of all or of none"
    export.lacks("layout.recompute", reason, when=policies not in (("full",), ("none",)))


_ZERO = "zero_optimization"
_OPTIMIZER = f"{_ZERO}.offload_optimizer"
_BUCKETS = (f"{_ZERO}.reduce_bucket_size", f"{_ZERO}.allgather_bucket_size")
_PIPELINES = (f"{_OPTIMIZER}.pipeline_read", f"{_OPTIMIZER}.pipeline_write")
_DRIVE = "/local/nvme"
"""Mount point of drives, for the user to change."""


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "layout.sp": ("its tensor ranks have whole sequences", False),
    "layout.order": ("its order is tp-cp-dp-pp", "tp-cp-dp-pp"),
}
"""Reason and supported values of each plan field for which DeepSpeed does not support all values, by field."""
_IN_BF16 = ("master_weights_and_grads", "optimizer_states")
_NAMES = ("AdamW", "SGD", "Lamb")
_OPTIMIZERS = {name.lower(): {"optimizer.type": name, "optimizer.params.lr": 3e-4} for name in _NAMES}
FACTS = "gradient_dtype overlap_gradient_reduce collective_buffers update_group selective_drops drive"
"""Facts of the software stack that settings switch, with those of the job and the layout: what `gradient_dtype` is and
what overlaps; it recomputes whole blocks."""


def _export(export: JobExport) -> None:
    """Export the fields that the table of arguments does not write."""
    job, layout, training = export.job, export.job.layout, export.job.training
    export_program(export, _LIMITS, "program's model")
    _export_layout(export)
    export.sets("training.sequence_length", differs="what the program feeds it")
    precisions: dict[str, Written] = {one: {f"{one}.enabled": True} for one in ("bf16", "fp16")}
    export.choose("training.precision", training.precision, precisions | {"fp32": {}}, OTHER_PRECISION)
    export.choose("training.optimizer", training.optimizer, _OPTIMIZERS, f"it has no {training.optimizer}")
    in_fp32 = (training.gradient_dtype or job.stack.gradient_dtype) == "fp32"
    sums = {"data_types.grad_accum_dtype": "fp32" if in_fp32 else training.precision}
    export.sets("training.gradient_dtype", sums, when=training.precision in precisions)
    narrow, path = training.state_dtype != "fp32", "training.state_dtype"
    export.sets(path, {f"bf16.bf16_{one}": True for one in _IN_BF16}, when=narrow)
    lacks_states = narrow and (layout.zero == 0 or training.precision != "bf16")
    export.lacks(path, "it keeps all states in bf16 from zero1 on, beside bf16 weights", when=lacks_states)
    differs = training.moment_dtype not in (None, training.state_dtype)
    export.lacks("training.moment_dtype", "its moments have the type of its master weights", when=differs)
    size, group, drive = job.stack.collective_buffers, job.stack.update_group, job.stack.drive
    # one bucket to reduce and one to gather, of two bytes each
    buckets = dict.fromkeys(_BUCKETS, int((size or 0) / 4))
    export.sets("stack.collective_buffers", buckets, when=size is not None and layout.zero)
    groups = {f"{_ZERO}.sub_group_size": group}
    export.sets("stack.update_group", groups, when=group is not None and layout.zero == 3)
    pipelines = dict.fromkeys(_PIPELINES, drive.overlaps)
    buffers = {f"{_OPTIMIZER}.buffer_count": drive.buffers}
    export.sets("stack.drive", buffers | pipelines, when=layout.offload.drive)


def _export_layout(export: JobExport) -> None:
    """Export the fields of the layout that the table of arguments does not write."""
    job, layout = export.job, export.job.layout
    steps = layout.microbatches(job.training.global_batch)
    export.sets("layout.mbs", train_micro_batch_size_per_gpu=layout.mbs, gradient_accumulation_steps=steps)
    if layout.pp > 1:
        difference = f"the program's model is a `PipelineModule` with `num_stages={layout.pp}`"
        export.sets("layout.pp", {"pipeline.stages": layout.pp}, differs=difference)
        export_recompute(export, {"pipeline.activation_checkpoint_interval": 1})
        export.sets("layout.layers", {"pipeline.partition": "uniform"})
        uneven = len(set(layout.layers)) > 1
        export.lacks("layout.layers", "it divides blocks evenly, by parameters or by type", when=uneven)
    else:
        difference = "the program turns it on, as `model.gradient_checkpointing_enable()`"
        export_recompute(export, {"activation_checkpointing.partition_activations": False}, difference)
    context = {"sequence_parallel_size": layout.cp, "data_parallel_size": layout.dp}
    export.sets("layout.cp", context, when=layout.cp > 1)
    experts = {"enabled": True, "autoep_size": layout.ep, "expert_tensor_parallel_size": layout.expert_tp}
    parallel = {f"expert_parallel.{name}": value for name, value in experts.items()}
    export.sets("layout.ep", parallel, when=job.model.has_experts and layout.ep > 1)
    apart = job.model.has_experts and layout.ep == 1 and layout.expert_tp != layout.tp
    export.lacks("layout.etp", "without `ep` it splits experts as the rest", when=apart)
    # a single replica that offloads gets ZeRO-3, which then shards nothing
    stage = 3 if layout.data_ranks == 1 and any(layout.offload) else layout.zero
    export.sets("layout.zero", {f"{_ZERO}.stage": stage})
    choices: dict[str, Written] = {"": {}, "all-to-all": {}}
    export.choose("layout.context", job.context, choices, "its context ranks trade heads")
    overlap = layout.overlap
    overlaps = job.stack.overlap_gradient_reduce if overlap is None else "dp" in overlap
    export.sets("layout.overlap", {f"{_ZERO}.overlap_comm": overlaps}, when=layout.zero)
    waits = overlap is not None and layout.pp > 1 and "pp" not in overlap
    export.lacks("layout.overlap", "its stages always send behind compute", when=waits)
    if any(offload := layout.offload):
        settings: dict[str, Any] = {f"{_OPTIMIZER}.device": "nvme" if offload.drive else "cpu"}
        settings |= {f"{_OPTIMIZER}.nvme_path": _DRIVE} if offload.drive else {}
        settings |= {f"{_ZERO}.offload_param.device": "cpu"} if offload.streamed else {}
        is_share = not offload.streamed and offload.states < EVERY
        if is_share:
            settings[f"{_OPTIMIZER}.ratio"] = round(offload.states / min(layout.layers), 6)
        export.sets("layout.offload", settings, differs="a share of a rank's parameters" * is_share)


def _file(job: Job, settings: Written, name: str) -> tuple[str, ...]:
    """Texts of the export: the JSON file first, then remarks on its use."""
    layout = job.layout
    degrees = {"tp": layout.tp, "ep": layout.ep}
    split = " and ".join(f"{axis}{degree}" for axis, degree in degrees.items() if degree > 1)
    how = f"; it splits a Hugging Face model for {split} by itself" if split else ""
    return (
        json.dumps(nested(settings), indent=2) + "\n",
        f"the model (`{job.model.name}`), its data and sequences of {job.training.sequence_length:,} are your "
        f"program's{how}",
        f"use it as deepspeed.initialize(model=.., config='ds.json'), with {layout.num_gpus:,} processes",
        *([f"drives are taken to be mounted at {_DRIVE}"] if layout.offload.drive else []),
    )


TARGET = Target("deepspeed", "DeepSpeed 0.19.8", _export, FACTS, _file)


_NARROW = ("bf16.enabled", "fp16.enabled")
_BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_deepspeed(document: Mapping[str, Any], model: TransformerSpec, options: ReadOptions) -> Reading:
    """Read a DeepSpeed configuration file as training job, layout and stack of the given model.

    Raises:
        InputError: settings contradict one another, or are the program's to fill in (`auto`).
    """
    settings = _fill_in(document, options.also, model)
    base = load_stack(options.stack or "deepspeed")
    layout = _layout_of(settings, model, options.gpus)
    training = _training_of(settings, layout, options.sequence, base)
    stack = base.model_copy(update=_facts_of(settings, layout, base))
    return Reading(model, training, layout, stack, (*settings.unread(), *settings.assumed))


def _fill_in(document: Mapping[str, Any], program: Mapping[str, Any], model: TransformerSpec) -> Settings:
    """Settings of a DeepSpeed file, completed by those of the training program; `auto` is removed if it does
    not affect the step.

    Raises:
        InputError: the program's contradict the file's, or nothing fills one in.
    """
    table, unfilled = table_of("deepspeed"), list[Problem]()
    spelled = table.spelled("earlier")
    filled = {path: one for path, one in by_path(document) if one != "auto"}
    settings = settings_of(filled, program, table=table)
    auto = {spelled.get(path, path) for path, value in by_path(document) if value == "auto"}
    for path in sorted(auto - settings.values.keys()):
        if path == _BUCKETS[0]:
            settings.values[path] = model.hidden_size**2
        elif path in _NARROW and not any(settings.values.get(other) for other in _NARROW):
            settings.values[path] = True
            settings.assume(f"`{path}: true`, which the file leaves to the program: --also {path}=false")
        elif path in table.arguments and path not in (*_BATCHES, *_NARROW, "pipeline.stages"):
            unfilled.append(Problem(path, "`auto` is filled in when the program starts"))
        elif table.fate(path) is None and path not in table.arguments:
            settings.values[path] = "auto"
    if unfilled:
        hint = f'--also "{unfilled[0].where}=VALUE" says it'
        raise InputError("the file leaves values to the program", problems=unfilled, hint=hint)
    return settings


def _layout_of(settings: Settings, model: TransformerSpec, gpus: int | None) -> Layout:
    """Parallel layout that the settings describe, on `gpus` GPUs or else on the number that follows from the
    batch."""
    tp, cp = settings.integer("tensor_parallel.autotp_size"), settings.integer("sequence_parallel_size")
    pp, ep = settings.integer("pipeline.stages"), settings.integer("expert_parallel.autoep_size")
    if gpus is None:
        batch, mbs, steps = (settings.integer(name) for name in _BATCHES)
        if None in (batch, mbs, steps):
            raise InputError("the file does not say all", problems=[Problem("--gpus", "missing")])
        gpus = tp * pp * cp * batch // (mbs * steps)
    if gpus < 1 or gpus % (tp * pp * cp):
        raise InputError(f"{gpus} GPUs do not divide by tp{tp} × pp{pp} × cp{cp} of the file")
    dp = gpus // (tp * pp * cp)
    degrees = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": ep, "mbs": _batches(settings, dp)[1]}
    blocks, remainder = divmod(model.num_layers, pp)
    return Layout(
        **degrees,
        zero=settings.get(f"{_ZERO}.stage"),
        recompute=("full" if _recomputes_blocks(settings, pp) else "none",),
        offload=_offload_of(settings, blocks),
        etp=settings.integer("expert_parallel.expert_tensor_parallel_size") if ep > 1 else None,
        layers=() if remainder else (blocks,) * pp,
    )


def _batches(settings: Settings, dp: int) -> tuple[int, int, int]:
    """Global batch, microbatch size and accumulation steps; a missing number is computed from the two others."""
    batch, mbs, steps = (settings.integer(name) for name in _BATCHES)
    if batch is None and mbs is None:
        hint = f'--also "{_BATCHES[1]}=1" says it'
        raise InputError(f"the file says neither `{_BATCHES[0]}` nor `{_BATCHES[1]}`", hint=hint)
    steps = steps or (1 if batch is None or mbs is None else max(1, batch // (mbs * dp)))
    mbs = mbs or max(1, batch // (steps * dp))
    batch = batch or mbs * steps * dp
    if batch != mbs * steps * dp:
        written = {name: settings.get(name) for name in _BATCHES}
        words = ", ".join(f"`{name}: {value}`" for name, value in written.items() if value is not None)
        hint = "the first is the product of all others"
        raise InputError(f"{words} contradict one another with dp{dp}", hint=hint)
    return batch, mbs, steps


def _recomputes_blocks(settings: Settings, pp: int) -> bool:
    """Whether every block is recomputed; if the file does not decide it, an assumption is recorded."""
    program = settings.get("gradient_checkpointing", None)
    interval = settings.get("pipeline.activation_checkpoint_interval")
    if pp > 1 or program is not None:
        return bool(interval if pp > 1 else program)
    mentioned = any(path.startswith("activation_checkpointing") for path in settings.values)
    policy, article = ("every block is recomputed", "an") if mentioned else ("nothing is recomputed", "no")
    settings.assume(f"{policy}: the program decides, the file has {article} `activation_checkpointing`")
    return mentioned


def _offload_of(settings: Settings, blocks: int) -> Offload:
    """Offload of optimizer states and weights to host memory or drive that the settings describe."""

    def device(part: str, earlier: str) -> Any:
        """Device to which a part is offloaded ("cpu" or "nvme"); None if it is not offloaded."""
        name = "cpu" if settings.get(f"{_ZERO}.{earlier}") else settings.get(f"{_ZERO}.{part}.device")
        if name not in ("none", None, "cpu", "nvme"):
            raise InputError(f"`device: {name}` is not known here")
        return name if name != "none" else None

    optimizer = device("offload_optimizer", "cpu_offload")
    weights = device("offload_param", "cpu_offload_param") if settings.get(f"{_ZERO}.stage") == 3 else None
    if weights == "nvme":
        raise InputError("weights on a drive are not priced here", hint="`offload_param` to cpu is")
    if weights and not optimizer:
        message = "weights on the host and states on the device are not priced here"
        raise InputError(message, hint="`offload_optimizer` to cpu is")
    drive = EVERY if optimizer == "nvme" else 0
    if weights or not optimizer:
        return Offload(streamed=EVERY if weights else 0, drive=drive)
    share = settings.get(f"{_OPTIMIZER}.ratio")
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"`ratio: {share}` is no share")
    return Offload(states=EVERY if share >= 1 else round(share * blocks), drive=drive)


def _training_of(settings: Settings, layout: Layout, sequence: int, stack: StackSpec) -> TrainingSpec:
    """Training job that the settings describe."""
    path = "optim" if settings.get("optim") and "optimizer.type" not in settings.values else "optimizer.type"
    settings.assume("AdamW: the file names no optimizer", when=path not in settings.values)
    narrow = [one for one in ("bf16", "fp16") if settings.get(f"{one}.enabled")]
    if len(narrow) > 1:
        raise InputError("`bf16.enabled` contradicts `fp16.enabled`")
    settings.assume("fp32: neither `bf16` nor `fp16` is enabled", when=not narrow)
    dtype = settings.get("data_types.grad_accum_dtype")
    gradients = None if dtype is None else "fp32" if dtype == "fp32" else "bf16"
    # the second has no effect without the first
    in_bf16 = all(settings.get(f"bf16.bf16_{one}") for one in _IN_BF16)
    fields: dict[str, Any] = {"global_batch": _batches(settings, layout.dp)[0], "sequence_length": sequence}
    fields |= {"precision": narrow[0] if narrow else "fp32", "optimizer": settings.plan_value(path)}
    fields["gradient_dtype"] = None if gradients == stack.gradient_dtype else gradients
    fields["state_dtype"] = "bf16" if in_bf16 else "fp32"
    return TrainingSpec(**fields)


def _facts_of(settings: Settings, layout: Layout, stack: StackSpec) -> dict[str, Any]:
    """Fields of the software stack that a DeepSpeed file changes, with their values. ZeRO-3 overlaps by
    default (zero/config.py)."""
    if not layout.zero:
        return {}
    overlaps = settings.get(f"{_ZERO}.overlap_comm", layout.zero == 3)
    facts: dict[str, Any] = {"overlap_gradient_reduce": overlaps}
    sizes = [settings.integer(bucket, None) or settings.default_of(bucket) for bucket in _BUCKETS]
    if any(settings.get(bucket, None) for bucket in _BUCKETS):
        facts["collective_buffers"] = 2.0 * sum(sizes)  # of two bytes an element
    if layout.zero == 3 and (group := settings.integer(f"{_ZERO}.sub_group_size", None)):
        facts["update_group"] = group
    if layout.offload.drive:
        overlaps = [settings.get(path) for path in _PIPELINES]
        drive = {"buffers": settings.integer(f"{_OPTIMIZER}.buffer_count"), "overlaps": all(overlaps)}
        facts["drive"] = stack.drive.model_copy(update=drive)
    return facts
