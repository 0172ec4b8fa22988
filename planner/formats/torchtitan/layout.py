"""The layout of a recipe of torchtitan: its mesh, its pipeline's stages, what it recomputes.

Sources: torchtitan 0.3.0 and its main branch of August 2026: torchtitan/config/configs.py,
distributed/parallel_dims.py, distributed/pipeline_parallel.py; 0.1 and 0.2: torchtitan/config/job_config.py.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import ValidationError

from cost_models.axes.layout import Layout, Offload
from cost_models.axes.words import EVERY, MAX_STAGES
from cost_models.documents import spec_error
from cost_models.errors import InputError
from cost_models.schedules.registry import REGISTRY, schedule_named
from cost_models.specs.transformer import TransformerSpec
from planner.formats.reading.settings import Settings
from planner.formats.torchtitan.recipes import Recipe

_MESH = "parallelism"
_RECOMPUTE = "activation_checkpoint"
_DROPPED = {
    "none": "none",
    "FullAC": "full",
    "full": "full",
    "SelectiveAC": "selective",
    "selective": "selective",
}
_ROTATED = {"allgather": None, "alltoall": "ring"}


def layout_of(
    said: Settings, recipe: Recipe, model: TransformerSpec, world: int, assumed: list[str]
) -> tuple[Layout, int]:
    """The layout, and the sequences of one rank in one accumulation step."""
    tp, pp, cp, ep = (
        said.whole(f"{_MESH}.{axis}_parallel_degree") for axis in ("tensor", "pipeline", "context", "expert")
    )
    replicas, shard = _mesh(said, world, tp * pp * cp)
    etp = said.whole(f"{_MESH}.expert_tensor_parallel_degree")
    policy = said.get(f"{_MESH}.fsdp_reshard_after_forward")
    if policy not in ("default", "always", "never"):
        raise InputError(f"`{_MESH}.fsdp_reshard_after_forward: {policy}` is not known here")
    is_sharded = shard * cp > 1 or policy != "default"
    mbs, local = _microbatch(said, pp, assumed)
    schedule, layers = _stages(said, model.num_layers, pp)
    fields: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "vpp": len(layers) // pp,
        "cp": cp,
        "dp": replicas * shard,
        "ep": ep,
        "mbs": mbs,
        "zero": (2 if policy == "never" else 3) if is_sharded else 0,
        "sp": bool(said.get(f"{_MESH}.enable_sequence_parallel")) and tp > 1,
        "schedule": schedule,
        "layers": layers,
        "recompute": (_recompute(said, recipe, max(layers), assumed),),
        "offload": Offload(streamed=EVERY if said.get("training.enable_cpu_offload") else 0),
    }
    if is_sharded and replicas > 1:
        fields["shard"] = shard * cp
    if model.has_experts and ep > 1:
        fields["etp"] = etp
    rotated = said.get(f"{_MESH}.context_parallel_rotate_method")
    if cp > 1 and _ROTATED.get(str(rotated)):
        fields["context"] = _ROTATED[rotated]
    try:
        return Layout.model_validate(fields), local
    except ValidationError as error:
        raise spec_error(error, Layout) from None


def _mesh(said: Settings, world: int, inner: int) -> tuple[int, int]:
    """Degrees of replication and of sharding; -1 stands for all ranks that are left."""
    paths = [f"{_MESH}.data_parallel_{kind}_degree" for kind in ("replicate", "shard")]
    replicas, shard = said.whole(paths[0]), said.get(paths[1])
    if shard == -1:
        shard = world // (inner * replicas)
    elif not isinstance(shard, int) or shard < 1:
        raise InputError(f"`{paths[1]}: {shard}` is no degree")
    if shard < 1 or replicas * shard * inner != world:
        words = ", ".join(f"`{path}: {said.get(path)}`" for path in paths if path in said.values)
        raise InputError(
            f"{world} GPUs do not divide by tp x pp x cp = {inner}" + (f" with {words}" if words else ""),
            hint="the product of all degrees is the number of GPUs",
        )
    return replicas, shard


def _microbatch(said: Settings, pp: int, assumed: list[str]) -> tuple[int, int]:
    """Sequences of a microbatch, and of one rank in one accumulation step."""
    if (tokens := said.whole("training.num_tokens_per_microbatch_per_dp_rank")) is not None:
        each = tokens // (length := sequence_length(said))
        if each * length != tokens:
            raise InputError(
                f"`training.num_tokens_per_microbatch_per_dp_rank: {tokens}` are no whole sequences of {length:,}"
            )
        return each, each * said.whole(f"{_MESH}.num_pp_microbatches")
    if (local := said.whole("training.local_batch_size", None)) is None:
        local = said.usual("training.local_batch_size")
        assumed.append(f"{local} sequences on a rank, torchtitan's default")
    if pp == 1:
        said.get(f"{_MESH}.pipeline_parallel_microbatch_size")
        return local, local
    if (count := said.whole(f"{_MESH}.pipeline_parallel_microbatches")) is not None:
        each = max(1, local // count)
    else:
        each = said.whole(f"{_MESH}.pipeline_parallel_microbatch_size")
    if local % each:
        raise InputError(f"`training.local_batch_size: {local}` does not divide into microbatches of {each}")
    return each, local


def sequence_length(said: Settings) -> int:
    usual = said.whole("training.max_context_length")
    return int(said.whole("training.seq_len", usual))


def _stages(said: Settings, blocks: int, pp: int) -> tuple[str, tuple[int, ...]]:
    """The schedule, and blocks of every virtual stage in model order."""
    if pp == 1:
        for name in ("schedule", "layers_per_stage", "first_stage_less_layers", "last_stage_less_layers"):
            said.get(f"{_MESH}.pipeline_parallel_{name}")
        return "1f1b", (blocks,)
    wanted = str(said.get(f"{_MESH}.pipeline_parallel_schedule"))
    known = {schedule_named(name).engine.removeprefix("Schedule").lower(): name for name in REGISTRY}
    if (schedule := known.get(wanted.lower())) is None:
        raise InputError(f"`{_MESH}.pipeline_parallel_schedule: {wanted}` is not known here")
    if (named := said.listed(f"{_MESH}.module_fqns_per_model_part")) is not None:
        if not all(isinstance(one, list) for one in named):
            raise InputError(f"`{_MESH}.module_fqns_per_model_part` are no lists of modules")
        layers = tuple(sum(str(name).startswith("layers.") for name in stage) for stage in named)
    else:
        layers = _even(said, blocks, pp, single=schedule in ("1f1b", "gpipe"))
    if len(layers) % pp or sum(layers) != blocks:
        raise InputError(
            f"{len(layers)} stages with {sum(layers)} blocks do not go with pp{pp} and a model of {blocks}"
        )
    return schedule, layers


def _even(said: Settings, blocks: int, pp: int, *, single: bool) -> tuple[int, ...]:
    """Stages as equal as they can be where embedding and head count as blocks (`_generate_llm_fqn_per_model_part`)."""
    first, last = (
        said.get(f"{_MESH}.pipeline_parallel_{end}_stage_less_layers") for end in ("first", "last")
    )
    if not all(isinstance(one, int) and 0 <= one <= blocks for one in (first, last)):
        raise InputError(
            "`pipeline_parallel_first_stage_less_layers` and that of the last are numbers of blocks"
        )
    each = said.whole(f"{_MESH}.pipeline_parallel_layers_per_stage")
    places = blocks + first + last
    stages = pp * (1 if single else 2) if each is None else math.ceil(places / each)
    if stages > min(places, MAX_STAGES):
        raise InputError(f"{stages:,} stages are more than {places:,} blocks with their ends")
    if max(first, last) > places // stages:
        raise InputError(f"{stages} stages have no room for {max(first, last)} blocks' worth of an end")
    layers = [places // stages + (at < places % stages) for at in range(stages)]
    layers[0] -= first
    layers[-1] -= last
    return tuple(layers)


def _recompute(said: Settings, recipe: Recipe, most: int, assumed: list[str]) -> str:
    if said.get(_RECOMPUTE, "") == "" and f"{_RECOMPUTE}.mode" not in said.values:
        assumed.append("selective recompute, torchtitan's default")
    kind = said.get(f"{_RECOMPUTE}.mode", recipe.settings.get(_RECOMPUTE, "selective"))
    name = "none" if kind is None else str(kind)
    if name not in _DROPPED:
        raise InputError(f"`{_RECOMPUTE}: {name}` is not priced here", hint="none, selective and full are")
    option = str(said.get(f"{_RECOMPUTE}.selective_ac_option", "op" if recipe.by_operator else "2"))
    if _DROPPED[name] != "selective" or option == "op":
        return _DROPPED[name]
    if not option.isdecimal() or not 1 <= int(option[:9]) <= most:
        raise InputError(f"`{_RECOMPUTE}.selective_ac_option: {option}` is not known here")
    each = int(option)
    assumed.append(
        f"of every {each} blocks one is recomputed (`selective_ac_option: {option}`), the first of a stage"
    )
    return "full" if each == 1 else f"full:{math.ceil(most / each)}"
