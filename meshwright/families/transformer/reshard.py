"""`reshard` of a transformer: bytes that every rank sends and receives, seconds, and memory meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.communication.resharding import ReshardBytes, StoredTensor
from cost_models.communication.resharding import reshard as moved
from cost_models.errors import InputError
from cost_models.memory.states import moment_bytes
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES
from cost_models.units import format_bytes, format_seconds
from meshwright.families.transformer.compare import compare
from meshwright.render.goals import gpus_in_words
from meshwright.render.words import Fact, facts_text, percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.plan import AnyPlan, Plan

_SAID = ("name", "source", "vocab_multiple")
"""Of a model what its parameters do not depend on, but for those that pad a vocabulary."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Resharded(AnswerBase):
    """What moves between two layouts of one model."""

    question: Question
    """Of the layout with more GPUs."""
    layouts: tuple[Layout, Layout]
    moved: ReshardBytes
    states: bool

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each rank, bytes."""
        names = [f"{name}_bytes" for name in self.moved._fields]
        each = zip(*(own.tolist() for own in self.moved), strict=True)
        return [{"rank": rank, **dict(zip(names, own, strict=True))} for rank, own in enumerate(each)]

    def document(self) -> dict[str, Any]:
        inside, network = self.moved.seconds(self.question)
        return {
            "layouts": [str(layout) for layout in self.layouts],
            "states": self.states,
            "seconds": {"inside_node": inside, "network": network, "total": max(inside, network)},
            "extra_bytes": float(self.moved.received_total.max()),
            "ranks": self.rows,
        }

    @property
    def text(self) -> tuple[str, ...]:
        found, (inside, network) = self.moved, self.moved.seconds(self.question)
        needed, arriving, near = (
            float(own.sum()) for own in (found.needed, found.received_total, found.received_inside)
        )
        most = {name: format_bytes(float(own.max())) for name, own in found._asdict().items()}
        facts = {
            "from": self.layouts[0].brief,
            "to": self.layouts[1].brief,
            "moved": f"{format_bytes(arriving)} of {format_bytes(needed)} that ranks need, {format_bytes(near)} of it"
            f" inside nodes; {percent(1 - arriving / needed)} is where it is needed",
            "a rank": f"receives up to {most['received']} over the network and {most['received_inside']} inside its"
            f" node, sends up to {most['sent']} and {most['sent_inside']}",
            "time": f"{format_seconds(max(inside, network))} at least: network {format_seconds(network)}, links of a"
            f" node {format_seconds(inside)}, side by side",
            "memory": f"up to {format_bytes(float(found.received_total.max()))} more on a GPU while both layouts are"
            " there",
        }
        what = "weights, master weights and moments" if self.states else "weights"
        said = wrapped(f"{what} of {self.question.model.name} on {gpus_in_words(self.question)}")
        return said, "", facts_text(Fact(name=name, value=value) for name, value in facts.items())


def reshard(first: Plan, second: str | Path | AnyPlan, *, states: bool) -> Resharded:
    """Move a model from the layout of a plan to that of another, or to another layout of its question.

    Raises:
        InputError: they are not of one model and kind of node, or a layout cannot run.
    """
    plans = compare(first, (second,), None).plans
    one, two = (plan.question for plan in plans)
    here, there, training = one.cluster, two.cluster, one.training
    hint = "plan or estimate both for the same model and cluster"
    if one.model.model_copy(update={name: getattr(two.model, name) for name in _SAID}) != two.model:
        raise InputError(
            f"the plans are of different models: {one.model.name} and {two.model.name}", hint=hint
        )
    if one.has_pools or two.has_pools:
        raise InputError("what moves between pools of different GPUs is not priced")
    if (here.gpu.name, here.gpus_per_node) != (there.gpu.name, there.gpus_per_node):
        raise InputError(f"the plans are on different nodes: {here.name} and {there.name}", hint=hint)
    if states and training.tuning is not None:
        raise InputError("the first plan has states of adapters, not of the model", hint="leave out --states")
    kept = [StoredTensor(training.element_bytes, from_stage=3)]
    if states:
        kept.append(StoredTensor(STATE_BYTES[training.state_dtype] + moment_bytes(one), from_stage=1))
    layouts = (plans[0].estimate.layout, plans[1].estimate.layout)
    return Resharded(
        question=max(one, two, key=lambda own: own.cluster.num_gpus),
        layouts=layouts,
        moved=moved(one, *layouts, kept, here.gpus_per_node),
        states=states,
    )
