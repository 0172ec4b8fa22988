"""What a layout must keep to on a cluster of several pools, beside the rules of `planner.rules.legality`."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.order import ranks_inside
from cost_models.axes.rule import Words
from cost_models.pipeline.pool_terms import ranks_in
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import PLAIN, is_scheduled
from planner.rules.searched import searched


def fills_pools(question: MixedQuestion, columns: LayoutColumns) -> Bools:
    """(N,): layouts whose ranks each lie in one pool and fill all of them, one stage a rank."""
    gpus_K1 = np.array([pool.cluster.num_gpus for pool in question.pools])[:, None]
    whole: Bools = (gpus_K1 % (columns.tp * columns.replicas) == 0).all(axis=0)
    outermost = _pipeline_is_outermost(columns)
    fills: Bools = whole & outermost & is_scheduled(columns, PLAIN) & (columns.vpp == 1)
    return fills


def _pipeline_is_outermost(columns: LayoutColumns) -> Bools:
    """(N,): layouts that seat all GPUs of a pipeline rank side by side."""
    x = columns
    side_by_side: Bools = ranks_inside("pp", x.order, x.tp, x.cp, x.dp, x.pp) == x.tp * x.replicas
    return side_by_side


def pool_objections(question: Question, layout: Layout) -> list[Words]:
    """What is wrong with where a layout puts its ranks."""
    if not isinstance(question, MixedQuestion):
        word = layout.says_pools
        what = f"`{word}=` chooses among pools; cluster `{question.cluster.name}` is one"
        return [Words(what, "leave it out")] if word else []
    for axis in searched().values():
        if axis.objections and (found := axis.objections(question, layout)) is not None:
            return found
    size = layout.tp * layout.data_ranks
    found = [
        Words(
            f"a pipeline rank of {size:,} GPUs (tp x cp x dp) does not divide pool `{pool.cluster.name}` of"
            f" {pool.cluster.num_gpus:,}",
            "every rank lies in one pool, and all GPUs are used",
        )
        for pool in question.pools
        if pool.cluster.num_gpus % size
    ]
    if layout.vpp > 1 or layout.schedule not in PLAIN:
        written = f"vpp{layout.vpp}" if layout.vpp > 1 else f"schedule={layout.schedule}"
        found.append(
            Words(
                f"`{written}` needs equal stages, and pools of different GPUs have none", "use 1f1b or gpipe"
            )
        )
    if not _pipeline_is_outermost(LayoutColumns.of([layout]))[0]:
        what = f"`order={layout.order}` spreads each pipeline rank, and each lies in one pool"
        found.append(Words(what, "use an order that ends with pp"))
    if layout.pools and not found:
        found += _order_objections(question, layout)
    return found


def _order_objections(question: MixedQuestion, layout: Layout) -> list[Words]:
    """`pools=` must name every pool once, for as many ranks as it holds."""
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    right = dict(zip(question.names, counts, strict=True))
    runs = [(name, len(list(run))) for name, run in groupby(layout.pools)]
    if sorted(runs) == sorted(right.items()):
        return []
    written = ",".join(f"{name}*{count}" for name, count in runs)
    fitting = ",".join(f"{name}*{count}" for name, count in right.items())
    return [
        Words(f"`pools={written}` is not how the pools divide", f"pools={fitting}, in any order of the pools")
    ]
