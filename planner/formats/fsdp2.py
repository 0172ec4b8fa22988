"""Trainers on PyTorch's `fully_shard` (FSDP2): export of a plan to the YAML of `accelerate launch
--config_file` or `axolotl train` under FSDP, and import from it, under FSDP or DeepSpeed.

accelerate leaves model, sequence and batch to the program. Sources: accelerate 1.15.0: commands/config/config_args.py
(ClusterConfig), commands/launch.py, parallelism_config.py, utils/dataclasses.py (FullyShardedDataParallelPlugin,
DeepSpeedPlugin), utils/fsdp_utils.py (fsdp2_prepare_model); transformers' TrainingArguments; axolotl 0.18.0:
src/axolotl/utils/schemas/config.py, fsdp.py, peft.py, training.py, validation.py, loaders/adapter.py, loaders/model.py
(nf4 with scales quantised once more), integrations/liger/args.py, integrations/cut_cross_entropy/args.py,
integrations/expert_parallel/plugin.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.operators.parameters import target_names
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.deepspeed import (
    OTHER_PRECISION,
    PRECISIONS,
    export_program,
    export_recompute,
    read_deepspeed,
)
from planner.formats.exporter import Job, JobExport, Target, nested
from planner.formats.settings import Reading, ReadOptions, Settings, settings_of, table_of
from planner.formats.torchrun import torchrun_by_hand
from planner.formats.trainers import FSDP2, FUSED_LOSS


def _is_sharded(job: Job) -> bool:
    """Whether the job runs under FSDP; otherwise each rank has all weights, alone or under
    DistributedDataParallel."""
    return job.layout.zero > 0 or job.layout.tp > 1 or any(job.layout.offload)


def _sharding(job: Job, table: str) -> dict[str, Any]:
    """FSDP settings of a job (version, resharding after forward, mesh sizes) by the names in the trainer's
    table of arguments; empty without FSDP."""
    if not _is_sharded(job):
        return {}
    layout = job.layout
    settings = {"version": 2, "reshard": layout.zero in (0, 3), "wrap": "TRANSFORMER_BASED_WRAP"}
    shard = max(layout.shard_group // layout.cp, 1)
    replicas = layout.dp // shard
    if layout.tp * layout.cp * replicas > 1:
        settings |= {"shard": shard, "replicate": replicas, "tp": layout.tp, "cp": layout.cp}
    paths = table_of(table).spelled("role")
    return {paths[role]: value for role, value in settings.items()}


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "layout.order": ("its order is tp-cp-dp-pp", "tp-cp-dp-pp"),
    "layout.ring": ("it fetches one block ahead", Layout.model_fields["ring"].default),
    "layout.overlap": ("it always fetches and scatters behind compute", None),
    "training.gradient_dtype": ("it reduces in the precision of compute", None, "bf16"),
    "training.state_dtype": ("its states are fp32", "fp32"),
    "training.moment_dtype": ("its moments are fp32", None, "fp32"),
}
"""Reason and supported values of each plan field for which FSDP2 trainers do not support all values, by field."""
FACTS = "selective_drops"
"""Fact of the software stack without effect, as these trainers recompute whole blocks."""


def _export_job(export: JobExport, table: str) -> None:
    """Export the fields that all FSDP2 trainers express alike, by the names in the trainer's table of
    arguments."""
    paths = table_of(table).spelled("role")
    export_program(export, _LIMITS, "model's config")
    export.sets("layout.zero", _sharding(export.job, table))
    export_recompute(export, {paths["recompute"]: True})
    export.sets("layout.offload", {paths["offload"]: True}, when=any(export.job.layout.offload))


def _read_sharded(
    settings: Settings, model: TransformerSpec, options: ReadOptions, fsdp: bool, context: Any, **job: Any
) -> Reading:
    """Read a trainer's file that does not use DeepSpeed as model, training job, layout and stack. The
    number of GPUs is the user's, or else the product of the file's mesh sizes.

    Without `fsdp` every rank holds all weights; `context` is the kind of context parallelism; `job` has `mbs`, the
    `steps` that accumulate a batch, and fields of the training job.

    Raises:
        InputError: sizes that contradict one another, or are not said.
    """
    paths = settings.table.spelled("role")
    mbs, steps = job.pop("mbs"), job.pop("steps")
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
    version = str(settings.get(paths["version"]))
    if fsdp and version not in ("1", "2"):
        raise InputError(f"`{paths['version']}: {printable(version)}` is not known here", hint="1 and 2 are")
    is_first = fsdp and version == "1"
    strategy = paths["strategy" if is_first and paths["strategy"] in settings.values else "reshard"]
    stage, _, scope = settings.plan_value(strategy).partition("/") if fsdp else ("0", "", "")
    zero = int(stage)
    remark = f"FSDP 1 takes as long, and as much memory, as FSDP 2 with the same layout (zero{zero})"
    settings.assume(remark, when=is_first)
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
    degrees = {"tp": tp, "cp": cp, "dp": replicas * shard * ep, "ep": ep, "mbs": mbs, "zero": zero}
    layout = Layout(
        **degrees,
        shard=shard * ep * cp if zero else None,
        context=None if context == stack.context_parallel else context,
        recompute=(settings.plan_value(paths["recompute"]),),
        offload=Offload(streamed=EVERY) if settings.get(paths["offload"]) and fsdp else Offload(),
        layers=(model.num_layers,),
    )
    training = TrainingSpec(global_batch=mbs * steps * layout.dp, **job)
    return Reading(model, training, layout, stack, tuple(settings.assumed))


def _with_fused_loss(stack: StackSpec) -> StackSpec:
    """Copy of the stack with a loss that never stores all logits, such as Liger's and cut cross-entropy."""
    return stack.model_copy(update={"loss_chunk": load_stack(FUSED_LOSS).loss_chunk})


STRATEGY = "parallelism_config.parallelism_config_cp_comm_strategy"
MBS, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
CHECKPOINTING = "gradient_checkpointing"
"""Arguments of programs over the Hugging Face Trainer."""


def _export_accelerate(export: JobExport) -> None:
    """Export the fields that accelerate's table of arguments does not write."""
    job, layout = export.job, export.job.layout
    _export_job(export, "accelerate")
    under_fsdp, gpus, nodes = _is_sharded(job), layout.num_gpus, job.question.cluster.nodes
    kind = "MULTI_GPU" if gpus > 1 else "NO"
    started = {"distributed_type": "FSDP" if under_fsdp else kind, "num_processes": gpus}
    export.sets("layout.zero", started | {"num_machines": nodes} | _sharding(job, "accelerate"))
    ways = {"": {}, "all-gather": {STRATEGY: "allgather"}, "ring": {STRATEGY: "alltoall"}}
    export.choose("layout.context", job.context, ways, "its context ranks pass keys or gather them")
    if not under_fsdp:
        export_recompute(export, {}, f"without FSDP `--{CHECKPOINTING} true` of the program turns it on")
    steps = layout.microbatches(job.training.global_batch)
    export.sets("layout.mbs", differs=f"`--{MBS} {layout.mbs}` of the program")
    export.sets("training.global_batch", differs=f"`--{STEPS} {steps}` of the program")
    export.sets("training.sequence_length", differs="what the program feeds it")
    export.sets("training.optimizer", differs="the program's")
    precisions = {name: {"mixed_precision": "no" if name == "fp32" else name} for name in PRECISIONS}
    export.choose("training.precision", job.training.precision, precisions, OTHER_PRECISION)


def _accelerate_file(job: Job, settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Text of the YAML file, and the command that starts a program on the Hugging Face Trainer with it.
    Arguments of the program set microbatch, accumulation and, without FSDP, recompute."""
    steps = job.layout.microbatches(job.training.global_batch)
    recomputes = not _is_sharded(job) and job.layout.recompute != ("none",)
    words = f"--{MBS} {job.layout.mbs} --{STEPS} {steps}" + f" --{CHECKPOINTING} true" * recomputes
    command = f"accelerate launch --config_file accelerate.yaml train.py {words}"
    written = {"compute_environment": "LOCAL_MACHINE", **nested(settings)}
    text = f"# {command}\n{yaml.safe_dump(written, sort_keys=False)}"
    several = ", --machine_rank and --main_process_ip on every node" if job.question.cluster.nodes > 1 else ""
    length = job.training.sequence_length
    yours = f"the model (`{job.model.name}`) and sequences of {length:,} are your program's"
    return (text, f"use it as {command}{several}", yours)


ACCELERATE = Target("accelerate", "accelerate 1.15.0", _export_accelerate, FACTS, _accelerate_file)
_DEEPSPEED, _ZERO_STAGE = "deepspeed_config", 2
"""Setting with DeepSpeed's own file, and DeepSpeedPlugin's default ZeRO stage."""


def read_accelerate(document: Mapping[str, Any], model: TransformerSpec, options: ReadOptions) -> Reading:
    """Read an Accelerate configuration file as model, training job, layout and stack.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    settings = settings_of(dict(document) | {_DEEPSPEED: None} | options.also, table=table_of("accelerate"))
    kind, processes = settings.plan_value("distributed_type"), settings.integer("num_processes")
    gpus = options.gpus or processes or 1
    if processes and gpus != processes:
        raise InputError(f"{gpus} GPUs contradict `num_processes: {processes}`", hint="leave out --gpus")
    if kind == "NO" and gpus > 1:
        raise InputError(f"`distributed_type: NO` with {gpus} processes", hint="MULTI_GPU or FSDP share them")
    fp16, bf16, precision = settings.get("fp16"), settings.get("bf16"), settings.plan_value("mixed_precision")
    precision = "bf16" if bf16 else "fp16" if fp16 else precision
    inner = dict(document.get(_DEEPSPEED) or {})
    inner |= {} if "zero_optimization" in inner else {"zero_stage": inner.get("zero_stage", _ZERO_STAGE)}
    steps = settings.integer(STEPS, None) or inner.pop(STEPS, None) or settings.default_of(STEPS)
    mbs = settings.integer(MBS)
    silent = {name: size for name, size in ((MBS, mbs), (STEPS, steps)) if name not in settings.values}
    assumed = [f"`--{name} {size}`: --also says otherwise" for name, size in silent.items()]
    recompute = settings.plan_value("fsdp_config.fsdp_activation_checkpointing")
    optimizer = settings.plan_value("optim")
    if kind != "FSDP":  # accelerate leaves it alone
        settings.read |= {path for path in settings.values if path.startswith("fsdp_config.")}
    options = replace(options, gpus=gpus, node=max(gpus // settings.integer("num_machines"), 1))
    if kind == "DEEPSPEED":
        program = {"train_micro_batch_size_per_gpu": mbs, STEPS: steps, CHECKPOINTING: recompute == "full"}
        program |= {} if precision == "fp32" else {f"{precision}.enabled": True}
        program |= {name: value for name, value in settings.values.items() if name == "optim"}
        run = read_deepspeed(inner, model, replace(options, also=program))
    else:
        job = {"sequence_length": options.sequence, "precision": precision, "optimizer": optimizer}
        job |= {"mbs": mbs, "steps": steps, "context": settings.plan_value(STRATEGY)}
        run = _read_sharded(settings, model, options, kind == "FSDP", **job)
    stack = _with_fused_loss(run.stack) if settings.get("use_liger_kernel") else run.stack
    unnamed = kind != "DEEPSPEED" and "optim" not in settings.values
    assumed += [*run.assumptions, *["AdamW: the file names no optimizer"] * unnamed]
    return replace(run, stack=stack, assumptions=(*settings.unread(), *assumed))


def _export_axolotl(export: JobExport) -> None:
    """Export the fields that Axolotl's table of arguments does not write."""
    job, training = export.job, export.job.training
    _export_job(export, "axolotl")
    rings = {"": {}, "ring": {"ring_attn_func": "batch_ring"}}
    export.choose("layout.context", job.context, rings, "its context ranks pass keys in a ring")
    steps = job.layout.microbatches(training.global_batch)
    export.sets("training.global_batch", gradient_accumulation_steps=steps)
    precisions = {"bf16": {"bf16": True}, "fp16": {"fp16": True}, "fp32": {"bf16": False}}
    export.choose("training.precision", training.precision, precisions, OTHER_PRECISION)
    if training.tuning is not None:
        _export_adapters(export, training.tuning)


def _export_adapters(export: JobExport, tuning: TuningSpec) -> None:
    """Export the adapters (LoRA) of a training job."""
    path, alpha = "training.tuning", tuning.scale * tuning.rank
    settings: dict[str, Any] = {"adapter": "qlora" if tuning.base == "nf4" else "lora", "lora_r": tuning.rank}
    settings["lora_alpha"] = int(alpha) if alpha == int(alpha) else alpha
    settings["lora_dropout"] = tuning.dropout
    if tuning.base:
        settings["load_in_4bit" if tuning.base == "nf4" else "load_in_8bit"] = True
    if "all-linear" in tuning.targets:
        difference = "on routers, too" if export.job.model.has_experts else ""
        export.sets(path, settings, differs=difference, lora_target_linear=True)
    elif "experts" in (targets := target_names(tuning)):
        export.lacks(path, "its adapters beside experts alone are named by the model")
    else:
        names = sorted(table_of("axolotl").arguments["lora_target_modules"].values[name] for name in targets)
        export.sets(path, settings, differs="modules have the names of Llama's", lora_target_modules=names)


def _axolotl_file(job: Job, settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Text of the YAML file, and the command that trains with it, which the user has to complete."""
    data = [{"path": "data.jsonl", "type": "completion"}]
    defaults: dict[str, Any] = {"base_model": f"./{job.model.name}", "datasets": data, "output_dir": "./out"}
    defaults |= {"attn_implementation": "flash_attention_2", "learning_rate": 2e-5, "num_epochs": 1}
    launcher = "axolotl train axolotl.yaml --launcher torchrun --"
    command = torchrun_by_hand(job).replace("torchrun", launcher, 1)
    text = f"# {command}\n{yaml.safe_dump(defaults | nested(settings), sort_keys=False)}"
    yours = "`base_model`, `datasets` and `output_dir` are yours to set: name the checkpoint and its data"
    return (text, yours, f"use it as {command}")


AXOLOTL = Target("axolotl", "axolotl 0.18.0", _export_axolotl, FACTS, _axolotl_file)
_FSDP, _PREFIX = "fsdp_config", "fsdp_"
_FULL = "sequences are full: packed, or cut to `sequence_len`"
_CUTS = "cut_cross_entropy"


def read_axolotl(document: Mapping[str, Any], model: TransformerSpec, options: ReadOptions) -> Reading:
    """Read an Axolotl configuration file as training job, layout and stack of the given model.

    Raises:
        InputError: settings contradict one another, or are not priced here.
    """
    settings = settings_of(_with_current_names(document) | options.also, table=table_of("axolotl"))
    if rl := settings.get("rl"):
        raise InputError(f"`rl: {rl}` is not read here", hint="--task dpo of plan prices preferences")
    mbs, total = settings.integer("micro_batch_size"), settings.integer("batch_size")
    steps = settings.integer("gradient_accumulation_steps", None) or max(1, (total or mbs) // mbs)
    fp16, bf16, cuts = settings.get("fp16") is True, settings.get("bf16"), settings.get(_CUTS) is not False
    precision = "fp16" if fp16 else "bf16" if bf16 else "fp32"
    sequence, tuning = settings.integer("sequence_len"), _tuning_of(settings)
    job = {"sequence_length": sequence, "tuning": tuning, "optimizer": settings.plan_value("optimizer")}
    packed, attention = settings.get("sample_packing"), settings.get("attn_implementation")
    plugins = settings.plan_value("plugins")
    context = settings.plan_value("ring_attn_func") or ("all-gather" if packed else "ring")
    fsdp = any(one not in (None, []) for one in [document.get("fsdp"), *(document.get(_FSDP) or {}).values()])
    fused = settings.get("liger_fused_linear_cross_entropy") or (cuts and _CUTS in plugins)
    if config := document.get("deepspeed"):
        program = {"train_micro_batch_size_per_gpu": mbs, "gradient_accumulation_steps": steps}
        program |= {f"{one}.enabled": precision == one for one in ("bf16", "fp16")}
        program["gradient_checkpointing"] = settings.plan_value("gradient_checkpointing") == "full"
        program["tensor_parallel.autotp_size"] = settings.integer("tensor_parallel_size")
        program["optim"] = settings.get("optimizer")
        if settings.integer("context_parallel_size") > 1:
            message = "`context_parallel_size` under DeepSpeed is not priced here"
            raise InputError(message, hint="under FSDP it is")
        run = read_deepspeed(config, model, replace(options, also=program, sequence=sequence))
        run = replace(run, training=run.training.model_copy(update={"tuning": tuning}))
    else:
        job |= {"precision": precision, "mbs": mbs, "steps": steps}
        run = _read_sharded(settings, model, options, fsdp, context, **job)
    stack = run.stack
    if settings.get("eager_attention") or attention == "eager":
        stack = stack.model_copy(update={"attention": "unfused"})
    stack = _with_fused_loss(stack) if fused else stack
    return replace(run, stack=stack, assumptions=(*settings.unread(), _FULL, *run.assumptions))


def _tuning_of(settings: Settings) -> TuningSpec | None:
    """Adapter (LoRA) settings of an Axolotl file; None if all weights are trained."""
    bases = {"nf4": settings.get("load_in_4bit"), "int8": settings.get("load_in_8bit")}
    rank, alpha = (settings.integer(name) for name in ("lora_r", "lora_alpha"))
    linear, dropout = (settings.get(name) for name in ("lora_target_linear", "lora_dropout"))
    modules = settings.plan_value("lora_target_modules")
    if not settings.get("adapter"):
        return None
    adapter = settings.plan_value("adapter")
    if rank is None:
        raise InputError(f"`adapter: {adapter}` needs `lora_r`")
    if not linear and not modules:
        hint = "lora_target_linear or lora_target_modules does"
        raise InputError(f"`adapter: {adapter}` says no modules", hint=hint)
    names = "all-linear" if linear else modules
    targets = (names,) if isinstance(names, str) else tuple(names)
    base = next((base for base, is_set in bases.items() if is_set), None)
    fields = {"rank": rank, "targets": targets, "base": base, "dropout": dropout}
    return TuningSpec(**fields, alpha=None if alpha == rank else alpha)


def _with_current_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Copy of an Axolotl document with older names of FSDP settings (`fsdp_config.fsdp_…`, the list `fsdp` of
    FSDP 1) replaced by current names."""
    renamed = dict(document)
    listed = renamed.pop("fsdp", None) or []
    words = [str(word).lower() for word in (listed.split() if isinstance(listed, str) else listed)]
    inner = {str(key).removeprefix(_PREFIX): value for key, value in (renamed.get(_FSDP) or {}).items()}
    renamed["fsdp_version"] = renamed.get("fsdp_version") or inner.pop("version", None)
    if inner.pop("activation_checkpointing", None):
        renamed["gradient_checkpointing"] = True
    if "offload" in words:
        inner["offload_params"] = True
    for word in words:
        if word not in ("auto_wrap", "offload"):
            inner.setdefault("sharding_strategy", word)
    return renamed | {_FSDP: inner}
