"""Tables held otherwise with all others left where they are: which bind the step, and what other words would give.

Of every stage the GPU that ends it, and what each large table on it costs the step; a table is taken out, and held in
each other way that fits, its shards where they lengthen the step least. What a new search of all tables would gain may
be more. Words of a user are read, places found, and refused by the rule that they break.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Tables named of each GPU that ends a stage."""
_EVEN = 1e-9
"""Weight of evenness among places where the step grows as little."""


@dataclass(frozen=True, slots=True)
class BindingTable:
    """An embedding table on the busiest GPU of a stage, with the step time without the table and with the best
    alternative."""

    table: int
    placement: TablePlacement
    seconds: float
    """Seconds that the table loads this GPU with in this stage."""
    without_seconds: float
    """The step without this table."""
    otherwise: TablePlacement | None
    """Best alternative placement; None where none fits."""
    otherwise_seconds: float | None
    """Seconds of the step with the table held so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingStage:
    """A stage of the step, with the GPU that determines the stage's length and the largest tables there."""

    stage: str
    seconds: float
    gpu: int | None
    """GPU that ends the stage; None where other work of the stage lasts longer."""
    mean_seconds: float
    """Mean seconds of table work over GPUs: the length of a balanced stage."""
    tables: tuple[BindingTable, ...]
    """Tables with the largest loads on this GPU, largest first."""


def binding_stages(
    priced: PricedOptions, rows: tuple[int, ...], sharding: Sharding
) -> tuple[BindingStage, ...]:
    """Busiest GPU and largest tables of every stage that tables load, in the order of the step."""
    state, scale = _state(priced, rows, sharding)
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
        for table, (row, placed) in enumerate(zip(rows, sharding.tables, strict=True)):
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


def _state(priced: PricedOptions, rows: Sequence[int], sharding: Sharding) -> tuple[State, float]:
    """State of local search with all tables as in a sharding, and its unit, the seconds of the sharding's step."""
    problem = every_option(replace(priced, host_memory=priced.host_memory or np.inf), "step")
    placement = Placement(np.array(rows), tuple(placed.at for placed in sharding.tables))
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
        _, _, places = state.insertion(table, np.array([row]))
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
    """Sharding with all other tables unmoved; None where a rule refuses it, or no place has room."""
    refused: str = ""
    forbidden: str = ""
    """The restriction of the plan that leaves it out; it is priced all the same."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Numbers of the tables that the user's change names."""
        return tuple(table for word in self.words for table in range(word.first, word.last + 1))


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
    words_by_table = {
        table: (word, nth) for word in words for nth, table in enumerate(range(word.first, word.last + 1))
    }
    for table, (word, _) in words_by_table.items():
        if reason := refusal(question, table, word.option):
            return Alternative(words=words, sharding=None, refused=reason)
    wider = replace(restrictions, fixed=(*restrictions.fixed, *words))
    priced = limited(covered_options(question, wider, sharding), restrictions)
    class_of_table, row_of = question.model.class_of_table, priced.row_of
    state, _ = _state(priced, rows_of(priced, sharding), sharding)
    for table in words_by_table:
        state.remove(table)
    free = []
    for table, (word, nth) in words_by_table.items():
        row = row_of[class_of_table[table], word.option]
        shards = word.option.shards if word.option.placed else 0
        if shards and not word.at:
            free.append((table, row))
        else:
            state.add(table, row, word.at[nth * shards : (nth + 1) * shards])
    for table, row in free:
        state.add(table, row, tuple(sorted(state.insertion(table, np.array([row])).places)))
    left_out = next((str(word.option) for word in words if not restrictions.allows(word.option)), "")
    return Alternative(
        words=words,
        sharding=Sharding(
            tuple(
                TablePlacement(priced.options[row], places)
                for row, places in zip(state.row.tolist(), state.places, strict=True)
            )
        ),
        forbidden=f"the plan forbids `{left_out}`" if left_out else "",
    )


def refusal(question: RecommenderQuestion, table: int, option: Option) -> str:
    """Reason why a table cannot be sharded with this option; empty if legal."""
    model, cluster = question.model, question.cluster
    width = model.classes[model.class_of_table[table]].width
    name = model.table_names[table]
    places = cluster.nodes if option.form == "node-row" else cluster.num_gpus
    if option.form == "column" and width % option.shards:
        divisors = [str(n) for n in range(2, width + 1) if width % n == 0 and n <= places]
        verb = "does" if len(divisors) == 1 else "do"
        suggestion = (
            f"{', '.join(divisors)} {verb}" if divisors else f"no number of slices up to {places} does"
        )
        return f"{name} has {width} columns, which {option.shards} slices do not divide; {suggestion}"
    if option.placed and option.shards > places:
        places_word = "nodes" if option.form == "node-row" else "GPUs"
        return f"`{option}` has {option.shards} slices, and there are {places} {places_word}"
    if option.tier == "host" and is_own_host(cluster):
        return f"`{cluster.name}` has one memory, the host's: no table lies elsewhere"
    if option.tier == "host" and not question.facts.host_tables:
        return f"software stack `{question.stack.name}` keeps no tables in host memory"
    if option.tier == "host" and not cluster.host_memory:
        return f"nobody says how much memory hosts of `{cluster.name}` have; plan with --host-memory"
    return ""
