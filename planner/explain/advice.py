"""Advice on a running job: a path of changes, of the software stack and then of the layout, which ends at the
best plan. It lists the switches of the stack that save time, and the three changes of the layout with the
largest gain for their effort.

A switch is a field of the software stack whose catalogue entry has another value (overlaps, kernels,
fusions): the trainer supports it, and the run does not use it. No switch needs re-sharding, so switches come
before changes of the layout, the one with the largest gain first.

Each change of the layout is chosen on top of those before it, by its gain of step time divided by the weight
of its effort, and only if it breaks no rule, fits and also gains alone. Candidates are ordered by a quick
price (blocks spread evenly) and priced in full from the best down. The path ends at the optimum of the
search, with its proof.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, RESOLVED_AS, Layout, usual_schedule
from cost_models.axes.stages import allowed_recompute
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.schedules.registry import schedule_named
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import FULL
from planner.explain.compare import gain
from planner.objectives import Certificate
from planner.placement.patterns import covers
from planner.rules.legality import check
from planner.search.branching import SearchResult
from planner.search.search import Budget, place_layout
from planner.space.axes import VALUES, Mesh, divisors
from planner.space.restrictions import Restrictions, satisfies
from planner.space.sizes import is_possible_size, on_whole_nodes, resized
from planner.space.space import balanced_prices

Trouble = Literal["a flag", "re-sharding"]
"""Effort that a change of a running job takes. `a flag`: each rank holds the same parameters, so a job
continues with another flag. `re-sharding`: ranks hold other parameters, so its checkpoint is re-sharded
first."""
WEIGHT: dict[Trouble, float] = {"a flag": 1.0, "re-sharding": 2.0}
"""Divisor of a change's gain when changes are ranked, by effort of the change."""
NEGLIGIBLE_GAIN = 1e-4
"""Relative difference of step times below which two steps count as equally fast."""
LEAST_GAIN = 1e-3
"""Minimum relative gain of step time for a change to be advised."""
MAX_CHANGES = 3
"""Maximum number of changes of a layout, or of the options of tables, that are advised."""
_MAX_PRICED, _MAX_PRICED_OF_A_KIND = 12, 2
"""Maximum number of candidates priced in full for one change: in all, and with the same changed axes."""
_SWITCHES = (
    *("overlap_gradient_reduce", "overlap_parameter_gather", "overlap_tensor_parallel"),
    *("overlap_pipeline_sends", "expert_dispatch", "attention", "transformer_engine", "fused_elementwise"),
    *("fused_norms", "fused_gradient_accumulation", "fused_loss", "extra_loss_copies", "deterministic"),
    "launches_block",
)
"""Fields of a software stack that a running job can change without changing its mathematics."""
_SHARDING = ("tp", "pp", "cp", "dp", "ep", "etp")
"""Axes that determine which rank holds which parameters."""
_AXES_OF_MOVES = ("sp", "order", "context", "ep", "etp")
"""Axes with new values chosen by `moves`; other searched axes take each of their values."""
PLACING = ("layers", "pools", "replicas")
"""Axes that place blocks on ranks and pools."""
_FACTORS = (2, 3, 4, 8)
"""Factors by which a degree is divided and another multiplied, to move ranks between axes."""
_MAX_MBS = 64
_UNIFORM: dict[tuple[str, ...], int] = {(policy,): at for at, policy in enumerate(RECOMPUTE_POLICIES)}
"""Index in `RECOMPUTE_POLICIES` of the only policy of a layout, by the layout's `recompute`."""

Move = Mapping[str, Any]
"""New values of one or two axes of a layout; for `recompute` the least recomputation that fits in memory is
then found."""
SwitchWords = Callable[[Question, Question, Layout], str]
"""Function that returns a trainer's words for the stack field in which two questions differ; empty if it has
none."""


class Change(NamedTuple):
    """Advised change of the layout or the software stack, priced by itself and on top of the changes before
    it."""

    words: str
    """Words of the change in layout notation, such as "mbs2", or name of the changed stack field."""
    trouble: Trouble
    by_itself: Estimate
    """Price of today's layout with only this change."""
    with_earlier: Estimate
    """Price of today's layout with this change and all earlier changes."""


E = TypeVar("E")
"""Estimate of a family of models."""


class OtherQuestion(NamedTuple, Generic[E]):
    """Best plan of a changed question (other numerics, GPUs or links), which takes more effort than a change
    of layout."""

    words: str
    """Flag of `meshwright plan` that asks the changed question, such as "--precision fp8", or words of the change."""
    trouble: str
    estimate: E
    proven: bool
    """Whether the plan is proven optimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on a running job: today's layout, changes by gain per effort, and the best plan."""

    question: Question
    """Question with the advised switches of the software stack."""
    today: Estimate
    changes: tuple[Change, ...]
    result: SearchResult
    """Result of the search for the best plan, with which the path of changes ends."""
    other_questions: tuple[OtherQuestion[Estimate], ...] = ()

    @property
    def best(self) -> Estimate:
        """Estimate of the best plan, or of the layout after all changes if that is as fast."""
        reached, best = self.reached, self.result.best
        return best if best.step_seconds < reached.step_seconds or not reached.fits else reached

    @property
    def reached(self) -> Estimate:
        """Estimate of today's layout after all advised changes."""
        return self.changes[-1].with_earlier if self.changes else self.today

    @property
    def certificate(self) -> Certificate:
        """Proof of the search for the best plan."""
        return self.result.certificate

    @property
    def is_reached(self) -> bool:
        """Whether today's layout with all changes is about as fast as the best plan, and fits."""
        return self.reached.fits and self.reached.step_seconds <= self.best.step_seconds * (
            1 + NEGLIGIBLE_GAIN
        )

    @property
    def final_change(self) -> tuple[str, Trouble]:
        """Difference between the layout after all changes and the best plan, in words of layout notation
        (empty if only the placement differs), and the effort of that change."""
        layouts = self.reached.layout, self.best.layout
        return changed_words(*layouts), trouble_between(*layouts)


def advise(
    question: Question, today: Layout, restrictions: Restrictions, budget: Budget, switch_words: SwitchWords
) -> Advice:
    """Find the changes that lead from today's layout to the best plan within the restrictions. `switch_words`
    gives the trainer's words for switches.

    Raises:
        InputError: the layout breaks a rule, or the cluster has several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    if question.has_pools:
        raise InputError(
            f"advice is for one kind of GPU, and `{question.cluster.name}` has several pools",
            hint="meshwright plan finds the best for all of them",
        )
    running = price(question, place_layout(question, today)).within(restrictions.max_memory)
    as_run = MovePricer(question, restrictions)
    question, switched_on, switches = _turn_on_switches(question, running, restrictions, switch_words)
    result = budget.search(question, restrictions, top=1)
    if result is None:
        raise budget.nothing_found()
    pricer = MovePricer(question, restrictions)
    return Advice(
        question=question,
        today=running,
        changes=(*switches, *_path(pricer, as_run, running, switched_on)),
        result=result,
        other_questions=tuple(_other_questions(question, restrictions, result.best, budget)),
    )


def _turn_on_switches(
    question: Question, today: Estimate, restrictions: Restrictions, switch_words: SwitchWords
) -> tuple[Question, Estimate, list[Change]]:
    """Turn on every switch of the software stack that shortens the step, the largest gain first. Returns the
    changed question, the price of today's layout for it, and the switches.

    Switches are fields in which the stack differs from its catalogue entry; a stack outside the catalogue has
    none.
    """
    stack, changes = question.stack, list[Change]()
    catalogue_stack = catalog.load_stack(stack.name) if stack.name in catalog.names("stacks") else stack
    values = {name: getattr(catalogue_stack, name) for name in _SWITCHES}
    values = {name: value for name, value in values.items() if value != getattr(stack, name)}

    def priced_with(names: Iterable[str]) -> dict[str, Estimate]:
        """Price today's layout with each of the switches `names` turned on in addition, one at a time; return
        the prices by name. Left out are switches that break a rule, or that do not fit although today's
        layout does."""
        priced = {}
        for name in names:
            switched = question.updated("stack", **{name: values[name]})
            with suppress(InputError):
                if not check(switched, today.layout, restrictions.trainer):
                    priced[name] = price(switched, today.layout).within(restrictions.max_memory)
        return {name: one for name, one in priced.items() if one.fits or not today.fits}

    reached, single = today, priced_with(values)
    while single:
        priced = priced_with(single)
        best = max(priced, key=lambda name: (gain(reached, priced[name]), name), default="")
        if not best or gain(reached, priced[best]) < LEAST_GAIN:
            break
        value, switched = values[best], question.updated("stack", **{best: values[best]})
        text = str(value).lower() if isinstance(value, bool) else value
        words = switch_words(question, switched, today.layout) or f"{best}: {text} in the stack"
        question, reached = switched, priced[best]
        changes += [Change(words=words, trouble="a flag", by_itself=single.pop(best), with_earlier=reached)]
    return question, reached, changes


def _other_questions(
    question: Question, restrictions: Restrictions, best: Estimate, budget: Budget
) -> Iterator[OtherQuestion[Estimate]]:
    """Yield plans of changed questions, where they apply: with gradients summed in 16 bits (if that saves
    time), in a narrower precision, and on twice the GPUs."""
    training = question.training
    sums_in_fp32 = (training.gradient_dtype or question.stack.gradient_dtype) == "fp32"
    if sums_in_fp32 and training.precision not in FULL:
        narrow = price(question.updated("training", gradient_dtype="bf16"), best.layout)
        if narrow.fits and gain(best, narrow) >= LEAST_GAIN:
            words = "gradient_dtype: bf16 in --training FILE"
            yield OtherQuestion(words, "other numerics", narrow, proven=False)
    candidates: list[tuple[str, str, Question]] = []
    precision = {"fp32": "bf16", "tf32": "bf16", "bf16": "fp8", "fp16": "fp8"}.get(training.precision, "")
    if precision in question.cluster.gpu.peak:
        changed = question.updated("training", precision=precision)
        candidates.append((f"--precision {precision}", "other numerics", changed))
    twice, on_nodes = 2 * question.cluster.num_gpus, on_whole_nodes(question)
    if is_possible_size(twice, on_nodes.cluster) and question.cluster.gpu.kind != "cpu":
        candidates.append((f"--gpus {twice}", "other GPUs", resized(on_nodes, twice)))
    for words, trouble, changed in candidates:
        if (result := budget.try_search(changed, restrictions)) is not None:
            yield OtherQuestion(words, trouble, result.best, proven=result.certificate.gap <= 0)


def _path(pricer: MovePricer, as_run: MovePricer, today: Estimate, switched_on: Estimate) -> Iterator[Change]:
    """Yield the changes of the layout in order, each with the largest gain for its effort after the earlier
    changes. It ends when no change gains.

    `pricer` prices them with the switches turned on, from `switched_on`; `as_run` prices each by itself on
    `today`'s layout, without the switches.
    """
    current, changed_axes = switched_on, set[str]()
    for _ in range(MAX_CHANGES):
        candidates = [
            (_gain_per_effort(current, changed), move, changed)
            for move in pricer.best_moves(current, changed_axes)
            if (changed := pricer.price_after(move, current.layout)) is not None and changed.fits
        ]
        for worth, move, changed in sorted(candidates, key=lambda entry: (-entry[0], str(entry[2].layout))):
            by_itself = as_run.price_after(move, today.layout)
            if worth <= 0 or by_itself is None or not by_itself.fits:
                continue
            if not today.fits or gain(today, by_itself) >= LEAST_GAIN:
                layouts = current.layout, changed.layout
                yield Change(changed_words(*layouts), trouble_between(*layouts), by_itself, changed)
                current, changed_axes = changed, changed_axes | move.keys()
                break
        else:
            return


def _gain_per_effort(current: Estimate, changed: Estimate) -> float:
    """Relative gain of step time divided by the weight of the change's effort. If the current layout does not
    fit, the ratio of the two steps takes the place of the gain."""
    weight = WEIGHT[trouble_between(current.layout, changed.layout)]
    if not current.fits:
        return current.step_seconds / changed.step_seconds / weight
    gained = gain(current, changed)
    return gained / weight if gained >= LEAST_GAIN else 0.0


@dataclass(frozen=True, slots=True)
class MovePricer:
    """Finder of legal moves of a layout (new values of one or two axes) within restrictions, with prices of
    the new layouts."""

    question: Question
    restrictions: Restrictions

    def best_moves(self, current: Estimate, changed_axes: Set[str]) -> Iterator[Move]:
        """Yield the legal moves with the lowest quick prices for each set of axes that was not changed so
        far. Quick prices have blocks placed evenly and a mix of policies priced as the fastest of them. The
        first move recomputes as little as memory allows."""
        if "recompute" not in changed_axes:
            yield {"recompute": ("none",)}
        legal = [
            (move, layout)
            for move in moves(self.question, current.layout)
            if not move.keys() & changed_axes
            and (layout := apply_move(current.layout, move)) is not None
            and changed_words(current.layout, layout)
            and self._is_legal(layout)
        ]
        if not legal:
            return
        prices, seconds = balanced_prices(self.question, LayoutColumns.of([one for _, one in legal])), []
        for row, (_, layout) in enumerate(legal):
            at = _UNIFORM.get(layout.recompute, int(np.argmin(prices.step_seconds[row])))
            overflows = prices.peak_bytes[row, at] > current.memory_limit
            seconds.append(float(prices.step_seconds[row, at]) * (1 + overflows))
        of_kind = Counter[frozenset[str]]()
        for row in np.argsort(seconds, kind="stable").tolist():
            move = legal[row][0]
            kind = frozenset(move)
            if of_kind[kind] < _MAX_PRICED_OF_A_KIND and of_kind.total() < _MAX_PRICED:
                of_kind[kind] += 1
                yield move

    def _is_legal(self, layout: Layout) -> bool:
        """Whether a layout breaks no rule, satisfies the restrictions and has stages that the search
        covers."""
        return (
            covers(layout.schedule, self.question.model.num_layers, layout.num_stages)
            and not check(self.question, layout, self.restrictions.trainer)
            and satisfies(self.question, self.restrictions, layout)
        )

    def price_after(self, move: Move, layout: Layout) -> Estimate | None:
        """Price a layout after a move (new values of one or two axes); None if the new layout breaks a rule.

        If the move changes recompute, or changes the stages so that recompute by stage no longer applies, as
        little is recomputed as memory allows.
        """
        moved_layout = apply_move(layout, move)
        if moved_layout is None:
            return None
        by_stage = layout.recompute not in _UNIFORM and moved_layout.num_stages != layout.num_stages
        if "recompute" in move or by_stage:
            return self._price_least_recompute(moved_layout)
        return self._price(moved_layout)

    def _price(self, layout: Layout) -> Estimate | None:
        """Price a layout with the best placement of its blocks; None if it breaks a rule."""
        if not self._is_legal(layout):
            return None
        placement = place_layout(self.question, layout)
        if check(self.question, placement, self.restrictions.trainer):
            return None
        return price(self.question, placement).within(self.restrictions.max_memory)

    def _price_least_recompute(self, layout: Layout) -> Estimate | None:
        """Price a layout with the least recomputation that fits in memory: none or the attention core, else
        full recompute of the fewest blocks."""

        def price_under(policy: str) -> Estimate | None:
            """Estimate of the layout with one recompute policy for all blocks; None if it does not fit."""
            return self._price(layout.model_copy(update={"recompute": (policy,)}))

        allowed = {*self.question.training.recompute} & {*allowed_recompute(layout.schedule)}
        light = [price_under(policy) for policy in ("none", "selective") if policy in allowed]
        fitting = [estimate for estimate in light if estimate is not None and estimate.fits]
        if fitting or "full" not in allowed:
            return min(fitting, key=lambda estimate: estimate.step_seconds, default=None)
        best = price_under("full")
        low, high = 0, -(-self.question.model.num_layers // layout.num_stages)
        while best is not None and best.fits and high - low > 1:
            middle = (low + high) // 2
            priced = price_under(f"full:{middle}")
            fits = priced is not None and priced.fits
            low, high, best = (low, middle, priced) if fits else (middle, high, best)
        return best


def apply_move(layout: Layout, move: Move) -> Layout | None:
    """Copy of the layout with the axis values of a move and without a placement of blocks; None if the result
    is no valid layout.

    Settings that only a pipeline, a tensor group or replicas can have are reset with them.
    """
    fields = layout.model_dump() | {"layers": (), "pools": ()} | dict(move)
    if fields["pp"] == 1:
        fields |= {"vpp": 1, "schedule": "1f1b"}
    fields["sp"] = fields["sp"] and fields["tp"] > 1
    fields["zero"] = fields["zero"] if fields["dp"] * fields["cp"] > 1 else 0
    fields["shard"] = fields["shard"] if fields["zero"] else None
    if len(fields["recompute"]) not in (1, fields["pp"] * fields["vpp"]):
        fields["recompute"] = ("none",)
    try:
        return Layout(**fields)
    except InputError:
        return None


def moves(question: Question, layout: Layout) -> Iterator[Move]:
    """Yield every move: a new value of one axis except recompute, or of two degrees with the same product;
    most break some rule."""
    stack, model = question.stack, question.model
    mesh = Mesh(layout.tp, layout.pp, layout.cp, layout.dp)

    def along(axis: str, values: Iterable[Any]) -> Iterator[Move]:
        """Moves to each of the values of an axis."""
        return ({axis: value} for value in values)

    shares = divisors(question.training.global_batch // layout.dp)
    yield from along("mbs", (mbs for mbs in shares if mbs <= _MAX_MBS))
    yield from along("zero", stack.zero_stages)
    yield from along("sp", [not layout.sp] if layout.tp > 1 else ())
    for schedule in stack.schedules if layout.pp > 1 else ():
        chunks = filter(schedule_named(schedule).runs_chunks, range(1, model.num_layers // layout.pp + 1))
        yield from ({"vpp": vpp, "schedule": schedule} for vpp in chunks)
    yield from along("order", stack.axis_orders)
    yield from along("context", (None, *stack.context_kinds) if layout.cp > 1 else ())
    yield from along("shard", divisors(layout.data_ranks)[1:] if layout.zero and stack.hybrid_shard else ())
    for name, values in VALUES.items():
        if name not in _AXES_OF_MOVES:
            numbers = (one if isinstance(one, tuple) else (one,) for one in values(question, mesh))
            yield from along(name, (AXES[name].value(*one) for one in numbers))
    for giver, taker in permutations(("tp", "pp", "cp", "dp"), 2):
        for factor in _FACTORS:
            if getattr(layout, giver) % factor == 0:
                move = {giver: getattr(layout, giver) // factor, taker: getattr(layout, taker) * factor}
                yield move | ({"etp": None} if "tp" in move else {})
    yield from along("ep", divisors(model.num_experts) if model.has_experts else ())
    yield from along("etp", divisors(layout.tp) if model.has_experts else ())


def changed_words(first: Layout, second: Layout) -> str:
    """Layout-notation words for the axes in which the layout `second` differs from `first`, such as "tp4
    dp4", "mbs2", "no sp" or "usual overlap". Placement is ignored."""
    words = []
    for name, word in AXES.items():
        old, new = first.resolve(name), second.resolve(name)
        follows = name in RESOLVED_AS and getattr(first, name) is getattr(second, name) is None
        silent = name == "context" and second.cp == 1
        implied = name == "schedule" and new == usual_schedule(second.vpp) and first.vpp != second.vpp
        if name not in PLACING and old != new and not (follows or silent or implied):
            words.append(word.compare(name, new))
    return " ".join(words)


def trouble_between(first: Layout, second: Layout) -> Trouble:
    """Effort of changing one layout into another: "re-sharding" if ranks then hold other parameters, else "a
    flag"."""
    reshards = any(first.resolve(axis) != second.resolve(axis) for axis in _SHARDING)
    return "re-sharding" if reshards else "a flag"
