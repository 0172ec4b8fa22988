"""The ring: buffers on the device through which streamed weights come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.axes.axis import Axis
from cost_models.axes.offload import USUAL_RING, evenly
from cost_models.axes.rule import Limit, Words, refuses, rule_when
from cost_models.axes.words import Assigned
from cost_models.question import Question
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout


@rule_when(
    "a ring has no more buffers than streamed blocks",
    lambda q, x: (
        (x.offload_streamed > 0)
        & (x.ring != USUAL_RING)
        & (x.ring > np.minimum(x.offload_streamed, evenly(q, x)))
    ),
)
def _ring_too_long(question: Question, layout: Layout) -> Words:
    streamed = min(layout.offload.streamed, question.model.num_layers // layout.pp)
    return Words(
        f"`ring={layout.ring}` has more buffers than the {counted(streamed, 'block')} that are streamed",
        f"use `ring={streamed}` or less",
    )


RING = Axis(
    word=Assigned(usual=USUAL_RING),
    text="Buffers on the device through which streamed weights come.",
    compared=lambda value: "usual",  # how far ahead weights are fetched
    written=lambda layout: layout.offload.streamed > 0 and layout.ring != USUAL_RING,
    settled=lambda layout: layout.ring if layout.offload.streamed else USUAL_RING,
    values=lambda question, mesh: (USUAL_RING,),
    touches=frozenset({"states"}),
    limits=(
        Limit(
            name="rings have the usual buffers",
            covered="a ring of two buffers, or as asked for",
            beyond=lambda q, limits, x: (
                (x.ring != USUAL_RING) & ~np.isin(x.ring, list(limits.only.get("ring", ())))
            ),
            what="`ring={layout.ring}` is searched only where `--fix ring={layout.ring}` asks for it",
            matters=lambda q, limits: limits.opens("offload") and "streamed" in q.stack.residencies,
        ),
    ),
    rules=(
        refuses(
            "a ring is for streamed weights",
            lambda q, x: (x.offload_streamed == 0) & (x.ring != USUAL_RING),
            "`ring={layout.ring}` says how many weights are streamed at once",
        ),
        _ring_too_long,
    ),
)
