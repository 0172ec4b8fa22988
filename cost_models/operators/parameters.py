"""Number of parameters of a rank, a block, the embedding and the head, and the share that a job trains.

GPT-3 by hand: a block has 4h² + 4h (attention with biases) + 8h² + 5h (MLP with biases) + 4h (two layer norms) = 12h² +
13h parameters. A Mixtral 8x7B block has 2·4096² + 2·4096·1024 (attention) + 8·3·4096·14336 (experts) + 8·4096 (router)
+ 2·4096 (norms) = 1451 million.

**Fine-tuning** adds a job's adapters as operators beside those of the block. Beside a matrix (in, out) an adapter
multiplies by A (in, r) and then by B (r, out). Over tensor ranks it is split as its matrix is: beside split outputs
every rank has A and its columns of B, beside split inputs its rows of A and all of B. What all ranks have is worked on
in part by each, so that its gradients are added up over them once a step; sums of activations are those of the matrix.
peft scales what B returns and adds it to what the matrix returned, and backward adds the gradients of the input, each
in a kernel of its own (peft 0.17: tuners/lora/layer.py).

All else of the model is frozen: matrices, norms, embedding and head have no gradients and no optimizer states. What
lies before the first adapter is taken to run backward as everything else, a part of one block of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.block import (
    TOWER_NORM,
    block_operators,
    embedding_weights,
    norm_weights,
    patch_weights,
    transform_weights,
)
from cost_models.operators.record import (
    Gemm,
    Operator,
    Tensor,
    Weights,
    multiply,
    parameters_on_rank,
    products_of,
    sum_amounts,
)
from cost_models.question import Question
from cost_models.specs.kinds import decoder_of, frozen_parts, of_each_kind
from cost_models.specs.training import Matrix, TrainingSpec, TuningSpec, UntrainedPart
from cost_models.specs.transformer import TransformerSpec


class Parameters(NamedTuple):
    """Number of parameters on one tensor-parallel rank by part of the model, each (N,) over the given degrees."""

    block: Array
    """Parameters of one transformer block without its routed experts, mean over dense and MoE blocks."""
    experts: Array
    """Parameters of a block's routed experts on this rank, mean over all blocks. Their data-parallel replicas
    are on other ranks than those of other parameters."""
    embedding: Array
    """Parameters of the token embedding, with learned positions, types of tokens, and the norm after it."""
    head_vectors: Array
    """Parameters of the norm before the output matrix, the bias of the output matrix, and any matrix before
    it (encoder, diffusion)."""
    head_matrix: Array
    """Parameters of the output matrix, whether separate or a copy of the token embedding."""


def padded_vocabulary(model: TransformerSpec, tp: Ints | int) -> Ints:
    """Number of vocabulary entries after padding to a multiple of `vocab_multiple` × tp, so that all tensor
    ranks have equally many."""
    unit = model.vocab_multiple * np.asarray(tp, dtype=np.int64)
    return -(-model.vocab_size // unit) * unit


def head_rows(model: TransformerSpec, tp: Ints | int) -> Ints:
    """Number of rows of the output matrix over all tensor ranks: the padded vocabulary, or `outputs` per rank
    in a model that sets it."""
    return padded_vocabulary(model, tp) if model.outputs is None else model.outputs * np.asarray(tp)


def parameters(model: TransformerSpec, tp: Ints, ep: Ints | int = 1, etp: Ints | None = None) -> Parameters:
    """Number of parameters that one rank holds in a block, in its routed experts, in the embedding and in the
    head. Column-parallel biases are split, row-parallel biases and norms are not.

    `tp`, `ep` and `etp` (N,) are the degrees of tensor and expert parallelism and of tensor parallelism in an expert.
    """
    h, norm = model.hidden_size, norm_weights(model)
    block, experts = parameters_on_rank(block_weights(model), tp, ep, tp if etp is None else etp)
    embeds = not model.is_tower
    vocabulary, head = (rows(model, tp) * h / tp * embeds for rows in (padded_vocabulary, head_rows))
    embedding, unsplit = vocabulary + embedding_weights(model), norm * model.ends_in_norm
    vectors = (unsplit + transform_weights(model)) * np.ones(tp.shape) + model.head_bias * head / h
    return Parameters(block, experts, embedding, head_vectors=vectors, head_matrix=head)


def block_weights(model: TransformerSpec) -> Weights:
    """Number of parameters of a block over all ranks, as a mean over the model's blocks, for each way of
    sharing parameters among ranks."""
    return sum_amounts((one.share, one.weights) for one in block_operators(model))


def further_weights(model: TransformerSpec) -> int:
    """Number of parameters of one projection matrix of multi-token prediction, from the hidden state and the
    next token's embedding to a block's input."""
    return 2 * model.hidden_size**2


def total_parameters(model: TransformerSpec) -> int:
    """Number of parameters of the full model, each counted once (as are tied embeddings)."""
    decoder = decoder_of(model)
    ends, norm = parameters(decoder, np.array([1])), norm_weights(decoder)
    total = model.num_layers * sum(block_weights(model).values()) + ends.embedding + ends.head_vectors
    total = total + ends.head_matrix * (not model.tied_embeddings)
    total = total + model.further_tokens * (ends.block + ends.experts + further_weights(model) + 3 * norm)
    return round(float(total[0])) + (patch_weights(model.tower) if model.tower else 0)


_CACHED = 64
_MLP = frozenset({"gate", "up", "down"})
_EXPERTS = frozenset({"experts"})
_ALL = frozenset({*get_args(Matrix), *_EXPERTS})
_GROUPS = {"all-linear": _ALL, "mlp": _MLP, "experts": _EXPERTS, "attention": _ALL - _MLP - _EXPERTS}

Part = Literal["block", "experts", "embedding", "head"]
"""Parts of a rank's model: blocks without routed experts, routed experts, embedding, head."""
BLOCK_PARTS: tuple[Part, ...] = ("block", "experts")
ENDS: tuple[Part, ...] = ("embedding", "head")


@lru_cache(maxsize=_CACHED)
def job_operators(model: TransformerSpec, tuning: TuningSpec | None) -> tuple[Operator, ...]:
    """Operators of a block in a training job: those of the model, and after each adapted matrix product those
    of its adapter."""
    if tuning is None:
        return block_operators(model)
    if tuning.left is not None:
        return tuple(replace(one, trained=part_of(one) not in tuning.left) for one in block_operators(model))
    targets = target_names(tuning)
    operators: list[Operator] = []
    kept_inputs: set[tuple[str, Tensor, float]] = set()
    for base in block_operators(model):
        if (gemm := base.gemm) and not gemm.router:
            gemm = replace(gemm, stored_bytes=tuning.stored_bytes(gemm.inputs))
        operators.append(replace(base, trained=False, gemm=gemm))
        source = ("both" if model.shares_norm else base.half, base.reads, base.share)
        has_input = base.reads_core or (base.shares_input and source in kept_inputs)
        for number, name in enumerate(gemm.names if gemm else ()):
            if name in targets:
                shares = has_input and tuning.dropout == 0
                operators += _adapter_operators(tuning, base, number, shares_input=shares)
                has_input = True
                kept_inputs.add(source)
    return tuple(operators)


def part_of(op: Operator) -> UntrainedPart:
    """Part of the model (block, vision tower or projector) to which an operator of a block belongs."""
    return "tower" if op.name == TOWER_NORM else "projector" if op.name[:9] == "projector" else "block"


def target_names(tuning: TuningSpec) -> frozenset[str]:
    """Usual names of the matrices to which the tuning's targets give adapters."""
    return frozenset[str]().union(*(_GROUPS.get(target, {target}) for target in tuning.targets))


def missing_targets(model: TransformerSpec, targets: Iterable[str]) -> tuple[str, ...]:
    """Adapter targets that name no matrix of the model."""
    available = {*matrix_names(model)}
    return tuple(target for target in targets if available.isdisjoint(_GROUPS.get(target, {target})))


def matrix_names(model: TransformerSpec) -> tuple[str, ...]:
    """Usual names of the matrices in the model's blocks that can have adapters."""
    products = products_of(block_operators(model))
    return tuple(dict.fromkeys(name for _, gemm in products for name in gemm.names))


def _adapter_operators(
    tuning: TuningSpec, base: Operator, number: int, *, shares_input: bool
) -> Iterator[Operator]:
    """Yield the operators of one matrix's adapter: products with A and B, and additions to the matrix's
    output and input gradient."""
    matrix = base.gemm
    assert matrix is not None
    common: dict[str, Any] = {"half": base.half, "share": base.share, "redone_by": base.redone_by}
    gemm = partial(Gemm, routed=matrix.routed, experts=matrix.experts, passed=matrix.passed, adapter=True)
    into = gemm(matrix.inputs, (tuning.rank,), "rows" if matrix.split == "rows" else "whole")
    options = common | {"shares_input": shares_input, "drops_input": tuning.dropout > 0}
    down = multiply(f"A of {base.name}", into, reads=base.reads.place, **options)
    out_of = gemm(tuning.rank, (matrix.outputs[number],), "columns" if matrix.split == "columns" else "whole")
    assert down.returns is not None
    up = multiply(f"B of {base.name}", out_of, reads=down.returns.place, **common)
    assert up.returns is not None
    yield from (down, up)
    yield Operator(f"adapter of {base.name}", "adapter", reads=up.returns, inputs=2, **common)
    yield Operator(f"input of {base.name}", "adapter", reads=base.reads, inputs=0, **common)


class TrainedShare(NamedTuple):
    """Trained share of the parameters of one part of the model on a rank, and bytes of frozen weights per
    parameter."""

    share: Array | float = 1.0
    """Trained parameters divided by all parameters of the part."""
    frozen: Array | float = 0.0
    """Bytes of frozen weights divided by all parameters of the part."""


ALL_TRAINED = TrainedShare()
"""Share of trained parameters (`TrainedShare`) of a job that trains every parameter."""


def trained_share(question: Question, columns: LayoutColumns, part: Part) -> TrainedShare:
    """Trained share of the parameters of one part of the model on a rank, and bytes of frozen weights per
    parameter, (N,) each. They are 1 and 0 for a job that trains all parameters."""
    tuning, element = question.training.tuning, question.training.element_bytes
    if tuning is None:
        return ALL_TRAINED
    if part in ENDS:
        share: Array | float = float(question.training.trains("embedding" if part == "embedding" else "head"))
        # vectors may be trained without the matrix
        if part == "head" and not question.training.trains("head matrix"):
            counts = parameters(question.model, columns.tp)
            share = share * counts.head_vectors / (counts.head_vectors + counts.head_matrix)
        return TrainedShare(share=share, frozen=element * (1.0 - share))
    if tuning.left is not None and not {"block", "tower", "projector"} & {*tuning.left}:
        return ALL_TRAINED
    degrees, is_experts = (columns.tp, columns.ep, columns.etp), part == "experts"
    counts_on_rank = np.maximum(1.0, parameters_on_rank(block_weights(question.model), *degrees)[is_experts])
    sizes = _tuning_sizes(question.model, tuning, element)
    share, frozen = (parameters_on_rank(size, *degrees)[is_experts] / counts_on_rank for size in sizes)
    return TrainedShare(share=share, frozen=frozen)


def trained_weights(question: Question, columns: LayoutColumns, block: Array, experts: Array) -> Array:
    """Number of parameters that a rank trains, (N,), among its `block` parameters outside experts and its
    `experts` parameters in experts."""
    unrouted, routed = (trained_share(question, columns, part).share for part in ("block", "experts"))
    return unrouted * block + routed * experts


def summed_over_tensor_ranks(question: Question, columns: LayoutColumns) -> Array:
    """Number of adapter parameters of a block that every tensor rank holds, (N,). Their gradients are summed
    over these ranks."""
    tuning = question.training.tuning
    if tuning is None or tuning.left is not None:
        return np.zeros(len(columns))
    trained, _ = _tuning_sizes(question.model, tuning, question.training.element_bytes)
    unsplit = trained.get("whole", 0.0) * (columns.tp > 1)
    return unsplit + trained.get("each expert", 0.0) / columns.ep * (columns.etp > 1)


def trained_parameters(model: TransformerSpec, tuning: TuningSpec) -> int:
    """Number of parameters of all adapters of a model."""
    return round(model.num_layers * sum(_tuning_sizes(model, tuning, 0.0)[0].values()))


def unfrozen_parameters(model: TransformerSpec, training: TrainingSpec) -> int:
    """Number of parameters of a model that a job's `freeze` leaves trained."""
    frozen, decoder = frozen_parts(model, training), decoder_of(model)
    ends = parameters(decoder, np.array([1]))
    total = float(not frozen.embedding) * ends.embedding[0] + float(not frozen.head) * ends.head_vectors[0]
    total += ends.head_matrix[0] * (not (decoder.tied_embeddings or frozen.head_matrix))
    total += patch_weights(model.tower) * (not frozen.patches) if model.tower else 0
    for count, kind_model, job in of_each_kind(model, training):
        operators = (own for own in job_operators(kind_model, job.tuning) if own.trained)
        total += count * sum(own.share * sum(own.weights.values()) for own in operators)
    return round(float(total))


@lru_cache(maxsize=_CACHED)
def _tuning_sizes(model: TransformerSpec, tuning: TuningSpec, element: float) -> tuple[Weights, Weights]:
    """Number of trained parameters, and bytes of frozen weights, of a block over all ranks, for each way of
    sharing parameters among ranks. Each maps a sharing among ranks to an amount."""
    operators = job_operators(model, tuning)
    trained = sum_amounts((one.share, one.weights) for one in operators if one.trained)
    frozen = sum_amounts((one.share, _frozen_bytes(one, element)) for one in operators if not one.trained)
    return trained, frozen


def _frozen_bytes(op: Operator, element: float) -> Weights:
    """Bytes of an operator's frozen parameters, for each way of sharing parameters among ranks. A matrix may
    be stored in fewer bits, a bias is not."""
    gemm = op.gemm
    if gemm is None or gemm.stored_bytes is None:
        return {sharing: element * count for sharing, count in op.weights.items()}
    bias = op.biased * gemm.width
    biases = sum(op.weights.values()) * bias / (gemm.elements + bias)
    *_, last = op.weights  # which also holds the biases
    stored = {sharing: gemm.stored_bytes * count for sharing, count in op.weights.items()}
    return stored | {last: stored[last] + (element - gemm.stored_bytes) * biases}
