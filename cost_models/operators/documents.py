"""Attention work in sequences made of documents, and the waiting of ranks whose sequences have different
amounts of work.

A token attends only to its own document, so the scores of a sequence are the sum over its documents: few for
many documents, most for a single one. Ranks that synchronise wait for the busiest, whose excess over the mean
is

    E[max over n ranks of the mean of k sequences] / mean − 1,   E[max] = ∫ 1 − F(x)^n dx

with F the distribution of the sum of k draws, by Fourier transform of the histogram of drawn sequences. Ranks
that share weights synchronise once a step; if a layer's weights or experts are elsewhere (ZeRO-3, expert
ranks), in every microbatch.

Context ranks have two pieces of a sequence, one from either end; a rank has less work if documents begin in
its pieces. Leaves out ring ranks whose work differs from step to step, and bubbles of pipelines whose
microbatches differ. Kernels that store scores compute all of them, and padding is computed. In buckets ranks
process documents of similar length at the same time, as Hugging Face's sampler deals them (transformers:
`LengthGroupedSampler`), and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns, context_ways
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS
from cost_models.specs.stack import STORES_SCORES
from cost_models.specs.training import LengthsSpec, TrainingSpec, sequences_of
from cost_models.specs.transformer import TransformerSpec

_BINS = 256
_MAX_CONVOLVED = 512
"""Maximum number of a rank's sequences whose work is added up by convolution. Beyond it the busiest rank's
excess falls with the square root of the number."""
_COMPARED_SEQUENCES = 256
"""Number of sequences in which the work of context-parallel ranks is compared."""


class KeysPerQuery(NamedTuple):
    """Mean number of keys per query, over blocks and over all tokens of a job's sequences."""

    computed: float
    """Keys per query for which a kernel computes scores, including padding."""
    useful: float
    """Keys per query in the query's document, without padding, if the causal mask is ignored."""
    masked: float
    """Keys per query in the query's document, without padding, that the causal mask leaves."""


@lru_cache(maxsize=64)
def attended_keys(model: TransformerSpec, training: TrainingSpec) -> KeysPerQuery:
    """Mean number of keys per query in a job's sequences, where keys are in the query's document or, without
    documents, in the entire sequence."""
    lengths, length = training.lengths, training.sequence_length
    if lengths is None:
        return KeysPerQuery(model.unmasked(length), model.attended(length), model.unmasked(length))
    sample = sequences_of(lengths, length)
    pairs = (_score_pairs(keys, sample.documents) for keys in (model.unmasked, model.attended))
    masked, useful = (float(scored.sum()) / (sample.number * length) for scored in pairs)
    return KeysPerQuery(model.unmasked(length) if lengths.packing == "pad" else masked, useful, masked)


def with_bucket_lengths(question: Question) -> Question:
    """Copy of the question with the mean document length as sequence length, if documents are in buckets;
    else the question unchanged."""
    training, lengths = question.training, question.training.lengths
    if lengths is None or lengths.packing != "bucket":
        return question
    sample = sequences_of(lengths, training.sequence_length)
    exact = lengths.model_copy(update={"lognormal": None, "documents": tuple(sample.documents.tolist())})
    update = {"sequence_length": max(1, round(sample.mean)), "lengths": exact}
    return replace(question, training=training.model_copy(update=update))


def context_rank_excess(question: Question, columns: LayoutColumns) -> Array:
    """Relative excess of the busiest context-parallel rank's attention work over the mean of the
    context-parallel ranks, (N,)."""
    trades_heads = context_ways(question, columns) == CONTEXTS.index("all-to-all")
    return _excess_of_pairs(_context_excess, question, np.where(trades_heads, 1, columns.cp), columns.mbs)


def straggler_excess(question: Question, columns: LayoutColumns, *, data_parallel: bool) -> Array:
    """Relative excess of the busiest rank's attention work over the mean of the data-parallel or
    expert-parallel ranks that wait for it, (N,).

    Synchronisation by ZeRO-3 in every microbatch counts only with `data_parallel`.
    """
    gathered = np.where((columns.zero == 3) & data_parallel, columns.shard, 1)
    once_a_step = columns.dp, columns.microbatches(question.training.global_batch) * columns.mbs
    every_microbatch = np.minimum(np.maximum(gathered, columns.ep), columns.dp), columns.mbs
    pairs = (once_a_step, every_microbatch)
    return np.maximum(*(_excess_of_pairs(_rank_excess, question, *pair) for pair in pairs))


_Excess = Callable[[TransformerSpec, LengthsSpec, int, int, int], float]


def _excess_of_pairs(excess: _Excess, question: Question, ranks: Ints, sequences: Ints) -> Array:
    """Relative excess of the busiest rank's attention work over the mean, (N,). The function `excess`
    computes it, once per distinct pair (ranks, sequences per rank). It is 0 unless packed documents give
    sequences different work."""
    lengths, longest = question.training.lengths, question.training.sequence_length
    if lengths is None or lengths.packing != "pack" or question.stack.attention in STORES_SCORES:
        return np.zeros(len(ranks))
    pairs, pair_index = np.unique(np.stack([ranks, sequences]), axis=1, return_inverse=True)
    excesses: Array = np.array([excess(question.model, lengths, longest, *pair) for pair in pairs.T.tolist()])
    return excesses[pair_index.ravel()]


def _score_pairs(keys: Callable[[int], float], length: Ints) -> Array:
    """Number of query-key pairs scored in documents of the given lengths; `keys` maps a length to the mean
    number of keys per query."""
    distinct, index = np.unique(length, return_inverse=True)
    pairs: Array = np.array([one * keys(one) if one else 0.0 for one in distinct.tolist()])
    return pairs[index].reshape(length.shape)


@lru_cache(maxsize=256)
def _context_excess(model: TransformerSpec, lengths: LengthsSpec, longest: int, cp: int, mbs: int) -> float:
    """Relative excess of the busiest context-parallel rank's attention work over the mean, for one pair of cp
    and microbatch size."""
    sample = sequences_of(lengths, longest)
    count = min(sample.number, max(1, _COMPARED_SEQUENCES // mbs) * mbs)
    start_D = np.cumsum(sample.documents) - sample.documents
    start_D = start_D - start_D[np.searchsorted(sample.places, sample.places)] + sample.places * longest
    before_D = np.cumsum(scores_D := _score_pairs(model.unmasked, sample.documents)) - scores_D
    cuts = np.rint(np.arange(2 * cp + 1) * longest / (2 * cp)).astype(np.int64)
    ends = np.arange(count)[:, None] * longest + cuts
    last = np.maximum(np.searchsorted(start_D, ends) - 1, 0)  # document that began before the cut
    offset = np.minimum(ends - start_D[last], sample.documents[last])
    document_tokens = sample.documents[last]
    begun = offset * document_tokens if model.encoder else _score_pairs(model.unmasked, offset)
    piece = np.diff(before_D[last] + begun, axis=1)
    of_rank = piece[:, :cp] + piece[:, : cp - 1 : -1]
    per_microbatch = of_rank[: max(1, count // mbs) * mbs].reshape(-1, min(mbs, count), cp).sum(axis=1)
    return max(0.0, float(per_microbatch.max(axis=1).sum() / per_microbatch.mean(axis=1).sum()) - 1.0)


@lru_cache(maxsize=64)
def _work_histogram(model: TransformerSpec, lengths: LengthsSpec, longest: int) -> tuple[Array, float]:
    """Share of sequences in each of `_BINS` bins of attention work, by rising work, and the width of a bin
    relative to the mean work."""
    sample = sequences_of(lengths, longest)
    work_S = np.bincount(sample.places, weights=_score_pairs(model.unmasked, sample.documents))
    work_S = work_S / work_S.mean()
    step = float(work_S.max() - work_S.min()) / (_BINS - 1)
    place = np.rint((work_S - work_S.min()) / step) if step else np.zeros(len(work_S))
    return np.bincount(place.astype(np.int64), minlength=_BINS) / len(work_S), step


@lru_cache(maxsize=4096)
def _rank_excess(model: TransformerSpec, lengths: LengthsSpec, longest: int, ranks: int, draws: int) -> float:
    """Relative excess of the busiest of `ranks` ranks' attention work over the mean, if each rank has `draws`
    sequences."""
    chance, step = _work_histogram(model, lengths, longest)
    if ranks == 1 or step == 0:
        return 0.0
    summed = min(draws, _MAX_CONVOLVED)
    size = summed * (_BINS - 1) + 1
    cumulative = np.cumsum(np.clip(np.fft.irfft(np.fft.rfft(chance, size) ** summed, size), 0.0, None))
    expected_max = float((1.0 - np.minimum(1.0, cumulative) ** ranks).sum())
    mean = summed * float(chance @ np.arange(_BINS))
    return max(0.0, (expected_max - mean) * step / summed * sqrt(summed / draws))
