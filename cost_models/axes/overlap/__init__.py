"""Which communication runs behind compute: `overlap=tp,pp,dp`, or `none`; unsaid, what the software stack always does.

tp  collectives inside the products around them, chunk by chunk
pp  a stage's results leave while it goes on
dp  gradients are reduced as they are complete, updated weights gathered as the next forward pass goes on
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.axis import Axis, Mesh
from cost_models.axes.offload import offloads
from cost_models.axes.rule import Words, refuses, rule_when
from cost_models.axes.words import UNSAID, Subset
from cost_models.errors import either
from cost_models.question import Question
from cost_models.schedules import PLAIN, is_scheduled
from cost_models.specs.choices import OVERLAPS, Overlap
from cost_models.specs.stack import StackSpec

if TYPE_CHECKING:
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import Layout


def said(columns: LayoutColumns) -> Bools:
    """(N,): which layouts say what overlaps."""
    found: Bools = np.any([getattr(columns, f"overlap_{axis}") != UNSAID for axis in OVERLAPS], axis=0)
    return found


def _behind(columns: LayoutColumns, mesh_axis: str, always: Bools) -> Bools:
    """(N,): whose communication over a mesh axis runs behind compute; `always` of layouts that do not say."""
    if mesh_axis not in OVERLAPS:
        return always
    column: Ints = getattr(columns, f"overlap_{mesh_axis}")
    return np.where(column == UNSAID, always, column == 1)


def overlapped_by(stack: StackSpec) -> tuple[Overlap, ...]:
    """The axes whose communication a software stack can run behind compute."""
    always: dict[Overlap, bool] = {
        "tp": stack.overlap_tensor_parallel > 0,
        "pp": stack.overlap_pipeline_sends,
        "dp": stack.overlap_gradient_reduce or stack.overlap_parameter_gather,
    }
    return tuple(axis for axis in OVERLAPS if always[axis] or axis in stack.overlaps)


def _lacking(question: Question, x: LayoutColumns) -> Bools:
    has = overlapped_by(question.stack)
    wanted = [getattr(x, f"overlap_{axis}") == 1 for axis in OVERLAPS if axis not in has]
    lacking: Bools = np.any([np.zeros(len(x), dtype=np.bool_), *wanted], axis=0)
    return lacking


@rule_when("the stack overlaps this", _lacking)
def _stack_lacks(question: Question, layout: Layout) -> Words:
    stack, has = question.stack, overlapped_by(question.stack)
    lacks = [axis for axis in layout.overlap or () if axis not in has]
    hint = f"it can with {either([f'`overlap={axis}`' for axis in has])}" if has else "leave out `overlap`"
    return Words(
        f"software stack `{stack.name}` cannot run {' and '.join(lacks)} communication behind compute",
        f"{hint}; `--stack` names another",
    )


def _reduces_later(question: Question, x: LayoutColumns) -> Bools:
    later: Bools = (x.overlap_dp == 1) & ~np.isin(x.zero, question.stack.overlaps_gradient_reduce_at)
    return later


@rule_when("the stack overlaps under this ZeRO stage", _reduces_later)
def _stages(question: Question, layout: Layout) -> Words:
    stages = either([f"`zero{stage}`" for stage in question.stack.overlaps_gradient_reduce_at])
    return Words(
        f"software stack `{question.stack.name}` has `overlap=dp` under {stages} only",
        f"use {stages}, or leave `dp` out",
    )


def _meaningful(layout: Layout) -> tuple[Overlap, ...] | None:
    """Without axes of one rank; of one rank alone there is nothing to say."""
    if layout.overlap is None:
        return None
    ranks = {"tp": layout.tp, "pp": layout.pp, "dp": layout.data_ranks}
    if max(ranks.values()) == 1:
        return None
    kept = tuple(axis for axis in layout.overlap if ranks[axis] > 1)
    return layout.overlap if kept == layout.overlap else kept


def _tried(question: Question, mesh: Mesh) -> list[tuple[int, ...]]:
    """What the stack always does, and all that it can besides."""
    ranks = {"tp": mesh.tp, "pp": mesh.pp, "dp": mesh.dp * mesh.cp}
    has = [axis in overlapped_by(question.stack) and ranks[axis] > 1 for axis in OVERLAPS]
    if max(ranks.values()) == 1:
        return [(UNSAID,) * len(OVERLAPS)]
    return [(UNSAID,) * len(OVERLAPS), *product(*([0, 1] if one else [0] for one in has))]


@rule_when(
    "schedules off tables send ahead", lambda q, x: (x.overlap_pp == 0) & (x.pp > 1) & ~is_scheduled(x, PLAIN)
)
def _sends_ahead(question: Question, layout: Layout) -> Words:
    what = f"PyTorch runs `schedule={layout.schedule}` off a table, which posts sends ahead"
    named = ",".join(axis for axis in OVERLAPS if axis == "pp" or axis in (layout.overlap or ()))
    return Words(f"{what} whatever a layout says", f"write `overlap={named}`, or leave `overlap` out")


OVERLAP = Axis(
    word=Subset(OVERLAPS),
    text="Communication of these axes runs behind compute.",
    compared=lambda value: "usual" if value is None else ",".join(value) or "none",
    settled=_meaningful,
    rules=(
        refuses(
            "tensor overlap splits the sequence",
            lambda q, x: (x.overlap_tp == 1) & (x.sp == 0),
            "`overlap=tp` hides gathers and scatters of parts of a sequence, and without `sp` there are none",
            "write `sp`",
        ),
    ),
    stack_rules=(
        _stack_lacks,
        _stages,
    ),
    executor_rules=(
        refuses(
            "symmetric memory is of GPUs",
            lambda q, x: (x.overlap_tp == 1) & (q.cluster.gpu.kind == "cpu"),
            "`overlap=tp` sends through the symmetric memory of GPUs (torch.distributed._symmetric_memory), and"
            " `{question.cluster.name}` has none",
            "leave `tp` out of `overlap`",
        ),
        _sends_ahead,
        refuses(
            "blocks in host memory have buffers of their own",
            lambda q, x: (x.overlap_dp == 1) & offloads(x),
            "the executor reduces gradients of blocks in host memory as they come down, not behind compute",
            "leave out `offload`, or `overlap=dp`",
        ),
    ),
    values=_tried,
    closed=True,
    price="cost_models.axes.overlap.price:PRICE",
    behind=_behind,
    executor="executor.axes.overlap:OverlapAxis",
)
