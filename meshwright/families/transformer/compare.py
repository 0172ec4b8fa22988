"""`compare` and `reshard` for transformers: plans and layouts side by side, and bytes that move between two
layouts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.communication.resharding import ReshardBytes, StoredTensor
from cost_models.communication.resharding import reshard as moved
from cost_models.errors import InputError
from cost_models.estimate import Estimate, chance_of_gain, error_between, pair_error_of
from cost_models.expected import ExpectedStep, expected_step
from cost_models.memory.states import moment_bytes
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES
from cost_models.units import format_bytes, format_seconds
from meshwright.families.transformer import TransformerVerbs
from meshwright.records.estimates import completed_record, estimate_record, question_record
from meshwright.render.estimates import chance_text, expected_record, step_words
from meshwright.render.explanation import filled_sentence
from meshwright.render.goals import gpus_in_words
from meshwright.render.tables import Table, table
from meshwright.render.words import (
    NEGLIGIBLE_SHARE,
    UNIT_TEXTS,
    Fact,
    change,
    change_words,
    facts_text,
    part_label,
    percent,
    wrapped,
)
from meshwright.terminal.answers import Answer
from planner.explain.compare import Difference, Line, differences, same_work
from planner.explain.compare import compare as lines_of
from planner.explain.reasons import CompletedLayout
from planner.plan import AnyPlan, Plan


@dataclass(frozen=True, kw_only=True)
class PricedPlan:
    """One of the compared plans: its question, and the price of its layout."""

    question: Question
    estimate: Estimate
    completed: CompletedLayout | None = None
    """Full layout of a choice given as a layout; None for a plan."""

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """Step time expected in a real run, with its 90 % interval; None if the profile has no scenarios, or on
        several GPU pools."""
        return expected_step(self.question, self.estimate)

    def record(self) -> dict[str, Any]:
        """JSON object of the plan: predicted price, expected step time, and axes of the layout that a search filled
        in."""
        expected = expected_record(self.question, self.estimate.layout, self.expected)
        read = {} if self.completed is None else completed_record(self.completed)
        return estimate_record(self.estimate, self.question) | {"expected": expected} | read


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """Comparison of a plan's step time with the first plan's: their ratio, the ratio's usual error, and the
    probability of the predicted order."""

    number: int
    """Number of this plan among the compared plans, from 1."""
    ratio: float
    """Predicted step time divided by the first plan's."""
    error: float | None
    """Median error of predicted ratios between two such layouts; None if the plans answer different questions."""
    chance: float | None
    """Probability that the plan predicted slower is also slower in a run; None if the questions differ."""
    overlap: bool | None
    """Whether the 90 % intervals of both expected steps overlap; None if either has no interval."""

    @property
    def is_clear(self) -> bool:
        """Whether the difference of step times exceeds the model's error."""
        return abs(self.ratio - 1) > self.error if self.error is not None else self.overlap is False

    @property
    def words(self) -> str:
        """Sentence on how much faster or slower this plan is than the first, and how certain that is."""
        share = abs(self.ratio - 1)
        if share < NEGLIGIBLE_SHARE:
            return f"{self.number} is as fast as 1 on paper."
        slower = "slower" if self.ratio > 1 else "faster"
        words = f"{self.number} is {slower} than 1 ({change(1.0, self.ratio)} on paper)"
        if self.error is None or self.chance is None:
            if self.overlap is None:
                return f"{words}."
            verdict = "overlap, so it may be otherwise" if self.overlap else "do not overlap"
            return f"{words}; their 90 % intervals {verdict}."
        comparison = f"{'more' if self.is_clear else 'less'} than the model's error of {percent(self.error)}"
        chance = chance_text(self.chance)
        return f"{words}, {comparison} between two such layouts: it is {chance} likely to be {slower}."


class Compared(Answer):
    """Answer of `compare` for transformers: every quantity of several plans, side by side."""

    plans: tuple[PricedPlan, ...]

    @property
    def questions(self) -> list[Question]:
        """Question of each plan, in order."""
        return [plan.question for plan in self.plans]

    @property
    def differs(self) -> tuple[Difference, ...]:
        """Differences between the plans' questions; empty if they are the same."""
        return differences(self.questions)

    @property
    def against(self) -> tuple[Against, ...]:
        """Comparison of each further plan with the first; empty if their steps do different work."""
        first, *rivals = self.plans
        if not same_work(self.questions):
            return ()
        compared = []
        for number, rival in enumerate(rivals, start=2):
            base, two = first.estimate, rival.estimate
            ratio = two.step_seconds / base.step_seconds
            error = chance = overlap = None
            if not differences([first.question, rival.question]):
                pair_error = pair_error_of(first.question)
                error = error_between(base.layout, two.layout, first.question)
                chance = chance_of_gain(abs(math.log(ratio)), base.layout, two.layout, pair_error)
            if first.expected is not None and rival.expected is not None:
                (low, high), (floor, top) = first.expected.interval, rival.expected.interval
                overlap = low <= top and floor <= high
            compared.append(Against(number=number, ratio=ratio, error=error, chance=chance, overlap=overlap))
        return tuple(compared)

    @property
    def lines(self) -> list[Line]:
        """Line for each compared quantity, with its value in each plan."""
        return lines_of([plan.estimate for plan in self.plans], self.questions)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity, with a column for each plan."""
        return [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in self.lines
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: differences of the questions, prices of the plans, and comparisons with the first."""
        return {
            "differs": [{"what": one.what, "values": list(one.values)} for one in self.differs],
            "same_work": same_work(self.questions),
            "questions": [question_record(question) for question in self.questions],
            "plans": [one.record() for one in self.plans],
            "against_first": [asdict(one) | {"clear": one.is_clear} for one in self.against],
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: the plans, differences of their questions, verdicts, and the table of quantities. In it parts are
        indented below their totals, and column `change` goes from the first plan to the last: shares in points, other
        quantities in percent."""
        heads, read, differing = [], [], list[str | Table]()
        headers = ["", *(str(number) for number in range(1, len(self.plans) + 1))]
        for number, plan in enumerate(self.plans, start=1):
            fits = "" if plan.estimate.fits else ", does not fit"
            step = step_words(plan.estimate.step_seconds, plan.expected)
            lines = f"{number}: {plan.estimate.layout.brief}{fits}", f"   step {step}"
            heads += [wrapped(line, indent="   ") for line in lines]
            if plan.completed is not None and (filled := filled_sentence(plan.completed)):
                read.append(f"{number}: {filled}")
        if self.differs:
            work = ", and their steps do different work: parts are shares of their own step."
            words = f"They answer different questions{':' if same_work(self.questions) else work}"
            rows = [(difference.what, *difference.values) for difference in self.differs]
            differing += ["", wrapped(words), table(headers, rows, words=headers)]
        verdicts = [wrapped(plan.words) for plan in self.against]
        first, *further = self.lines
        cells = []
        for quantity in (first, *sorted(further, key=lambda line: line.group != "time")):
            is_total = quantity.group == "memory" and quantity.name in ("step", "peak memory")
            is_part = quantity.group in ("time", "memory") and not is_total
            write, (start, *_, final) = UNIT_TEXTS[quantity.unit], quantity.values
            values = [write(value) if value else "-" for value in quantity.values]
            changed = change_words(write, quantity.unit, start, final) if quantity.comparable else ""
            cells.append(["  " * is_part + part_label(quantity.name), *values, changed])
        quantities = table([*headers, "change"], cells, words=("",))
        return *heads, *read, *differing, *[""] * bool(verdicts), *verdicts, "", quantities


_LABELS = ("name", "source", "vocab_multiple")
"""Fields of a model that its parameters do not depend on, except for padding of the vocabulary."""


class Resharded(Answer):
    """Answer of `reshard`: bytes that move between ranks when a model changes from one layout to another."""

    question: Question
    """Question of the layout with more GPUs."""
    layouts: tuple[Layout, Layout]
    traffic: ReshardBytes
    states: bool

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each rank: bytes needed, received and sent."""
        names = [f"{name}_bytes" for name in self.traffic._fields]
        amounts = zip(*(own.tolist() for own in self.traffic), strict=True)
        return [{"rank": rank, **dict(zip(names, own, strict=True))} for rank, own in enumerate(amounts)]

    def document(self) -> dict[str, Any]:
        """JSON document: both layouts, least seconds of the move, and bytes by rank."""
        inside, network = self.traffic.seconds(self.question)
        return {
            "layouts": [str(layout) for layout in self.layouts],
            "states": self.states,
            "seconds": {"inside_node": inside, "network": network, "total": max(inside, network)},
            "extra_bytes": float(self.traffic.received_total.max()),
            "ranks": self.rows,
        }

    def view(self) -> tuple[str, ...]:
        """Text: bytes moved, the busiest rank's traffic, least time, and extra memory."""
        traffic, (inside, network) = self.traffic, self.traffic.seconds(self.question)
        sums = (float(own.sum()) for own in (traffic.needed, traffic.received_total, traffic.received_inside))
        needed, arriving, near = sums
        maxima = {name: format_bytes(float(own.max())) for name, own in traffic._asdict().items()}
        facts = {
            "from": self.layouts[0].brief,
            "to": self.layouts[1].brief,
            "moved": f"{format_bytes(arriving)} of {format_bytes(needed)} that ranks need, {format_bytes(near)} of it"
            f" inside nodes; {percent(1 - arriving / needed)} is where it is needed",
            "a rank": f"receives up to {maxima['received']} over the network and {maxima['received_inside']} inside its"
            f" node, sends up to {maxima['sent']} and {maxima['sent_inside']}",
            "time": f"{format_seconds(max(inside, network))} at least: network {format_seconds(network)}, links of a"
            f" node {format_seconds(inside)}, side by side",
            "memory": f"up to {format_bytes(float(traffic.received_total.max()))} more on a GPU while both layouts are"
            " there",
        }
        tensors = "weights, master weights and moments" if self.states else "weights"
        words = wrapped(f"{tensors} of {self.question.model.name} on {gpus_in_words(self.question)}")
        return words, "", facts_text(Fact(name=name, value=value) for name, value in facts.items())


def reshard(first: Plan, second: str | Path | AnyPlan, *, states: bool) -> Resharded:
    """Count the bytes that move when a model changes from a plan's layout to the layout of another plan, or to a
    layout given as text.

    Raises:
        InputError: they are not of one model and kind of node, or a layout cannot run.
    """
    plans = TransformerVerbs().compare(first, (second,), None).plans
    base, two = (plan.question for plan in plans)
    nodes, goal, training = base.cluster, two.cluster, base.training
    hint = "plan or estimate both for the same model and cluster"
    if base.model.model_copy(update={name: getattr(two.model, name) for name in _LABELS}) != two.model:
        models = f"{base.model.name} and {two.model.name}"
        raise InputError(f"the plans are of different models: {models}", hint=hint)
    if base.has_pools or two.has_pools:
        raise InputError("what moves between pools of different GPUs is not priced")
    if (nodes.gpu.name, nodes.gpus_per_node) != (goal.gpu.name, goal.gpus_per_node):
        raise InputError(f"the plans are on different nodes: {nodes.name} and {goal.name}", hint=hint)
    if states and training.tuning is not None:
        raise InputError("the first plan has states of adapters, not of the model", hint="leave out --states")
    stored = [StoredTensor(training.element_bytes, from_stage=3)]
    if states:
        stored.append(StoredTensor(STATE_BYTES[training.state_dtype] + moment_bytes(base), from_stage=1))
    layouts = (plans[0].estimate.layout, plans[1].estimate.layout)
    larger = max(base, two, key=lambda side: side.cluster.num_gpus)
    traffic = moved(base, *layouts, stored, nodes.gpus_per_node)
    return Resharded(question=larger, layouts=layouts, traffic=traffic, states=states)
