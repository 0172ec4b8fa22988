"""torchtitan 0.3.0: a plan as a module whose `plan()` is a `Trainer.Config`, for `--module` and `--config`.

Sources: torchtitan 0.3.0: torchtitan/config/configs.py, config/manager.py, trainer.py, distributed/parallel_dims.py,
distributed/pipeline_parallel.py, distributed/activation_checkpoint.py, models/common/config_utils.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from cost_models.axes.recompute import policies_in
from cost_models.axes.words import EVERY
from cost_models.schedules.registry import schedule_named
from planner.formats import python_text as py
from planner.formats.launching import torchrun_by_hand
from planner.formats.target import Target
from planner.formats.torchtitan.flavours import MODEL
from planner.formats.words import NOTHING, Asked, Settings, Translate, Word, lacks, otherwise, says

VERSION = "0.3.0"
FUNCTION = "plan"
_RATE = 3e-4
_AC = "torchtitan.distributed.activation_checkpoint"
_POLICIES = {"none": None, "full": "FullAC", "selective": "SelectiveAC"}
_IMPORTS = {
    "torchtitan.components.loss": ["CrossEntropyLoss"],
    "torchtitan.components.optimizer": ["default_adamw"],
    "torchtitan.hf_datasets.text_datasets": ["HuggingFaceTextDataLoader"],
    "torchtitan.models.common.config_utils": ["decoder_vocab_size"],
    "torchtitan.trainer": ["Trainer"],
}


def _set(**settings: object) -> Word:
    """Settings of `parallelism`."""
    return says(**{f"parallelism.{name}": value for name, value in settings.items()})


def _nothing(asked: Asked) -> Word:
    return NOTHING


def _zero(asked: Asked) -> Word:
    layout = asked.layout
    if layout.zero == 0:
        return _set(data_parallel_replicate_degree=layout.dp, data_parallel_shard_degree=1)
    if layout.zero == 1:
        return lacks("it shards weights, gradients and optimizer states together")
    keeps = layout.pp > 1 and asked.stack.pipelines_keep_weights
    policy = "never" if layout.zero == 2 else "default" if keeps else "always"
    shard = layout.shard_group // layout.cp
    said = {
        "parallelism.data_parallel_replicate_degree": layout.data_ranks // layout.shard_group,
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.fsdp_reshard_after_forward": policy,
    }
    if keeps and layout.zero == 3:
        return otherwise("in a pipeline it keeps weights that it gathered until the step ends", **said)
    return says(**said)


def _order(asked: Asked) -> Word:
    return NOTHING if asked.layout.order == "tp-cp-dp-pp" else lacks("it seats ranks tp-cp-dp-pp")


def _context(asked: Asked) -> Word:
    kind = asked.layout.context or asked.stack.context_parallel
    return NOTHING if asked.layout.cp == 1 or kind == "all-gather" else lacks("its context ranks gather")


def _schedule(asked: Asked) -> Word:
    if asked.layout.pp == 1:
        return NOTHING
    engine = schedule_named(asked.layout.schedule).engine
    return _set(pipeline_parallel_schedule=engine.removeprefix("Schedule"))


def stages(layers: tuple[int, ...]) -> list[list[str]]:
    """Names of the modules of every virtual stage."""
    found, first = [], 0
    for count in layers:
        found.append([f"layers.{at}" for at in range(first, first + count)])
        first += count
    found[0].insert(0, "tok_embeddings")
    found[-1] += ["norm", "lm_head"]
    return found


def _layers(asked: Asked) -> Word:
    return NOTHING if asked.layout.pp == 1 else _set(module_fqns_per_model_part=stages(asked.layout.layers))


def _mbs(asked: Asked) -> Word:
    layout, batch = asked.layout, asked.training.global_batch
    if layout.pp == 1:
        return says(**{"training.local_batch_size": layout.mbs})
    local = {
        "training.local_batch_size": batch // layout.dp,
        "parallelism.pipeline_parallel_microbatch_size": layout.mbs,
    }
    return otherwise("a rank's whole share of the batch, which the pipeline cuts", **local)


def _recompute(asked: Asked) -> Word:
    mixes = set(asked.layout.recompute)
    policies = policies_in(asked.layout.recompute[0])
    if len(mixes) > 1 or len(policies) > 1:
        return lacks("it has one policy for all blocks")
    return says(activation_checkpoint=_POLICIES[policies[0]])


def _offload(asked: Asked) -> Word:
    moved = asked.layout.offload
    if not any(moved):
        return NOTHING
    if moved.streamed >= EVERY and not (moved.activations or moved.drive):
        return says(**{"training.enable_cpu_offload": True})
    return lacks("it keeps all weights with their states on the host, or none")


def _ring(asked: Asked) -> Word:
    usual = asked.layout.ring == type(asked.layout).model_fields["ring"].default
    return NOTHING if usual else lacks("it fetches one block ahead")


def _overlap(asked: Asked) -> Word:
    """Tensor-parallel collectives go inside products of compiled blocks; all others always run behind compute."""
    layout, stack = asked.layout, asked.stack
    said = layout.overlap
    if said is not None:
        ranks = {"pp": layout.pp, "dp": layout.data_ranks}
        if always := [axis for axis, degree in ranks.items() if degree > 1 and axis not in said]:
            return lacks(f"its {' and '.join(always)} communication always runs behind compute")
    wanted = stack.overlap_tensor_parallel > 0 if said is None else "tp" in said
    if wanted and not stack.compiled:
        return lacks("it overlaps tensor-parallel communication in compiled blocks only")
    return says(**{"compile.enable_async_tensor_parallel": True}) if wanted else NOTHING


LAYOUT: Mapping[str, Translate] = {
    "tp": lambda asked: _set(tensor_parallel_degree=asked.layout.tp),
    "pp": lambda asked: _set(pipeline_parallel_degree=asked.layout.pp),
    "vpp": _nothing,  # as many stages as `layers` names
    "cp": lambda asked: _set(context_parallel_degree=asked.layout.cp),
    "dp": _nothing,  # said with `zero`
    "ep": lambda asked: _set(expert_parallel_degree=asked.layout.ep),
    "etp": _nothing,  # one where experts are shared, else tp: its rules
    "mbs": _mbs,
    "zero": _zero,
    "shard": _nothing,  # said with `zero`
    "overlap": _overlap,
    "sp": lambda asked: _set(enable_sequence_parallel=asked.layout.sp),
    "schedule": _schedule,
    "order": _order,
    "context": _context,
    "recompute": _recompute,
    "offload": _offload,
    "ring": _ring,
    "layers": _layers,
    "pools": lambda asked: lacks("all its ranks are of one kind") if asked.layout.pools else NOTHING,
    "replicas": lambda asked: lacks("replicas take equal shares") if asked.layout.replicas else NOTHING,
}


def _precision(asked: Asked) -> Word:
    types = {"bf16": "bfloat16", "fp32": "float32"}
    if asked.training.precision not in types:
        return lacks("it trains in bfloat16 or float32 unless its model is converted")
    settings = {
        "training.dtype": "float32",
        "training.mixed_precision_param": types[asked.training.precision],
    }
    return says(**settings)


def _optimizer(asked: Asked) -> Word:
    return NOTHING if asked.training.optimizer == "adamw" else lacks("it has Adam and AdamW")


def _fp32(name: str, what: str) -> Translate:
    """For types of states that are fp32 there."""

    def word(asked: Asked) -> Word:
        return NOTHING if getattr(asked.training, name) in (None, "fp32") else lacks(what)

    return word


def _tokens(asked: Asked) -> Word:
    if asked.training.tokens is None:
        return NOTHING
    return otherwise(
        "steps", **{"training.steps": max(1, round(asked.training.tokens / asked.training.tokens_per_step))}
    )


TRAINING: Mapping[str, Translate] = {
    "kind": _nothing,
    "global_batch": lambda asked: says(**{"training.global_batch_size": asked.training.global_batch}),
    "sequence_length": lambda asked: says(**{"training.seq_len": asked.training.sequence_length}),
    "precision": _precision,
    "optimizer": _optimizer,
    "gradient_dtype": _fp32("gradient_dtype", "it reduces gradients in fp32"),
    "state_dtype": _fp32("state_dtype", "it keeps weights and moments in fp32"),
    "moment_dtype": _fp32("moment_dtype", "it keeps moments in fp32"),
    "dropout": lambda asked: NOTHING if not asked.question.dropout else lacks("its models drop nothing"),
    "recompute": _nothing,  # what the search may use
    "tokens": _tokens,
}


def _attention(asked: Asked) -> Word:
    """Varlen calls FlashAttention; context ranks and CPUs have FlexAttention only."""
    if not asked.stack.attention.startswith("flash"):
        return lacks("its attention is FlexAttention or FlashAttention")
    flex = asked.layout.cp > 1 or asked.question.cluster.gpu.kind == "cpu"
    return otherwise(
        "FlexAttention" if flex else "FlashAttention over documents", attention="flex" if flex else "varlen"
    )


STACK: Mapping[str, Translate] = {
    "attention": _attention,
    "compiled": lambda asked: says(**{"compile.enable": asked.stack.compiled}),
    "compiles_loss": lambda asked: says(
        **{"compile.components": ["model", "loss"] if asked.stack.compiles_loss else ["model"]}
    ),
    "captured_expert_launches": lambda asked: (
        says(**{"training.disable_cuda_graphs": True})
        if not asked.stack.captured_expert_launches
        else lacks("it captures no part of a step")
    ),
    "overlap_tensor_parallel": _nothing,  # said with the layout's `overlap`
    "context_parallel": _nothing,  # said with the layout's `context`
    "deterministic": lambda asked: says(**{"debug.deterministic": asked.stack.deterministic}),
}


def _text(asked: Asked, settings: Settings, name: str) -> str:
    said = dict(settings)
    family, flavour = said.pop("model", ("llama3", "debugmodel"))
    policy = said.pop("activation_checkpoint", None)
    model = py.call("model_registry", flavour, attn_backend=said.pop("attention", "flex"))
    imports = defaultdict(list, {source: list(names) for source, names in _IMPORTS.items()})
    imports[f"torchtitan.models.{family}"].append("model_registry")
    if policy is not None:
        imports[_AC].append(policy)
    vocabulary = py.call("decoder_vocab_size", py.name("model_spec"))
    body = [
        py.assign("model_spec", model),
        py.assign("config", py.call("Trainer.Config", model_spec=py.name("model_spec"))),
        py.assign("config.loss", py.call("CrossEntropyLoss.Config", global_vocab_size=vocabulary)),
        py.assign("config.optimizer", py.call("default_adamw", lr=_RATE)),
        py.assign("config.dataloader", py.call("HuggingFaceTextDataLoader.Config")),
        py.assign("config.activation_checkpoint", None if policy is None else py.call(f"{policy}.Config")),
        *(py.assign(f"config.{setting}", value) for setting, value in said.items()),
        py.returned("config"),
    ]
    about = f"{name} for torchtitan {VERSION}, as `meshwright export --to torchtitan` wrote it."
    return py.module(about, imports, FUNCTION, body)


def _usage(asked: Asked, name: str) -> tuple[str, ...]:
    return (
        f"data, tokenizer, learning rate ({_RATE:g} here) and checkpoints are yours, as arguments at its end",
        f"run it as recipe.py: {torchrun_by_hand(asked)} -m torchtitan.train --module recipe --config {FUNCTION}",
    )


TARGET = Target(
    name="torchtitan",
    called=f"torchtitan {VERSION}",
    stack="torchtitan",
    words={
        f"{part}.{field}": word
        for part, words in {"layout": LAYOUT, "training": TRAINING, "model": MODEL, "stack": STACK}.items()
        for field, word in words.items()
    },
    text=_text,
    usage=_usage,
)
