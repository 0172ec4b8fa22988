"""Model FLOPs and hardware FLOPs, and the single definitions of MFU and HFU.

A multiplication and an addition are two FLOPs. Attention is counted without the causal mask's saving, as is
usual (Narayanan et al. 2021, eq. 3; Korthikanti et al. 2022, eqs. 7-8), so figures compare with published
ones:

    forward, one block     2·T·(matrix parameters) + 4·T·s·a·d_head
    forward, indexer       2·T·s·a_i·d_i, of a token with all others, if there are more than it picks
    forward, output layer  2·T·h·V
    backward               twice the forward; frozen: once, for input gradients only; a reference model: none

- **MFU** = model FLOPs of a step / (step time × GPUs × peak). Recomputed work does not count.
- **Causal MFU** = MFU that counts only scores left by a causal mask or a window. An 8B model's MFU of 74 % on sequences
  of 128k tokens is a causal MFU of 44 %.
- **HFU** = hardware FLOPs of a step / (step time × GPUs × peak). Recomputed work counts. The "52 % of peak" of
  Megatron-LM's 1T run is an HFU; its MFU is 39 %.

Selective recomputation runs the attention core forward once more; Korthikanti's equation 8 counts three
times, so its printed HFU is up to 1.6 points higher.

In a mixture of experts the matrix parameters that a token passes through count: those of the experts it
chose.

For GPT (f = 4h) the sums are 72·B·s·l·h²·(1 + s/6h + V/12lh) and, with full recompute, 96·B·s·l·h²·(1 + s/6h
+ V/16lh).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cost_models.axes.layout import Layout
from cost_models.axes.stages import blocks_by_policy
from cost_models.operators.block import block_operators
from cost_models.operators.documents import attended_keys
from cost_models.operators.parameters import job_operators, padded_vocabulary
from cost_models.specs.choices import ATTEND_AGAIN, CORE, RECOMPUTE_POLICIES, Recompute, SelectiveDrops
from cost_models.specs.kinds import frozen_parts, kinds_in, of_each_kind
from cost_models.specs.training import TrainingSpec, TuningSpec
from cost_models.specs.transformer import TransformerSpec


class ForwardFlops(NamedTuple):
    """Forward FLOPs of one sequence, over all tensor ranks."""

    block_matrices: float
    """FLOPs of the projections, states and MLP of one block (mean of different blocks)."""
    block_attention: float
    """FLOPs of the scores and weighted values of one block."""
    indexer: float
    """FLOPs of the scores that an indexer computes in one block."""
    head: float
    """FLOPs of the output layer, and of any matrix before it in the head of an encoder or a diffusion
    transformer."""
    adapters: float
    """FLOPs of the low-rank adapters (LoRA) of one block."""
    projection: float
    """FLOPs of the projection before each block of multi-token prediction. It takes a token's hidden state
    and the next token's embedding."""

    @property
    def block(self) -> float:
        """Forward FLOPs of one block for one sequence."""
        return self.block_matrices + self.block_attention + self.indexer + self.adapters


def forward_flops(
    model: TransformerSpec, sequence_length: int, tp: int = 1, tuning: TuningSpec | None = None
) -> ForwardFlops:
    """Forward FLOPs of one sequence of `sequence_length` tokens; `tp` only sets the padding of the
    vocabulary."""
    adapters = () if tuning is None else (one for one in job_operators(model, tuning) if one.trained)
    attended = model.attended(sequence_length)
    widths = model.attention_share * (model.query_size + model.attended_size)
    transform = 2.0 * model.hidden_size**2 if model.encoder and model.encoder.head_transform else 0.0
    if model.diffusion is not None:  # two vectors of an image
        transform = 4.0 * model.hidden_size**2 / model.diffusion.tokens
    rows = padded_vocabulary(model, tp) if model.outputs is None else model.outputs
    logits = 2.0 * model.hidden_size * float(rows)
    return ForwardFlops(
        block_matrices=sequence_length * sum(one.share * one.flops for one in block_operators(model)),
        block_attention=2.0 * sequence_length * attended * widths,
        indexer=2.0 * sequence_length**2 * index_width(model, sequence_length),
        adapters=sequence_length * sum(one.share * one.flops for one in adapters),
        head=sequence_length * (logits + transform),
        projection=2.0 * sequence_length * 2 * model.hidden_size**2,
    )


class _KindPart(NamedTuple):
    """Blocks of one kind in a job: their model, number, and forward FLOPs per block and sequence."""

    model: TransformerSpec
    training: TrainingSpec
    blocks: int
    flops: ForwardFlops

    @property
    def passes(self) -> float:
        """Training FLOPs of a block divided by its forward FLOPs: 3, or 1 for frozen blocks with nothing
        trained before them."""
        return 1.0 if self.training.runs_forward_only else 3.0


def _kind_parts(model: TransformerSpec, training: TrainingSpec, tp: int) -> list[_KindPart]:
    """Blocks of a job in groups: one group per kind if kinds have different sequences or the job freezes some
    blocks, else a single group. The single group has the FLOPs of the mean block."""
    one_kind = not (model.stacks or model.tower or training.freeze)
    parts = list[_KindPart]()
    kinds = ((model.num_layers, model, training),) if one_kind else of_each_kind(model, training)
    for count, kind_model, job in kinds:
        # documents attend separately, and padding does not count
        length, useful, tuning = job.sequence_length, attended_keys(kind_model, job).useful, job.tuning
        full = forward_flops(kind_model, length, tp, tuning if tuning and tuning.left is None else None)
        attention = full.block_attention * (useful / kind_model.attended(length))
        job_flops = ForwardFlops(*(flops * (job.tokens_counted / length) for flops in full))
        parts.append(_KindPart(kind_model, job, count, job_flops._replace(block_attention=attention)))
    return parts


def index_width(model: TransformerSpec, sequence_length: int) -> int:
    """Width of all queries of a sparse-attention indexer together; 0 without an indexer, or if a sequence is
    too short to leave out any token."""
    latent = model.latent_attention
    if latent is None or latent.indexer is None or sequence_length <= (model.attention_window or 0):
        return 0
    return latent.indexer.heads * latent.indexer.head_dim


def model_flops(model: TransformerSpec, training: TrainingSpec, tp: int = 1) -> float:
    """Forward and backward FLOPs of one optimizer step without recomputation, the numerator of MFU."""
    parts = _kind_parts(model, training, tp)
    last, resident = parts[-1], training.reference in ("resident", "host")
    further = model.further_tokens * (last.flops.block + last.flops.head + last.flops.projection)
    head = (3.0 + resident - (not last.training.trains("head matrix"))) * last.flops.head
    total = training.global_batch * (head + 3.0 * further)
    for part in parts:
        flops, job = part.flops, part.training
        block_flops = part.passes * flops.block + resident * (flops.block - flops.adapters)
        total += job.global_batch * part.blocks * (block_flops - _spared_flops(part))
    if (diffusion := model.diffusion) is not None and last.training.trains("embedding"):
        # matrices that embed patches and time step: the inputs of the first two need no gradients
        multiplied = 2 * (diffusion.tokens * diffusion.pixels + diffusion.frequencies) + 3 * model.hidden_size
        total += training.global_batch * (2.0 * model.hidden_size * multiplied)
    if model.tower is not None:
        tower, images = model.tower, training.global_batch * (training.images or 1)
        passes = 1.0 + parts[0].training.trains("embedding")
        total += passes * images * 2.0 * tower.patches * tower.pixels * tower.hidden_size
        frozen, inner = frozen_parts(model, training), tower.projector_hidden_size
        if frozen.patches:  # no gradients of the projector's input, or of its frozen part
            first = tower.projector_inputs * (inner or model.hidden_size)
            spared = first * (not tower.projector_norm)
            if frozen.projector:
                spared = first + inner * model.hidden_size
            total -= images * 2.0 * tower.features * spared
    return total


def _spared_flops(part: _KindPart) -> float:
    """FLOPs per block and sequence that training saves because frozen matrices need no weight gradients."""
    tuning = part.training.tuning
    if tuning is None or part.training.runs_forward_only:
        return 0.0
    if tuning.left is None:
        return part.flops.block_matrices
    frozen = (one for one in job_operators(part.model, tuning) if not one.trained)
    return part.training.tokens_counted * sum(one.share * one.flops for one in frozen)


def causal_flops(model: TransformerSpec, training: TrainingSpec, tp: int = 1) -> float:
    """Model FLOPs of one step without those of attention scores that a causal mask or a window leaves out,
    the numerator of causal MFU."""
    masked = 0.0
    for part in _kind_parts(model, training, tp):
        keys, job, flops = attended_keys(part.model, part.training), part.training, part.flops
        passes = part.passes * job.global_batch * (part.blocks + model.further_tokens)
        masked += passes * (flops.block_attention * (1.0 - keys.masked / keys.useful) + flops.indexer / 2)
    return model_flops(model, training, tp) - masked


def recomputed_flops(
    model: TransformerSpec, training: TrainingSpec, layout: Layout, drops: Collection[SelectiveDrops] = CORE
) -> float:
    """FLOPs that the backward pass of one step recomputes under a layout with blocks placed on stages.
    `drops` are the parts that selective recompute repeats; of an attention submodule only the core counts."""
    products, total, parts = {*drops} - ATTEND_AGAIN, 0.0, _kind_parts(model, training, layout.tp)
    blocks_SP = blocks_by_policy(layout.layers, layout.stage_recompute)
    if len(parts) > 1:
        blocks_SP = kinds_in(model, training).in_sorts(blocks_SP)
    blocks_KP = blocks_SP.sum(axis=0).reshape(len(parts), -1).tolist()
    for part, blocks_P in zip(parts, blocks_KP, strict=True):
        job, operators = part.training, block_operators(part.model)
        repeated = sum(own.share * own.flops for own in operators if products & own.redone_by)
        core = part.flops.block_attention + part.flops.indexer if ATTEND_AGAIN.intersection(drops) else 0.0
        selective = core + job.tokens_counted * repeated
        per_policy: dict[Recompute, float] = {"none": 0.0, "selective": selective, "full": part.flops.block}
        policy_blocks = zip(RECOMPUTE_POLICIES, blocks_P, strict=True)
        passes = 0.0 if job.runs_forward_only else float(job.global_batch)
        total += passes * sum(blocks * per_policy[policy] for policy, blocks in policy_blocks)
    return total


def utilisation(flops: float, step_seconds: float, num_gpus: int, peak: float) -> float:
    """FLOPs of a step as a share of the FLOPs that the GPUs could compute in `step_seconds` at peak."""
    return flops / (step_seconds * num_gpus * peak)
