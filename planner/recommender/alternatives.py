"""Alternative placements of single tables with all others unmoved, which show the tables that bind the step
and what a user's change would give.

Of every stage the GPU that ends it, and what each large table on it costs the step; a table is taken out, and held in
each other way that fits, its shards where they lengthen the step least. What a new search of all tables would gain may
be more. Words of a user are read, places found, and refused by the rule that they break.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.errors import InputError
from cost_models.memory.device import is_own_host
from cost_models.recommender.priced import STAGES, PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Option, Sharding, TablePlacement, TableWord, parse_words
from planner.recommender.answer import rows_of
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search.local_search import State
from planner.recommender.search.problem import Placement, every_option, limited

MAX_NAMED_TABLES = 3
"""Maximum number of tables named for the busiest GPU of a stage."""
_EVEN = 1e-9
"""Weight of an even load in the choice among places with the same step time."""


@dataclass(frozen=True, slots=True)
class BindingTable:
    """An embedding table on the busiest GPU of a stage, with the step time without the table and with the best
    alternative."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStage:
    """A stage of the step, with the GPU that determines the stage's length and the largest tables there."""

    stage: str
    seconds: float
    gpu: int | None
    """GPU whose table work takes longest in the stage; None if other work of the stage takes longer."""
    mean_seconds: float
    """Mean seconds of table work over GPUs, which is the length of a balanced stage."""
    tables: tuple[BindingTable, ...]
    """Tables with the largest loads on this GPU, largest first."""


def binding_stages(priced: PricedOptions, sharding: Sharding) -> tuple[BindingStage, ...]:
    """Busiest GPU and largest tables of every stage that tables load, in the order of the step."""
    state, scale = _state(priced, sharding)
    loads = state.use[:, state.loads] * scale
    repriced: dict[int, tuple[float, TablePlacement | None, float | None]] = {}
    stages = []
    for stage, name in enumerate(STAGES):
        gpu = int(loads[:, stage].argmax())
        longest = float(loads[gpu, stage])
        if longest <= 0:
            continue
        bound_by_floor = longest < priced.stage_floors[stage]
        seconds = {}
        for table, (row, placed) in enumerate(zip(state.row.tolist(), sharding.tables, strict=True)):
            place = state.node_of_gpu[gpu] if placed.option.form == "node-row" else gpu
            shards = placed.at.count(int(place)) * priced.shard_seconds[row, stage]
            seconds[table] = float(priced.everywhere_seconds[row, stage] + shards)
        largest = sorted((table for table in seconds if seconds[table] > 0), key=lambda one: -seconds[one])
        tables = [] if bound_by_floor else largest[:MAX_NAMED_TABLES]
        for table in tables:
            if table not in repriced:
                repriced[table] = _repriced(state, scale, table)
        stages.append(
            BindingStage(
                stage=name,
                seconds=float(max(longest, priced.stage_floors[stage])),
                gpu=None if bound_by_floor else gpu,
                mean_seconds=float(loads[:, stage].mean()),
                tables=tuple(
                    BindingTable(table, sharding.tables[table], seconds[table], *repriced[table])
                    for table in tables
                ),
            )
        )
    return tuple(stages)


def _state(priced: PricedOptions, sharding: Sharding) -> tuple[State, float]:
    """State of local search with all tables as in a sharding, and its unit, the seconds of the sharding's step."""
    problem = every_option(replace(priced, host_memory=priced.host_memory or np.inf), "step")
    placement = Placement(np.array(rows_of(priced, sharding)), tuple(placed.at for placed in sharding.tables))
    step = problem.value(problem.use(placement))
    state = State(problem.in_units_of(step), even=_EVEN)
    state.load(placement)
    return state, step


def _repriced(state: State, scale: float, table: int) -> tuple[float, TablePlacement | None, float | None]:
    """Step seconds without a table, the table's best alternative placement, and step seconds with the
    alternative."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A sharding in which the user changed the options of some tables, or the rule that refuses the change."""

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
    """The sharding after the change that `text` describes (such as `table:5=row`), or the rule that refuses the
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
    priced = limited(covered_options(question, wider, sharding), restrictions)
    class_of_table, row_of = question.model.class_of_table, priced.row_of
    state, _ = _state(priced, sharding)
    for table in changes:
        state.remove(table)
    free = []
    for table, (option, at) in changes.items():
        row = row_of[class_of_table[table], option]
        if option.placed and not at:
            free.append((table, row))
        else:
            state.add(table, row, at)
    for table, row in free:
        _, (_, places) = state.insertion(table, np.array([row]))
        state.add(table, row, tuple(sorted(places)))
    left_out = next((str(word.option) for word in words if not restrictions.allows(word.option)), "")
    forbidden = f"the plan forbids `{left_out}`" if left_out else ""
    options = (priced.options[row] for row in state.row.tolist())
    moved = Sharding(tuple(map(TablePlacement, options, state.places)))
    return Alternative(words=words, sharding=moved, forbidden=forbidden)


def refusal(question: RecommenderQuestion, table: int, option: Option) -> str:
    """Reason why a table cannot be sharded with this option; empty if legal."""
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
