"""Reading a row as a question with a layout: blank cells are filled as their author would have, and noted."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers, layers_in_turn, layers_up_to_shares
from cost_models.defaults import complete_question
from cost_models.documents import spec_error
from cost_models.errors import InputError
from cost_models.measured.runs.degrees import MAX_ACTIONS, Degrees, check_counts, chunks_of, degrees_of
from cost_models.measured.runs.hardware import cluster_of, gpu_of
from cost_models.measured.runs.model import model_of
from cost_models.measured.runs.policies import (
    offload_of,
    precision_of,
    recompute_of,
    shards_in_a_node,
    with_host_update,
    zero_of,
)
from cost_models.measured.runs.rows import Notes, Row, UnpredictableError
from cost_models.measured.runs.stack import month_of, stack_of
from cost_models.measured.runs.switches import (
    expert_tensor_parallel,
    keeps_experts_whole,
    state_changes,
    training_changes,
)
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import padded_vocabulary
from cost_models.pipeline.pricing import estimate_each
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec

_ADAPTERS = re.compile(r"\bq?lora\b|\bdora\b|\bpeft\b|adapters?\b")
"""Words for training that leaves most weights frozen."""
_USUAL_MICROBATCHES = (1, 2, 4, 8)
"""Sequences a microbatch that authors try."""
_HARDLY_SLOWER = 1.05
"""Ratio of step times that the model does not tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row that can be predicted: its question and layout, with what was assumed."""

    row: Row
    question: Question
    layout: Layout
    assumptions: tuple[str, ...]
    sized: bool = True
    """Whether the row says how many GPUs it had; otherwise only its memory means something."""


def read_case(row: Row, *, stack: str | None = None, profile: str | HardwareProfile | None = None) -> Case:
    """The question and layout of a row. Raises UnpredictableError: with the reason why not."""
    notes = Notes()
    try:
        return _read(row, stack, profile, notes)
    except (InputError, ValidationError) as error:
        raise UnpredictableError(_short(error)) from error


def _short(error: InputError | ValidationError) -> str:
    if isinstance(error, ValidationError):
        return _short(spec_error(error))
    return "; ".join(map(str, error.problems)) or error.headline


def _read(row: Row, forced_stack: str | None, profile: str | HardwareProfile | None, notes: Notes) -> Case:
    check_counts(row)
    if _ADAPTERS.search(f"{row.text('task')} {row.text('framework')} {row.text('model_name')}".lower()):
        raise UnpredictableError(
            "fine-tunes adapters (LoRA), whose frozen weights need no gradients: not modelled"
        )
    gpu = gpu_of(row)
    if gpu is None:
        raise UnpredictableError(f"GPU `{row.text('gpu') or 'blank'}` is not in the catalogue")
    stack = stack_of(row, forced_stack, notes)
    model = model_of(row, stack, notes)
    degrees = degrees_of(row, notes)
    cluster = cluster_of(row, gpu, degrees.num_gpus, notes)
    degrees.vp = chunks_of(row, model, stack, degrees, notes)
    degrees.zero = zero_of(row, stack, degrees.dp * degrees.cp, notes)
    training = _training(row, cluster, degrees, notes)
    question = complete_question(model, cluster, training, stack=stack, profile=profile)
    layout = _layout(row, question, degrees, notes)
    question = with_host_update(row, question, layout, notes)
    sized = row.count("num_gpus") is not None or row.count("dp") is not None
    return Case(row=row, question=question, layout=layout, assumptions=tuple(notes.assumed), sized=sized)


def _training(row: Row, cluster: ClusterSpec, degrees: Degrees, notes: Notes) -> TrainingSpec:
    """The training job of a row: batch, sequence, precision and dropout."""
    sequence = row.count("seq_len")
    if sequence is None:
        raise UnpredictableError("no `seq_len`")
    batch = _global_batch(row, degrees, notes)
    return TrainingSpec.model_validate(
        {
            "global_batch": batch,
            "sequence_length": sequence,
            "precision": precision_of(row, cluster, notes),
            "dropout": _dropout(row),
        }
        | training_changes(row)
        | state_changes(row)
    )


def _dropout(row: Row) -> float | None:
    """The row's dropout, where it is a probability."""
    share = row.number("dropout")
    return share if share is not None and 0 <= share < 1 else None


def _global_batch(row: Row, degrees: Degrees, notes: Notes) -> int:
    """Sequences a step: as printed, or from microbatch and accumulation."""
    batch, micro, accumulated = row.count("global_batch"), row.count("micro_batch"), row.count("grad_accum")
    printed = row.number("global_batch")
    if batch is None and printed is not None and printed >= 1:
        batch = round(printed)
        notes.assume(f"global batch {batch}: the row's {printed:g} is no whole number")
    if batch is None:
        if micro is None:
            raise UnpredictableError("neither `global_batch` nor `micro_batch` is given")
        if accumulated is None:
            accumulated = degrees.pp
            notes.assume(f"{accumulated} microbatches a step")
        batch = micro * accumulated * degrees.dp
    return batch


def _layout(row: Row, question: Question, degrees: Degrees, notes: Notes) -> Layout:
    """The row's layout, its blocks on stages as the stack places them, with a usual microbatch where it is blank."""
    micro = _micro_batch(row, question, degrees, notes)
    stated = micro is not None
    micro = micro or 1
    stages = degrees.pp * degrees.vp
    blocks = question.model.num_layers
    if stages > blocks + 2 * question.stack.ends_count_as_blocks:
        raise UnpredictableError(f"{blocks} blocks on {stages} stages")
    if stages * (question.training.global_batch // (micro * degrees.dp)) > MAX_ACTIONS:
        raise UnpredictableError(f"global batch {question.training.global_batch} is too many microbatches")
    offload, ring = offload_of(row, question.stack, blocks, notes)
    layout = Layout(
        tp=degrees.tp,
        pp=degrees.pp,
        vpp=degrees.vp,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=_expert_tensor(row, degrees),
        dp=degrees.dp,
        mbs=micro,
        zero=degrees.zero,
        shard=_shard_group(row, degrees, question.cluster.gpus_per_node, notes),
        sp=degrees.tp > 1 and _splits_sequence(row, question.stack, notes),
        recompute=(recompute_of(row, question.stack, notes),),
        layers=_placed(question, stages, notes),
        offload=offload,
        ring=ring,
    )
    if stated:
        return layout
    layout = _tuned(question, layout)
    notes.assume(f"microbatch {layout.mbs} (blank)")
    return layout


def _placed(question: Question, stages: int, notes: Notes) -> tuple[int, ...]:
    """Blocks on stages as the stack places them."""
    model = question.model
    if question.stack.places_blocks == "by-compute" and stages > 1:
        block = sum(one.flops for one in block_operators(model))
        notes.assume("blocks placed up to equal shares of their products and the head's")
        head = 2.0 * model.hidden_size * float(padded_vocabulary(model, 1)) / block
        return layers_up_to_shares(model.num_layers, stages, head)
    if model.num_layers % stages and question.stack.places_blocks == "in-turn":
        notes.assume("stages filled in turn, the last with what is left")
        return layers_in_turn(model.num_layers, stages)
    if model.num_layers % stages:
        notes.assume("blocks placed as evenly as they go, fewer where embedding and head sit")
    return even_layers(model.num_layers, stages)


def _tuned(question: Question, layout: Layout) -> Layout:
    """The layout with the smallest microbatch that fits and is hardly slower than the fastest, as an author would tune
    it; with one sequence where none fits."""
    samples = question.training.global_batch // layout.dp
    possible = [
        layout.model_copy(update={"mbs": size})
        for size in _USUAL_MICROBATCHES
        if samples % size == 0
        and samples // size >= layout.pp
        and (layout.vpp == 1 or samples // size % layout.pp == 0)
    ]
    fitting = [one for one in estimate_each(question, possible) if one.fits]
    fastest = min((one.step_seconds for one in fitting), default=0.0)
    return next((one.layout for one in fitting if one.step_seconds <= fastest * _HARDLY_SLOWER), layout)


def _splits_sequence(row: Row, stack: StackSpec, notes: Notes) -> bool:
    """Whether a row with several tensor-parallel ranks splits its sequence; where blank, as the stack's users do."""
    stated = row.flag("sequence_parallel")
    if stated is None and stack.usually_splits_sequence:
        notes.assume("sequence parallelism (blank)")
    return stack.usually_splits_sequence if stated is None else stated


def _expert_tensor(row: Row, degrees: Degrees) -> int | None:
    """Expert tensor parallelism: as the row notes, else as its recipes or the rest of the model, if ranks are left."""
    stated = expert_tensor_parallel(row)
    if stated is None and degrees.ep > 1 and degrees.tp > 1 and keeps_experts_whole(row):
        stated = 1
    if stated is not None and degrees.tp * degrees.dp * degrees.cp % (degrees.ep * stated) == 0:
        return stated
    if degrees.ep == 1 or degrees.dp * degrees.cp % degrees.ep == 0:
        return None
    if degrees.tp * degrees.dp * degrees.cp % degrees.ep:
        raise UnpredictableError(f"ep {degrees.ep} does not divide tp · cp · dp")
    return 1


def _shard_group(row: Row, degrees: Degrees, per_node: int, notes: Notes) -> int | None:
    """Ranks that share one copy of what ZeRO shards; None: all replicas."""
    size, replicas = row.count("hybrid_shard"), degrees.dp * degrees.cp
    if degrees.zero and shards_in_a_node(row):
        size = max(1, per_node // (degrees.tp * degrees.pp))
        notes.assume(f"hybrid sharding over {size} ranks: those of a node")
    if size is None or size >= replicas or degrees.zero == 0:
        return None
    if replicas % size:
        notes.assume(f"ZeRO over all {replicas} replicas: groups of {size} do not divide them")
        return None
    return size


def _usual_microbatches(row: Row, question: Question, degrees: Degrees) -> int | None:
    """The number of stages, where releases at the row's date used as many microbatches; else None."""
    until = question.stack.microbatches_per_stage_until
    month = month_of(row)
    return (
        degrees.pp if degrees.pp > 1 and until is not None and month is not None and month <= until else None
    )


def _micro_batch(row: Row, question: Question, degrees: Degrees, notes: Notes) -> int | None:
    """The row's microbatch, or the one that its accumulation implies; None where it says neither."""
    micro, batch = row.count("micro_batch"), question.training.global_batch
    if micro is None:
        accumulated = row.count("grad_accum") or _usual_microbatches(row, question, degrees)
        if accumulated is None and batch >= degrees.dp:
            return None
        micro = max(1, batch // (degrees.dp * accumulated)) if accumulated else 1
        notes.assume(f"microbatch {micro}")
    if micro * degrees.dp > batch:
        raise UnpredictableError(f"microbatch {micro} × dp {degrees.dp} exceeds the global batch {batch}")
    if batch % (micro * degrees.dp):
        notes.assume(f"global batch {batch} in {batch // (micro * degrees.dp)} whole microbatches")
    return micro
