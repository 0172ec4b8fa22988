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
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.axes.offload import named_blocks
from cost_models.pipeline.terms.memory_terms import MemoryTerms
from cost_models.pipeline.time_pieces import Term
from cost_models.pipeline.time_terms import TimeTerms, time_terms
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES

Terms = TypeVar("Terms", TimeTerms, MemoryTerms)
Price = Callable[[Question, LayoutColumns], Terms]
AXES = tuple(field.name for field in fields(LayoutColumns))
OF_BLOCKS = (
    *("layer_forward", "layer_backward", "layer_weight", "layer_sync", "layer_optimizer"),
    *("layer_static", "layer_activation", "layer_pending", "layer_update", "working"),
)
"""Coefficients that a block has."""


def times_of_kinds(
    question: Question, columns: LayoutColumns, *, data_parallel: bool = True
) -> list[TimeTerms]:
    """The terms of time as if all blocks were of one kind, for each kind."""
    price = partial(time_terms, data_parallel=data_parallel)
    return each_kind(question, columns, price, partial(price, whole=False))


def each_kind(
    question: Question, columns: LayoutColumns, price: Price[Terms], of_others: Price[Terms] | None = None
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
        return _joined([getattr(one, name) for one in each], kinds.mean)

    names = [field.name for field in fields(each[0])]
    common = replace(each[last], **{name: mean(name) for name in names if name[:5] == "rank_"})
    if question.model.tower is not None:
        begins = {name: getattr(each[0], name) for name in names if name[:10] == "embedding_"}
        for name in begins.keys() & {"embedding_static"}:
            begins[name] = begins[name] | {"buffers": getattr(common, name)["buffers"]}
        common = replace(common, **begins)
    own_names = [name for name in names if name in OF_BLOCKS]
    found = [replace(common, **{name: getattr(one, name) for name in own_names}) for one in each]
    if not counted.any():
        return found

    def unless_counted(both: list[Array]) -> Array:
        return np.where(counted if both[0].ndim == 1 else counted[:, None], both[1], both[0])

    return [
        replace(
            one, **{name: _joined([getattr(one, name), mean(name)], unless_counted) for name in own_names}
        )
        for one in found
    ]


def _as_seen(question: Question, own: Question, columns: LayoutColumns) -> LayoutColumns:
    """The layouts as blocks of one kind see them: to a vision tower every image is a sequence, which no rank splits."""
    if own.model.tower is None or own.model.tower.part != "tower":
        return columns
    return replace(columns, mbs=columns.mbs * (question.training.images or 1), sp=np.zeros_like(columns.sp))


def _as_run(own: Question, terms: Terms) -> Terms:
    """Terms of blocks of one kind as a job runs them: forward alone where nothing before them is trained, and the first
    of a decoder behind a tower with the token embedding, which lies with it."""
    changed, names = dict[str, Term](), {field.name for field in fields(terms)}
    if own.training.still:
        for name in names & {"layer_backward", "layer_weight", "layer_activation", "layer_pending"}:
            changed[name] = {part: np.zeros_like(value) for part, value in getattr(terms, name).items()}
        for name in names & {"working"}:
            of_policies = getattr(terms, name).items()
            changed[name] = {part: value[:, :1] + np.zeros_like(value) for part, value in of_policies}
    if own.model.tower is not None and own.model.tower.part == "joint":
        for name in names & {f"layer_{one[10:]}" for one in names if one[:10] == "embedding_"}:
            changed[name] = _with_embedding(
                changed.get(name, getattr(terms, name)), getattr(terms, f"embedding_{name[6:]}")
            )
    return replace(terms, **changed) if changed else terms


def _with_embedding(block: Term, embedding: Term) -> Term:
    found, policies = dict(block), max(value.ndim for value in block.values()) > 1
    for part, value in embedding.items():
        if part != "buffers":
            found[part] = found.get(part, 0.0) + (value[:, None] if policies else value)
    return found


def terms_by_sort(each: Sequence[Terms]) -> Terms:
    """Of blocks by sort, with an axis T in place of P where there are several kinds."""
    if len(each) == 1:
        return each[0]
    names = [field.name for field in fields(each[0]) if field.name in OF_BLOCKS]
    sorts = {name: _joined([getattr(one, name) for one in each], by_sort) for name in names}
    return replace(each[0], **sorts)


def by_sort(values: Sequence[Array]) -> Array:
    """(N, T) of what blocks of each kind have, (N,) or (N, P)."""
    policies = len(RECOMPUTE_POLICIES)
    each = [np.repeat(value[:, None], policies, axis=1) if value.ndim == 1 else value for value in values]
    return np.concatenate(each, axis=-1)


def _joined(terms: Sequence[Mapping[str, Array]], join: Callable[[list[Array]], Array]) -> Term:
    """One term of several, part by part; a part that one of them lacks is zero there."""
    known = {part: value for term in terms for part, value in term.items()}
    return {part: join([term.get(part, np.zeros_like(own)) for term in terms]) for part, own in known.items()}
