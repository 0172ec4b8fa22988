"""Tables that bind the step of a sharding, the effect of a user's change, and advice on a running sharding.

For every stage of the step, `binding_stages` finds the GPU that ends last and the seconds that each large table there
costs: the table is removed, and then placed in every other way that fits, each shard where it lengthens the step
least. A new search over all tables may gain more. A change that the user writes is parsed and placed, or refused with
the rule that it breaks.

Advice lists the changes of tables that gain most, the best sharding, and the gain from variants of the question. One
change gives all equal tables (with one option today, and one in the best sharding) the option of the best sharding.
Changes follow one another, the largest gain first; each must fit and also gain by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from cost_models.errors import InfeasibleError, InputError
from cost_models.memory.device import is_own_host
from cost_models.recommender.options import STAGES, PricedOptions
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import FULL
from cost_models.specs.recommender.sharding import Option, Sharding, TablePlacement, TableWord, parse_words
from planner.explain.advice import LEAST_GAIN, MAX_CHANGES, OtherQuestion
from planner.recommender.local_search import State
from planner.recommender.problem import Placement, every_option, with_memory_limit
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search import ShardingAnswer, ShardingCertificate, best_sharding, rows_of
from planner.search.search import Budget
from planner.space.sizes import is_possible_size, on_whole_nodes, resized

MAX_NAMED_TABLES = 3
"""Maximum number of tables named for the busiest GPU of a stage."""
_EVEN = 1e-9
"""Weight of an even load in the choice among places with the same step time."""


class BindingTable(NamedTuple):
    """Embedding table on the busiest GPU of a stage, with the step time without the table and with its best
    alternative placement."""

    table: int
    placement: TablePlacement
    seconds: float
    """Seconds of work that the table gives this GPU in this stage."""
    without_seconds: float
    """Seconds of the step without this table."""
    otherwise: TablePlacement | None
    """Best alternative placement of the table; None if none fits."""
    otherwise_seconds: float | None
    """Seconds of the step with the alternative placement; None if none fits."""


class BindingStage(NamedTuple):
    """Stage of the step, with the GPU that ends it last and the largest tables there."""

    stage: str
    seconds: float
    gpu: int | None
    """GPU whose table work takes longest in the stage; None if other work of the stage takes longer."""
    mean_seconds: float
    """Mean seconds of table work over GPUs, which is the length of a balanced stage."""
    tables: tuple[BindingTable, ...]
    """Tables with the largest loads on this GPU, largest first."""


def binding_stages(priced: PricedOptions, sharding: Sharding) -> tuple[BindingStage, ...]:
    """Find the busiest GPU and its largest tables for every stage that tables load, in the order of the step."""
    state, scale = _state(priced, sharding)
    loads, repriced = state.use[:, state.loads] * scale, cache(partial(_repriced, state, scale))
    stages, tables = [], sharding.tables
    for stage, name in enumerate(STAGES):
        gpu, floor = int(loads[:, stage].argmax()), float(priced.stage_floors[stage])
        longest = float(loads[gpu, stage])
        if longest <= 0:
            continue
        node, rows = int(state.node_of_gpu[gpu]), state.row
        shards = [placed.at.count(node if placed.option.form == "node-row" else gpu) for placed in tables]
        seconds = priced.everywhere_seconds[rows, stage] + shards * priced.shard_seconds[rows, stage]
        largest = np.argsort(-seconds, kind="stable")[:MAX_NAMED_TABLES].tolist() if longest >= floor else ()
        bound = (table for table in largest if seconds[table] > 0)
        binding = (BindingTable(one, tables[one], float(seconds[one]), *repriced(one)) for one in bound)
        waits_for, mean_seconds = gpu if longest >= floor else None, float(loads[:, stage].mean())
        stages.append(BindingStage(name, max(longest, floor), waits_for, mean_seconds, tuple(binding)))
    return tuple(stages)


def _state(priced: PricedOptions, sharding: Sharding) -> tuple[State, float]:
    """Local-search state with all tables placed as in a sharding, and the seconds of this sharding's step.
    The step is the state's unit of time."""
    problem = every_option(replace(priced, host_memory=priced.host_memory or np.inf), "step")
    placement = Placement(np.array(rows_of(priced, sharding)), tuple(placed.at for placed in sharding.tables))
    step = problem.value(problem.use(placement))
    state = State(problem.in_units_of(step), even=_EVEN)
    state.load(placement)
    return state, step


def _repriced(state: State, scale: float, table: int) -> tuple[float, TablePlacement | None, float | None]:
    """Effect of one table on the step: step seconds without the table, the best other placement of the table,
    and step seconds with that placement."""
    problem, options = state.problem, state.problem.priced.options
    was = state.remove(table)
    without_seconds = problem.value(state.use) * scale
    best: tuple[TablePlacement | None, float | None] = None, None
    for row in problem.rows_of(int(state.class_of_unit[table])).tolist():
        if row == was[0] or problem.rows.shards[row] > problem.places[row]:
            continue
        _, (_, places) = state.insertion(table, np.array([row]))
        state.add(table, row, places)
        seconds = problem.value(state.use) * scale
        if problem.fits(state.use) and (best[1] is None or seconds < best[1] * (1 - _EVEN)):
            best = TablePlacement(options[row], tuple(sorted(places))), seconds
        state.remove(table)
    state.add(table, *was)
    return without_seconds, *best


class Alternative(NamedTuple):
    """Sharding after a user's change of some tables, or the rule that refuses the change."""

    words: tuple[TableWord, ...]
    sharding: Sharding | None
    """Sharding after the change, with all other tables unmoved; None if a rule refuses it or no place has
    room."""
    refused: str = ""
    forbidden: str = ""
    """Restriction of the plan that forbids the sharding, which is priced all the same; empty if none does."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the tables that the user's change names."""
        return tuple(table for word in self.words for table in word.places)


def alternative(
    question: RecommenderQuestion, sharding: Sharding, text: str, restrictions: ShardingRestrictions
) -> Alternative:
    """Sharding after the change that `text` describes (such as `table:5=row`), or the rule that refuses the
    change.

    Shards without a place are put where they lengthen the step least.

    Raises:
        InputError: words that are none, or tables that are not there.
    """
    try:
        words = parse_words(text, question.model.num_tables)
    except InputError as error:
        hint = "write it like `table:5=row` or `table:0-3=column2`"
        raise InputError(error.headline, problems=error.problems, hint=hint) from None
    if not words:
        raise InputError("`--why-not` is empty", hint="write it like `table:5=row`")
    changes = {table: (word.option, at) for word in words for table, at in word.places.items()}
    for table, (option, _) in changes.items():
        if reason := refusal(question, table, option):
            return Alternative(words=words, sharding=None, refused=reason)
    wider = replace(restrictions, fixed=(*restrictions.fixed, *words))
    priced = with_memory_limit(covered_options(question, wider, sharding), restrictions)
    class_of_table, row_of = question.model.class_of_table, priced.row_of
    state, _ = _state(priced, sharding)
    for table in changes:
        state.remove(table)
    for table in sorted(changes, key=lambda changed: changes[changed][0].placed and not changes[changed][1]):
        option, at = changes[table]
        row = row_of[class_of_table[table], option]
        if option.placed and not at:
            _, (_, places) = state.insertion(table, np.array([row]))
            at = tuple(sorted(places))
        state.add(table, row, at)
    left_out = next((str(word.option) for word in words if not restrictions.allows(word.option)), "")
    forbidden = f"the plan forbids `{left_out}`" if left_out else ""
    options = (priced.options[row] for row in state.row.tolist())
    moved_sharding = Sharding(tuple(map(TablePlacement, options, state.places)))
    return Alternative(words=words, sharding=moved_sharding, forbidden=forbidden)


def refusal(question: RecommenderQuestion, table: int, option: Option) -> str:
    """Reason why a table cannot be sharded with an option; empty if the option is legal."""
    model, cluster = question.model, question.cluster
    name, width = model.table_names[table], model.classes[model.class_of_table[table]].width
    word, places = ("nodes", cluster.nodes) if option.form == "node-row" else ("GPUs", cluster.num_gpus)
    if option.form == "column" and width % option.shards:
        divisors = [str(n) for n in range(2, min(width, places) + 1) if width % n == 0]
        numbers = ", ".join(divisors) or f"no number of slices up to {places}"
        suggestion = f"{numbers} {'do' if len(divisors) > 1 else 'does'}"
        return f"{name} has {width} columns, which {option.shards} slices do not divide; {suggestion}"
    if option.placed and option.shards > places:
        return f"`{option}` has {option.shards} slices, and there are {places} {word}"
    if option.tier == "device":
        return ""
    if is_own_host(cluster):
        return f"`{cluster.name}` has one memory, the host's: no table lies elsewhere"
    if not question.facts.host_tables:
        return f"software stack `{question.stack.name}` keeps no tables in host memory"
    if not cluster.host_memory:
        return f"nobody says how much memory hosts of `{cluster.name}` have; plan with --host-memory"
    return ""


OTHER_SECONDS = 10.0
"""Time limit, in seconds, of the search for each variant of the question; its answer is then the best
found."""


class ShardingChange(NamedTuple):
    """Proposed change of the sharding option of some embedding tables, with the price of this change alone
    and after earlier changes."""

    tables: tuple[int, ...]
    today: str
    """Current sharding option of the tables."""
    proposed: str
    by_itself: RecommenderEstimate
    with_earlier: RecommenderEstimate
    sharding: Sharding
    """Sharding with this and all earlier changes."""


class ShardingAdvice(NamedTuple):
    """Advice on a running sharding: changes that gain most, the best sharding found, and variants of the
    question."""

    question: RecommenderQuestion
    sharding: Sharding
    today: RecommenderEstimate
    changes: Sequence[ShardingChange]
    answer: ShardingAnswer
    other_questions: Sequence[OtherQuestion[RecommenderEstimate]]
    best_sharding: Sharding
    """The sharding found by the search, or today's with all changes if the search found nothing faster."""
    best: RecommenderEstimate
    """Prediction for the best sharding."""
    is_reached: bool
    """Whether the proposed changes lead to a sharding that fits, with a step at most slightly longer than the best."""

    @property
    def certificate(self) -> ShardingCertificate:
        """Proof of the search for the best sharding."""
        return self.answer.certificate


def advise_sharding(
    question: RecommenderQuestion, today: Sharding, restrictions: ShardingRestrictions, budget: Budget
) -> ShardingAdvice:
    """Find changes that lead from today's sharding to the best sharding within the restrictions, and search
    variants of the question.

    Raises:
        InputError: places that are not there.
        InfeasibleError: no sharding fits at all.
        RunError: time ran out before anything was found.
    """
    running = estimate(question, today)
    budget.tell("searching for the best sharding")
    answer = best_sharding(question, budget, restrictions, math.inf)
    if answer is None:
        raise budget.nothing_found()
    anywhere = replace(restrictions, fixed=tuple(replace(word, at=()) for word in restrictions.fixed))
    variants = []
    for words, trouble, other_question in _other_questions(question):
        budget.tell(f"searching with {words}")
        limits = restrictions if other_question.cluster.num_gpus == question.cluster.num_gpus else anywhere
        with suppress(InfeasibleError):
            if variant := best_sharding(other_question, budget, limits, OTHER_SECONDS):
                priced = estimate(other_question, variant.sharding)
                variants.append(OtherQuestion(words, trouble, priced, proven=variant.certificate.gap <= 0))
    groups: dict[tuple[int, str, str], dict[int, TablePlacement]] = {}
    for table, (placement, target) in enumerate(zip(today.tables, answer.sharding.tables, strict=True)):
        if placement != target:
            key = question.model.class_of_table[table], str(placement.option), str(target.option)
            groups.setdefault(key, {})[table] = target
    separate = {key: estimate(question, _with_placements(today, moved)) for key, moved in groups.items()}
    sharding, reached, changes = today, running, list[ShardingChange]()
    prices = {key: priced for key, priced in separate.items() if _gains(priced, running)}
    while len(changes) < MAX_CHANGES:
        if not (better := [key for key, priced in prices.items() if _gains(priced, reached)]):
            break
        key = min(better, key=lambda group: (not prices[group].fits, prices[group].step_seconds))
        sharding, reached = _with_placements(sharding, groups[key]), prices.pop(key)
        changes.append(ShardingChange(tuple(groups[key]), *key[1:], separate[key], reached, sharding))
        prices = {one: estimate(question, _with_placements(sharding, groups[one])) for one in prices}
    goal, best = answer.sharding, estimate(question, answer.sharding)
    if reached.fits and reached.step_seconds <= best.step_seconds:
        goal, best = sharding, reached
    is_reached = reached.fits and reached.step_seconds <= best.step_seconds * (1 + LEAST_GAIN)
    return ShardingAdvice(question, today, running, changes, answer, variants, goal, best, is_reached)


def _gains(changed: RecommenderEstimate, current: RecommenderEstimate) -> bool:
    """Whether a changed sharding is worth advising: it must fit and be noticeably faster. If the current
    sharding does not fit, the changed one must fit, or exceed memory by less."""
    if not current.fits:
        return changed.fits or _excess_bytes(changed) < _excess_bytes(current)
    return changed.fits and changed.step_seconds < current.step_seconds * (1 - LEAST_GAIN)


def _excess_bytes(priced: RecommenderEstimate) -> float:
    """Bytes by which a sharding exceeds the memory of all GPUs and hosts together."""
    devices = (priced.device_bytes - priced.device_memory).clip(min=0).sum()
    return float(devices + (priced.host_bytes - priced.host_memory).clip(min=0).sum())


def _with_placements(sharding: Sharding, placements: Mapping[int, TablePlacement]) -> Sharding:
    """Copy of the sharding with other placements of some tables, by table number."""
    return Sharding(tuple(placements.get(table, placed) for table, placed in enumerate(sharding.tables)))


def _other_questions(question: RecommenderQuestion) -> Iterator[tuple[str, str, RecommenderQuestion]]:
    """Yield variants of the question with other precision, GPUs, hosts, links or memory, as (change in words,
    kind of change, question)."""
    training, cluster = question.training, question.cluster
    gpu, links = cluster.gpu, cluster.links
    trained, clustered = (partial(question.updated, part) for part in ("training", "cluster"))
    if training.precision in FULL and "bf16" in gpu.peak:
        yield "--precision bf16", "other numerics", trained(precision="bf16")
    elif training.exchange_bytes > 2:
        yield "`exchange_dtype: fp16`", "other numerics", trained(exchange_dtype="fp16")
    if training.table_bytes > 2:
        yield "`table_dtype: fp16`", "other numerics", trained(table_dtype="fp16")
    if gpu.kind == "cpu":
        return
    doubled, on_nodes = 2 * cluster.num_gpus, on_whole_nodes(question)
    if is_possible_size(doubled, on_nodes.cluster) and not training.global_batch % doubled:
        yield f"--gpus {doubled}", "other GPUs", resized(on_nodes, doubled)
    if cluster.host_memory and not is_own_host(cluster):
        yield "twice the host memory", "other hosts", clustered(host_memory=2 * cluster.host_memory)
    if cluster.gpus_per_node > 1:
        yield "twice the bandwidth of a node", "other links", clustered(links=links.faster(intra_node=2.0))
    if cluster.nodes > 1:
        faster_links = links.faster(inter_node=2.0)
        yield "twice the bandwidth of the network", "other links", clustered(links=faster_links)
    larger, faster = {"memory": 1.25 * gpu.memory}, {"memory_bandwidth": 2 * gpu.memory_bandwidth}
    yield "25 % more device memory", "other GPUs", clustered(gpu=gpu.model_copy(update=larger))
    yield "twice the memory bandwidth", "other GPUs", clustered(gpu=gpu.model_copy(update=faster))
