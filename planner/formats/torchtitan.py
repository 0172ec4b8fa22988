"""torchtitan: export of a plan to a module whose `plan()` is a `Trainer.Config`, for `--module` and
`--config`, and import of the run of a recipe on a number of GPUs.

A recipe is a function of a config registry, or a job file in TOML; it is never executed. Sources: torchtitan 0.3.0 and
its main branch of August 2026: torchtitan/config/configs.py, config/manager.py, trainer.py,
models/llama3/config_registry.py, models/{llama3,qwen3,deepseek_v3}/__init__.py, models/common/config_utils.py,
distributed/parallel_dims.py, distributed/pipeline_parallel.py, distributed/activation_checkpoint.py; 0.1 and 0.2:
torchtitan/config/job_config.py, config_manager.py.
"""

from __future__ import annotations

import ast
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from operator import attrgetter
from pathlib import PurePath
from typing import Any

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY, MAX_STAGES
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_model, load_stack
from cost_models.schedules.registry import REGISTRY, schedule_named
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.exporter import Job, JobExport, Target
from planner.formats.python import (
    Call,
    Code,
    Module,
    Unknown,
    built_by,
    call_source,
    module_of,
    module_source,
)
from planner.formats.settings import (
    Reading,
    ReadOptions,
    Settings,
    by_path,
    gpus_of,
    table_of,
    with_current_names,
    without,
)
from planner.formats.torchrun import torchrun_by_hand

Flavour = tuple[str, str]
"""A model that torchtitan ships: its family, a module of `torchtitan.models`, and its name ("flavor") there, a key of
the family's `model_registry`."""
_SHIPPED = {
    "llama3": "1B=llama3.2-1b 3B=llama3.2-3b 8B=llama3.1-8b 70B=llama3.1-70b 405B=llama3.1-405b",
    "qwen3": "0.6B=qwen3-0.6b 1.7B=qwen3-1.7b 4B=qwen3-4b 8B=qwen3-8b 14B=qwen3-14b 32B=qwen3-32b "
    "30B-A3B=qwen3-30b-a3b 235B-A22B=qwen3-235b-a22b",
    "deepseek_v3": "16B=deepseek-v2-lite 236B=deepseek-v2 671B=deepseek-v3",
}
"""Models of each torchtitan family, each with the catalogue's name of the same shape."""
_KERNEL = re.compile(r"_(?:flex|varlen|fused_qkv|non_fused_qkv)(?:_attn)?$")
"""Pattern of endings of names that select a kernel, not a shape."""
_SHAPE = "num_layers hidden_size num_heads num_kv_heads ffn_hidden_size vocab_size"
_SHAPE += " num_experts moe_ffn_hidden_size tied_embeddings"
"""Fields that identify a model."""
_ELSEWHERE = "kind name source changed max_positions left_out load_balance vocab_multiple"
"""Fields of models that are no part of a flavor."""


@cache
def _models() -> dict[Flavour, TransformerSpec]:
    """Spec of each model that torchtitan ships, by family and name; cached."""
    pairs = ((family, *pair.split("=")) for family, listed in _SHIPPED.items() for pair in listed.split())
    models = {(family, size): load_model(name) for family, size, name in pairs}
    sizes = {"num_layers": 6, "hidden_size": 256, "num_heads": 16, "num_kv_heads": 16, "head_dim": 16}
    sizes |= {"ffn_hidden_size": 768, "vocab_size": 2048}
    debug = models["llama3", "8B"].model_copy(update={"name": "llama3-debugmodel", **sizes})
    return {**models, ("llama3", "debugmodel"): debug}


_FULL_NAME = "torchtitan 0.3.0"
_RATE, _MESH = 3e-4, "parallelism"
_POLICIES = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
_SOURCES = dict.fromkeys(("FullAC", "SelectiveAC"), "torchtitan.distributed.activation_checkpoint")
_SOURCES |= {"CrossEntropyLoss": "torchtitan.components.loss", "Trainer": "torchtitan.trainer"}
_SOURCES["default_adamw"] = "torchtitan.components.optimizer"
_SOURCES["HuggingFaceTextDataLoader"] = "torchtitan.hf_datasets.text_datasets"
_SOURCES["decoder_vocab_size"] = "torchtitan.models.common.config_utils"
"""Module from which each name in recipes is imported."""


def stages(layers: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules (`tok_embeddings`, `layers.0`, ...) of every virtual stage, given the number of
    blocks of each."""
    blocks = iter(range(sum(layers)))
    names = [[f"layers.{block}" for block in islice(blocks, count)] for count in layers]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "model.vocab_multiple": ("its vocabulary is not padded", 1),
    "layout.order": ("it seats ranks tp-cp-dp-pp", "tp-cp-dp-pp"),
    "layout.ring": ("it fetches one block ahead", Layout.model_fields["ring"].default),
    "training.optimizer": ("it has Adam and AdamW", "adamw"),
    "training.gradient_dtype": ("it reduces gradients in fp32", None, "fp32"),
    "training.state_dtype": ("it keeps weights and moments in fp32", "fp32"),
    "training.moment_dtype": ("it keeps moments in fp32", None, "fp32"),
}
"""Reason and supported values of each plan field for which torchtitan does not support all values, by field."""
FACTS = "attention compiles_loss experts_in_one_kernel overlap_tensor_parallel"
"""Facts of the software stack that settings switch; the last with the layout's `overlap`."""


def _export(export: JobExport) -> None:
    """Export the fields that the table of arguments does not write."""
    export.supports(_LIMITS)
    _export_model(export)
    _export_layout(export)
    job, training = export.job, export.job.training
    dtypes, path = {"bf16": "bfloat16", "fp32": "float32"}, "training.mixed_precision_param"
    precisions = {name: {"training.dtype": "float32", path: dtype} for name, dtype in dtypes.items()}
    reason = "it trains in bfloat16 or float32 unless its model is converted"
    export.choose("training.precision", training.precision, precisions, reason)
    export.lacks("training.dropout", "its models drop nothing", when=job.question.dropout)
    steps = {"training.steps": max(1, round((training.tokens or 0) / training.tokens_per_step))}
    export.sets("training.tokens", steps, differs="steps", when=training.tokens is not None)
    # varlen calls FlashAttention; context ranks and CPUs have FlexAttention only
    flex = job.layout.cp > 1 or job.question.cluster.gpu.kind == "cpu"
    difference = "FlexAttention" if flex else "FlashAttention over documents"
    export.sets("stack.attention", differs=difference, attention="flex" if flex else "varlen")
    is_flash = job.stack.attention.startswith("flash")
    export.lacks("stack.attention", "its attention is FlexAttention or FlashAttention", when=not is_flash)
    compiled = ["model", "loss"] if job.stack.compiles_loss else ["model"]
    export.sets("stack.compiles_loss", {"compile.components": compiled})
    kernel = "stack.experts_in_one_kernel"
    export.sets(kernel, {"training.disable_cuda_graphs": True})
    export.lacks(kernel, "it captures no part of a step", when=job.stack.experts_in_one_kernel)


def _export_model(export: JobExport) -> None:
    """Export the model as the shipped model (flavor) of the same shape, with the differences between the two."""
    model, shape = export.job.model, attrgetter(*_SHAPE.split())
    same_shape = {flavour: spec for flavour, spec in _models().items() if shape(spec) == shape(model)}
    flavour, spec = next(iter(same_shape.items()), (None, model))
    shipped = " ".join(flavour or ())
    for name in TransformerSpec.model_fields.keys() - _ELSEWHERE.split():
        export.sets(f"model.{name}")
        reason = f"its {shipped} has `{getattr(spec, name)}`"
        export.lacks(f"model.{name}", reason, when=getattr(model, name) != getattr(spec, name))
    reason = "it has no model of this shape; its module `llama3` can be given one by hand"
    export.lacks("model.num_layers", reason, when=flavour is None)
    export.sets("model.name", model=flavour, when=flavour)
    plain = [one.rotary and one.rotary.model_copy(update={"scaling": None}) for one in (model, spec)]
    scales = shipped.startswith("llama3") and plain[0] == plain[1] and model.rotary not in (None, spec.rotary)
    export.sets("model.rotary", differs="its llama3 scales positions as Llama 3.1 does", when=scales)
    unread = model.left_out and (flavour is None or spec.left_out != model.left_out)
    export.lacks("model.left_out", f"nobody read how: {', '.join(model.left_out)}", when=unread)
    difference = "its routers have a bias for each expert, moved towards even loads"
    export.sets("model.load_balance", differs=difference, when=model.has_experts and model.load_balance)


def _export_layout(export: JobExport) -> None:
    """Export the layout fields that the table of arguments does not write."""
    job, layout = export.job, export.job.layout
    export.sets("layout.mbs", {"training.local_batch_size": layout.mbs})
    if layout.pp > 1:
        engine = schedule_named(layout.schedule).engine.removeprefix("Schedule")
        export.sets("layout.schedule", {f"{_MESH}.pipeline_parallel_schedule": engine})
        export.sets("layout.layers", {f"{_MESH}.module_fqns_per_model_part": stages(layout.layers)})
        batch = {"training.local_batch_size": job.training.global_batch // layout.dp}
        batch[f"{_MESH}.pipeline_parallel_microbatch_size"] = layout.mbs
        difference = "a rank's whole share of the batch, which the pipeline cuts"
        export.sets("layout.mbs", batch, differs=difference)
    export.choose("layout.context", job.context, {"": {}, "all-gather": {}}, "its context ranks gather")
    export.sets("layout.recompute", activation_checkpoint=_POLICIES[layout.policies[0]])
    export.lacks("layout.recompute", "it has one policy for all blocks", when=len(layout.policies) > 1)
    export.sets("layout.offload", {"training.enable_cpu_offload": True}, when=any(layout.offload))
    replicas = layout.data_ranks // layout.shard_group if layout.zero else layout.dp
    settings: dict[str, Any] = {f"{_MESH}.data_parallel_replicate_degree": replicas}
    settings[f"{_MESH}.data_parallel_shard_degree"] = layout.shard_group // layout.cp if layout.zero else 1
    keeps_weights = layout.pp > 1 and job.stack.pipelines_keep_weights
    if layout.zero:
        reshards = "default" if keeps_weights else "always"
        settings[f"{_MESH}.fsdp_reshard_after_forward"] = "never" if layout.zero == 2 else reshards
    difference = "in a pipeline it keeps weights that it gathered until the step ends"
    export.sets("layout.zero", settings, differs=difference * (layout.zero == 3 and keeps_weights))
    reason = "it shards weights, gradients and optimizer states together"
    export.lacks("layout.zero", reason, when=layout.zero == 1)
    _export_overlap(export)


def _export_overlap(export: JobExport) -> None:
    """Export the overlap of communication: tensor-parallel communication overlaps in compiled blocks only,
    and all other overlap is always on."""
    layout, stack = export.job.layout, export.job.stack
    overlap, path = layout.overlap, "layout.overlap"
    ranks = {"pp": layout.pp, "dp": layout.data_ranks}
    always = [axis for axis in ranks if overlap is not None and ranks[axis] > 1 and axis not in overlap]
    tensor = stack.overlap_tensor_parallel > 0 if overlap is None else "tp" in overlap
    export.sets(path, {"compile.enable_async_tensor_parallel": True}, when=tensor)
    reason = "it overlaps tensor-parallel communication in compiled blocks only"
    export.lacks(path, reason, when=tensor and not stack.compiled)
    export.lacks(path, f"its {' and '.join(always)} communication always runs behind compute", when=always)


def _file(job: Job, settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Texts of the export: the recipe's source first, then remarks on its use."""
    fields = dict(settings)
    family, flavour = fields.pop("model", ("llama3", "debugmodel"))
    policy = fields.pop("activation_checkpoint", None)
    model = call_source("model_registry", flavour, attn_backend=fields.pop("attention", "flex"))
    vocabulary = call_source("decoder_vocab_size", Code("model_spec"))
    values: dict[str, Any] = {"loss": call_source("CrossEntropyLoss.Config", global_vocab_size=vocabulary)}
    values["optimizer"] = call_source("default_adamw", lr=_RATE)
    values["dataloader"] = call_source("HuggingFaceTextDataLoader.Config")
    values["activation_checkpoint"] = None if policy is None else call_source(f"{policy}.Config")
    config = call_source("Trainer.Config", model_spec=Code("model_spec"))
    assignments = {f"config.{path}": value for path, value in (values | fields).items()}
    body = {"model_spec": model, "config": config, **assignments}.items()
    about = f"{name} for {_FULL_NAME}, as `meshwright export --to torchtitan` wrote it."
    return (
        module_source(about, {**_SOURCES, "model_registry": f"torchtitan.models.{family}"}, body),
        f"data, tokenizer, learning rate ({_RATE:g} here) and checkpoints are yours to set, as arguments at its end",
        f"run it as recipe.py: {torchrun_by_hand(job)} -m torchtitan.train --module recipe --config plan",
    )


TARGET = Target("torchtitan", _FULL_NAME, _export, FACTS, _file)


_FAMILIES = ("llama3", "llama4", "qwen3", "deepseek_v3")
_FLAT = ("Config", "default_adamw")
"""Endings of the names of calls whose arguments are settings."""


Recipe = tuple[dict[str, Any], Flavour, Any, tuple[str, ...]]
"""Settings of a recipe by path; its model; the model's attention kernel, if the file says it by a name; and names of
converters, which replace modules of the model."""


def _of_job_file(text: str, arguments: dict[str, Any]) -> Recipe:
    """Read a recipe from a job file in TOML and the user's arguments."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"no TOML: {str(error)[:200]}") from None
    table = table_of("torchtitan")
    settings = with_current_names(by_path(document), table) | with_current_names(arguments.items(), table)
    converters = settings.pop("model.converters", ())
    if not isinstance(converters, str | list | tuple):
        raise InputError(f"`model.converters` is {printable(str(converters))}; it must list names")
    names = converters.split(",") if isinstance(converters, str) else [*converters]
    if settings.get("float8.enable_float8_linear") or settings.get("training.enable_fp8_linear"):
        names.append("float8")
    family, name, attention = (settings.pop(f"model.{key}", None) for key in ("name", "flavor", "attn_type"))
    if not isinstance(family, str) or not isinstance(name, str):
        raise InputError("no recipe of torchtitan: it lacks `[model]` with `name` and `flavor`")
    converters = tuple(filter(None, (str(one).strip() for one in names)))
    return settings, (family, name), attention, converters


def _of_registry(text: str, name: str, arguments: dict[str, Any]) -> Recipe:
    """Read a recipe from a function of a config registry (Python) and the user's arguments."""
    module, table = module_of(text), table_of("torchtitan")
    function, config = _recipe_function(module, arguments.get("config"))
    spec = config.fields.pop("model_spec", None)
    if not isinstance(spec, Call) or not spec.name.endswith("model_registry"):
        words = printable(spec.name if isinstance(spec, Call) else str(spec))
        raise InputError(f"`{function}` does not say its model by `model_registry(..)`: `{words}`")
    flavour = [*spec.arguments, spec.fields.get("flavor")][0]
    if not isinstance(flavour, str):
        raise InputError(f"`{function}` does not say the flavor of its model: `{printable(str(flavour))}`")
    containers = (spec.fields.get("converters"), config.fields.pop("model_converters", ()))
    converters = tuple(chain.from_iterable(map(_converters, containers)))
    also = {name: value for name, value in arguments.items() if name not in ("config", "module")}
    settings = with_current_names(_settings_of_config(config), table)
    settings |= with_current_names(also.items(), table)
    family = _family(module.sources.get(spec.name.split(".")[0], ""), name, function)
    return settings, (family, flavour), spec.fields.get("attn_backend"), converters


def _recipe_function(module: Module, config_name: Any) -> tuple[str, Call]:
    """Name and result of the function that `--config` names, or of the only function that builds a
    `Trainer.Config`."""
    plain_functions = {name: node for name, node in module.functions.items() if not node.args.args}
    parts = ((name, part) for name, node in plain_functions.items() for part in ast.walk(node))
    functions = list(dict.fromkeys(name for name, part in parts if isinstance(part, ast.Return)))
    if config_name is not None:
        if config_name not in module.functions:
            words, hint = printable(str(config_name)), f"it has {', '.join(functions)}"
            raise InputError(f"`{words}` is no function of the file", hint=hint)
        functions = [config_name]
    recipes = [
        (name, call)
        for name, call in [(name, built_by(module, name)) for name in functions]
        if isinstance(call, Call) and ("model_spec" in call.fields or call.name.endswith("Trainer.Config"))
    ]
    if not recipes:
        hint = "a recipe is a function that returns a `Trainer.Config`"
        raise InputError("the file has no recipe of torchtitan", hint=hint)
    if len(recipes) > 1:
        hint = f'--also "--config NAME" takes one: {", ".join(f"`{name}`" for name, _ in recipes)}'
        raise InputError(f"the file has {len(recipes)} recipes", hint=hint)
    return recipes[0]


_MAX_DEPTH = 20
"""Maximum nesting depth of a recipe's settings; torchtitan's have three levels."""


def _settings_of_config(built: Call, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of all settings of a `Config`; for recompute also the name of its policy.

    Raises:
        InputError: a setting holds the `Config` that it is in.
    """
    if prefix.count(".") > _MAX_DEPTH:
        hint = "a setting is a value or a `Config`"
        raise InputError(f"`{printable(prefix[:60])}..` holds itself", hint=hint)
    for name, value in built.fields.items():
        path = f"{prefix}{name}"
        if isinstance(value, Call) and (not value.name or value.name.endswith(_FLAT)):
            if path == _RECOMPUTE:
                yield path, value.name.rpartition(".")[0] or value.name
            yield from _settings_of_config(value, f"{path}.")
        else:
            yield path, Unknown(str(value)) if isinstance(value, Call) else value


def _converters(value: Any) -> list[str]:
    """Names of model converters in a list, or in an object that contains a list."""
    if isinstance(value, Call):
        return _converters(value.fields.get("converters"))
    if isinstance(value, Unknown):
        return [str(value)]
    values = value if isinstance(value, list) else []
    return [one.name.removesuffix(".Config") if isinstance(one, Call) else str(one) for one in values]


def _family(source: str, name: str, function: str) -> str:
    """Model family of a recipe: the module from which `model_registry` is imported, else the file's folder or
    the function's name."""
    module = source.rpartition(".")[2]
    of_function = (family for family in _FAMILIES if function.startswith(family))
    places = (module, PurePath(name).parent.name, *of_function)
    return next((place for place in places if place in _FAMILIES), module)


_RECOMPUTE = "activation_checkpoint"
_AXES = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
_POLICY_NAMES = {"FullAC": "full", "SelectiveAC": "selective"}
_POLICY_NAMES |= {policy: policy for policy in ("none", "full", "selective")}


def layout_of(settings: Settings, selective: str, model: TransformerSpec, world: int) -> tuple[Layout, int]:
    """Parallel layout of a torchtitan recipe, and the sequences per rank in one accumulation step.
    `selective` is the default of selective recompute: of single operators ("op") or of every n-th block
    ("2")."""
    degrees = {axis: settings.integer(f"{_MESH}.{word}_parallel_degree") for axis, word in _AXES.items()}
    tp, pp, cp, ep = degrees.values()
    replicas, shard = _mesh(settings, world, tp * pp * cp)
    etp = settings.integer(f"{_MESH}.expert_tensor_parallel_degree")
    policy = settings.get(f"{_MESH}.fsdp_reshard_after_forward")
    if policy not in ("default", "always", "never"):
        raise InputError(f"`{_MESH}.fsdp_reshard_after_forward: {policy}` is not known here")
    stage = 2 if policy == "never" else 3
    is_sharded = shard * cp > 1 or policy != "default"
    mbs, local = _microbatch(settings, pp)
    schedule, layers = _stages(settings, model.num_layers, pp)
    passes_keys = settings.get(f"{_MESH}.context_parallel_rotate_method") == "alltoall"
    degrees |= {"vpp": len(layers) // pp, "dp": replicas * shard, "mbs": mbs}
    degrees |= {"etp": etp if model.has_experts and ep > 1 else None}
    fields: dict[str, Any] = {"zero": stage if is_sharded else 0, "shard": shard * cp if is_sharded else None}
    fields |= {"schedule": schedule, "layers": layers, "context": "ring" if passes_keys else None}
    fields["sp"] = bool(settings.get(f"{_MESH}.enable_sequence_parallel")) and tp > 1
    fields["recompute"] = (_recompute(settings, selective, max(layers)),)
    fields["offload"] = Offload(streamed=EVERY if settings.get("training.enable_cpu_offload") else 0)
    return Layout(**degrees, **fields), local


def _mesh(settings: Settings, world: int, inner: int) -> tuple[int, int]:
    """Data-parallel degrees of replication and of sharding; a sharding degree of -1 means all remaining
    ranks."""
    paths = [f"{_MESH}.data_parallel_{kind}_degree" for kind in ("replicate", "shard")]
    replicas, shard = settings.integer(paths[0]), settings.get(paths[1])
    if shard == -1:
        shard = world // (inner * replicas)
    elif not isinstance(shard, int) or shard < 1:
        raise InputError(f"`{paths[1]}: {shard}` is no degree")
    if shard < 1 or replicas * shard * inner != world:
        words = ", ".join(f"`{path}: {settings.get(path)}`" for path in paths if path in settings.values)
        message = f"{world} GPUs do not divide by tp x pp x cp = {inner}{words and f' with {words}'}"
        raise InputError(message, hint="the product of all degrees is the number of GPUs")
    return replicas, shard


def _microbatch(settings: Settings, pp: int) -> tuple[int, int]:
    """Sequences per microbatch, and sequences per rank in one accumulation step."""
    path = "training.num_tokens_per_microbatch_per_dp_rank"
    if (tokens := settings.integer(path)) is not None:
        sequences, remainder = divmod(tokens, length := sequence_length(settings))
        if remainder:
            raise InputError(f"`{path}: {tokens}` are no whole sequences of {length:,}")
        return sequences, sequences * settings.integer(f"{_MESH}.num_pp_microbatches")
    if (local := settings.integer("training.local_batch_size", None)) is None:
        local = settings.default_of("training.local_batch_size")
        settings.assume(f"{local} sequences on a rank, torchtitan's default")
    size = f"{_MESH}.pipeline_parallel_microbatch_size"
    if pp == 1:
        settings.get(size)
        return local, local
    count = settings.integer(f"{_MESH}.pipeline_parallel_microbatches")
    sequences = max(1, local // count) if count else settings.integer(size)
    if local % sequences:
        words = f"`training.local_batch_size: {local}`"
        raise InputError(f"{words} does not divide into microbatches of {sequences}")
    return sequences, local


def sequence_length(settings: Settings) -> int:
    """Tokens per sequence that the settings state."""
    return int(settings.integer("training.seq_len", settings.integer("training.max_context_length")))


def _stages(settings: Settings, blocks: int, pp: int) -> tuple[str, tuple[int, ...]]:
    """Pipeline schedule, and number of blocks of every virtual stage in model order."""
    if pp == 1:
        for name in ("schedule", "layers_per_stage", "first_stage_less_layers", "last_stage_less_layers"):
            settings.get(f"{_MESH}.pipeline_parallel_{name}")
        return "1f1b", (blocks,)
    engine = str(settings.get(f"{_MESH}.pipeline_parallel_schedule"))
    schedules = {schedule_named(name).engine.removeprefix("Schedule").lower(): name for name in REGISTRY}
    if (schedule := schedules.get(engine.lower())) is None:
        raise InputError(f"`{_MESH}.pipeline_parallel_schedule: {engine}` is not known here")
    if (module_names := settings.listed(f"{_MESH}.module_fqns_per_model_part")) is not None:
        if not all(isinstance(one, list) for one in module_names):
            raise InputError(f"`{_MESH}.module_fqns_per_model_part` are no lists of modules")
        layers = tuple(sum(str(name).startswith("layers.") for name in stage) for stage in module_names)
    else:
        layers = _even_stages(settings, blocks, pp, single=schedule in ("1f1b", "gpipe"))
    if len(layers) % pp or sum(layers) != blocks:
        stages = f"{len(layers)} stages with {sum(layers)} blocks"
        raise InputError(f"{stages} do not go with pp{pp} and a model of {blocks}")
    return schedule, layers


def _even_stages(settings: Settings, blocks: int, pp: int, *, single: bool) -> tuple[int, ...]:
    """Number of blocks of each of nearly equal stages, in which embedding and head count as blocks
    (`_generate_llm_fqn_per_model_part`)."""
    paths = (f"{_MESH}.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
    first, last = map(settings.get, paths)
    if not all(isinstance(end, int) and 0 <= end <= blocks for end in (first, last)):
        path = "pipeline_parallel_first_stage_less_layers"
        raise InputError(f"`{path}` and that of the last are numbers of blocks")
    blocks_per_stage = settings.integer(f"{_MESH}.pipeline_parallel_layers_per_stage")
    places = blocks + first + last
    stages = pp * (1 if single else 2) if blocks_per_stage is None else math.ceil(places / blocks_per_stage)
    if stages > min(places, MAX_STAGES):
        raise InputError(f"{stages:,} stages are more than {places:,} blocks with their ends")
    if max(first, last) > places // stages:
        raise InputError(f"{stages} stages have no room for {max(first, last)} blocks' worth of an end")
    layers = [places // stages + (at < places % stages) for at in range(stages)]
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def _recompute(settings: Settings, selective: str, stage_blocks: int) -> str:
    """Recompute policy that the settings describe."""
    is_silent = settings.get(_RECOMPUTE, "") == "" and f"{_RECOMPUTE}.mode" not in settings.values
    settings.assume("selective recompute, torchtitan's default", when=is_silent)
    kind = settings.get(f"{_RECOMPUTE}.mode", settings.values.get(_RECOMPUTE, "selective"))
    name = "none" if kind is None else str(kind)
    if name not in _POLICY_NAMES:
        raise InputError(f"`{_RECOMPUTE}: {name}` is not priced here", hint="none, selective and full are")
    option = str(settings.get(f"{_RECOMPUTE}.selective_ac_option", selective))
    if _POLICY_NAMES[name] != "selective" or option == "op":
        return _POLICY_NAMES[name]
    if not option.isdecimal() or not 1 <= int(option[:9]) <= stage_blocks:
        raise InputError(f"`{_RECOMPUTE}.selective_ac_option: {option}` is not known here")
    period, words = int(option), f"`selective_ac_option: {option}`"
    settings.assume(f"of every {period} blocks one is recomputed ({words}), the first of a stage")
    return "full" if period == 1 else f"full:{math.ceil(stage_blocks / period)}"


def read_torchtitan(text: str, name: str, model: TransformerSpec | None, options: ReadOptions) -> Reading:
    """Read a torchtitan recipe (a TOML job file or a Python registry) as model, training job, layout and
    stack; the user's model replaces an unknown flavor.

    Raises:
        InputError: it is no recipe, says a setting twice, contradicts itself or the number of GPUs, or says what only
            Python knows.
    """
    is_job_file = PurePath(name).suffix == ".toml"  # of earlier releases
    recipe = _of_job_file(text, options.also) if is_job_file else _of_registry(text, name, options.also)
    values, flavour, attention, converters = recipe
    settings = Settings(without(values, options.ignore), table_of("torchtitan"))
    world = gpus_of("recipe", options.gpus)
    shape = _model(flavour, model, settings.assumed)
    _require_known(settings)
    base = load_stack(options.stack or "torchtitan")
    layout, local = layout_of(settings, "2" if is_job_file else "op", shape, world)
    training = _training(settings, converters, layout, local)
    switched = _stack_of(settings, attention, base)
    return Reading(shape, training, layout, switched, (*settings.unread(), *settings.assumed))


def _require_known(settings: Settings) -> None:
    """Raise InputError if the value of a setting on which a price depends is known only to Python."""
    table, hidden = settings.table, []
    for path, value in [*settings.values.items()]:
        priced = path != "optimizer" and any(f"{name}.".startswith(f"{path}.") for name in table.arguments)
        if isinstance(value, Unknown) and priced and table.fate(path) is None:
            message = f"only Python knows what `{value}` is"
            if path in table.arguments and (reason := table.arguments[path].why):
                settings.assume(f"no effect of `{path}`: {message}, and {reason}")
                del settings.values[path]
            else:
                hidden.append(Problem(f"`{path}`", message))
    if hidden:
        hint = f'--also "--{hidden[0].where.strip("`")} VALUE" says it'
        raise InputError("the recipe computes settings", problems=hidden, hint=hint)


def _model(flavour: Flavour, named_model: TransformerSpec | None, assumed: list[str]) -> TransformerSpec:
    """Model that the user names, or else the shipped model of a flavor. Raises InputError for an unknown
    flavor."""
    family, name = flavour
    if named_model is not None:
        assumed.append(f"the model that is named, for `{name}` of {family}")
        return named_model
    if (model := _models().get((family, _KERNEL.sub("", name)))) is not None:
        return model
    model_names = ", ".join(map(" ".join, _models()))
    message = f"`{name}` of {family or 'an unknown family'} is not known here"
    raise InputError(message, hint=f"name its model before the cluster; known are {model_names}")


def _training(settings: Settings, converters: Sequence[str], layout: Layout, local: int) -> TrainingSpec:
    """Training job that the settings describe."""
    length, smallest_batch = sequence_length(settings), local * layout.dp
    if (tokens := settings.get("training.num_tokens_per_train_step")) != -1:
        batch = tokens // length if isinstance(tokens, int) else 0
    else:
        batch = settings.get("training.global_batch_size")
        batch = smallest_batch if batch == -1 else batch
    if not isinstance(batch, int) or batch < 1 or batch % smallest_batch:
        message = f"a global batch of {batch} sequences contradicts {local} on each of dp{layout.dp}"
        raise InputError(message, hint="it is a multiple of their product")
    if batch != smallest_batch and layout.pp > 1:
        times = batch // smallest_batch
        settings.assume(f"one pipeline a step, where the recipe fills and drains it {times} times")
    fields: dict[str, Any] = {"global_batch": batch, "sequence_length": length, "dropout": 0.0}
    fields["precision"], steps = _precision(settings, converters), settings.integer("training.steps")
    fields["tokens"] = float(steps * batch * length) if steps else None
    fields["state_dtype"] = settings.plan_value("training.dtype")
    fields["optimizer_in_backward"] = settings.get("optimizer.early_step_in_backward")
    groups = settings.listed("optimizer.param_groups") or ()
    names = [one.fields.get("optimizer_name", "?") if isinstance(one, Call) else "?" for one in groups]
    for name in names or [settings.get("optimizer", settings.get("optimizer.name"))]:
        if name not in ("Adam", "AdamW"):
            raise InputError(f"`optimizer: {name}` is not priced here", hint="Adam and AdamW are")
    return TrainingSpec(**fields)


def _precision(settings: Settings, converters: Sequence[str]) -> str:
    """Training precision: by the settings, or by a converter to fp8 or fp4."""
    precision = str(settings.plan_value("training.mixed_precision_param"))
    for name in converters:
        kind = re.search("(?P<fp8>float8|mxfp8|^mx$)|(?P<fp4>nvfp4)", name.lower())
        if kind is None:
            raise InputError(f"`{name}` changes the model in a way that is not priced here")
        precision = str(kind.lastgroup)
        settings.assume(f"products of all blocks in {precision} (`{name}`)")
    return precision


def _stack_of(settings: Settings, attention: Any, base: StackSpec) -> StackSpec:
    """Copy of the software stack with the facts that a torchtitan recipe changes."""
    parts = settings.listed("compile.components") or ["model", "loss"]
    compiled, loss = bool(settings.get("compile.enable")) and "model" in parts, "loss" in parts
    facts: dict[str, Any] = base.when_compiled(loss=loss) if compiled else {}
    facts |= {"compiled": compiled, "compiles_loss": loss}
    facts["deterministic"] = bool(settings.get("debug.deterministic"))
    if settings.get("compile.enable_async_tensor_parallel"):
        facts["overlap_tensor_parallel"] = load_stack("megatron-core").overlap_tensor_parallel
        settings.assume("as much of tensor-parallel communication hidden inside products as in Megatron Core")
    if settings.get("parallelism.disable_loss_parallel"):
        facts["loss_parallel"] = False
    settings.assume("FlexAttention is priced as FlashAttention", when=attention == "flex")
    return base.model_copy(update=facts)
