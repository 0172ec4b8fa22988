"""Coefficients of models whose blocks are of several kinds: of each kind, of the mean block, and by sort.

A sort is a kind of block under a recompute policy; by sort coefficients price placements. What is no block's is that of
the last block's kind (predicted further tokens have such blocks), and what a rank does or holds besides is the mean.
Where blocks are offloaded by number, which ones they are is not told, so all blocks are priced as their mean.

Shape legend: N layouts, P recompute policies, K kinds, T = K·P sorts, kind by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.axes.offload import named_blocks
from cost_models.pipeline.terms.memory_terms import memory_terms
from cost_models.pipeline.time_pieces import Term, Terms
from cost_models.pipeline.time_terms import time_terms
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES

Price = Callable[[Question, LayoutColumns], Terms]
AXES = tuple(field.name for field in fields(LayoutColumns))
OF_BLOCKS = (
    *("layer_forward", "layer_backward", "layer_weight", "layer_sync", "layer_optimizer"),
    *("layer_static", "layer_activation", "layer_pending", "layer_update", "working"),
)
"""Coefficients that a block has."""


def times_of_kinds(question: Question, columns: LayoutColumns, *, data_parallel: bool = True) -> list[Terms]:
    """The terms of time as if all blocks were of one kind, for each kind."""
    price = partial(time_terms, data_parallel=data_parallel)
    return each_kind(question, columns, price, partial(price, whole=False))


def terms_by_kind(question: Question, columns: LayoutColumns) -> list[Terms]:
    """The terms of time and memory as if all blocks were of one kind, for each kind."""
    return each_kind(question, columns, stage_terms, partial(stage_terms, whole=False))


def stage_terms(question: Question, columns: LayoutColumns, *, whole: bool = True) -> Terms:
    """All coefficients of N layouts at once, those of time and those of memory."""
    return time_terms(question, columns, whole=whole) | memory_terms(question, columns)


def each_kind(
    question: Question, columns: LayoutColumns, price: Price, of_others: Price | None = None
) -> list[Terms]:
    """The terms as if all blocks were of one kind, for each kind; they differ in those of blocks alone.

    `of_others` prices all kinds but the last block's, of which terms of blocks count, and what a rank has besides.
    """
    if question.kinds.number == 1:
        return [_as_run(own, price(own, columns)) for own in question.by_kind]
    # a block without experts does not depend on their degrees, but for updates by shares of the whole model
    alike = question.stack.update_group is None
    without = replace(columns, ep=np.ones_like(columns.ep), etp=columns.tp) if alike else columns
    kinds, counted = question.kinds, named_blocks(columns) > 0
    last, each = kinds.of_block[-1], list[Terms]()
    for kind, own in enumerate(question.by_kind):
        ends = kind == last or of_others is None or own.model.tower is not None
        price_of = partial(price if ends else of_others or price, own)
        rows = _as_seen(question, own, columns if own.model.moe_share else without)
        each.append(_as_run(own, over_distinct(rows, AXES, price_of)))

    def mean(name: str) -> Term:
        return _joined([one[name] for one in each], kinds.mean)

    common = each[last] | {name: mean(name) for name in each[last] if name.startswith("rank_")}
    if question.model.tower is not None:
        begins = {name: term for name, term in each[0].items() if name.startswith("embedding_")}
        for name in begins.keys() & {"embedding_static"}:
            begins[name] = begins[name] | {"buffers": common[name]["buffers"]}
        common = common | begins
    own_names = [name for name in OF_BLOCKS if name in common]
    found = [common | {name: one[name] for name in own_names} for one in each]
    if not counted.any():
        return found

    def unless_counted(both: list[Array]) -> Array:
        return np.where(counted if both[0].ndim == 1 else counted[:, None], both[1], both[0])

    return [
        one | {name: _joined([one[name], mean(name)], unless_counted) for name in own_names} for one in found
    ]


def _as_seen(question: Question, own: Question, columns: LayoutColumns) -> LayoutColumns:
    """The layouts as blocks of one kind see them: to a vision tower every image is a sequence, which no rank splits."""
    if own.model.tower is None or own.model.tower.part != "tower":
        return columns
    return replace(columns, mbs=columns.mbs * (question.training.images or 1), sp=np.zeros_like(columns.sp))


def _as_run(own: Question, terms: Terms) -> Terms:
    """Terms of blocks of one kind as a job runs them: forward alone where nothing before them is trained, and the first
    of a decoder behind a tower with the token embedding, which lies with it."""
    terms = dict(terms)
    if own.training.still:
        for name in terms.keys() & {"layer_backward", "layer_weight", "layer_activation", "layer_pending"}:
            terms[name] = {part: np.zeros_like(value) for part, value in terms[name].items()}
        for name in terms.keys() & {"working"}:
            terms[name] = {part: value[:, :1] + np.zeros_like(value) for part, value in terms[name].items()}
    if own.model.tower is not None and own.model.tower.part == "joint":
        for name in [name for name in terms if name.startswith("embedding_")]:
            block = dict(terms[name.replace("embedding", "layer")])
            policies = max(value.ndim for value in block.values()) > 1
            for part, value in terms[name].items():
                if part != "buffers":
                    block[part] = block.get(part, 0.0) + (value[:, None] if policies else value)
            terms[name.replace("embedding", "layer")] = block
    return terms


def terms_by_sort(each: Sequence[Terms]) -> Terms:
    """Of blocks by sort, with an axis T in place of P where there are several kinds."""
    if len(each) == 1:
        return each[0]
    return each[0] | {name: _joined([one[name] for one in each], by_sort) for name in OF_BLOCKS}


def by_sort(values: Sequence[Array]) -> Array:
    """(N, T) of what blocks of each kind have, (N,) or (N, P)."""
    policies = len(RECOMPUTE_POLICIES)
    each = [np.repeat(value[:, None], policies, axis=1) if value.ndim == 1 else value for value in values]
    return np.concatenate(each, axis=-1)


def _joined(terms: Sequence[Mapping[str, Array]], join: Callable[[list[Array]], Array]) -> Term:
    """One term of several, part by part; a part that one of them lacks is zero there."""
    known = {part: value for term in terms for part, value in term.items()}
    return {part: join([term.get(part, np.zeros_like(own)) for term in terms]) for part, own in known.items()}
