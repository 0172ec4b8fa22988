"""Tables held otherwise with all others left where they are: which bind the step, and what other words would give.

Of every stage the GPU that ends it, and what each large table on it costs the step; a table is taken out, and held in
each other way that fits, its shards where they lengthen the step least. What a new search of all tables would gain may
be more. Words of a user are read, places found, and refused by the rule that they break.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InputError
from cost_models.memory.device import is_own_host
from cost_models.recommender.priced import STAGES, PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Option, Sharding, TablePlacement, TableWord, parse_words
from planner.recommender.answer import Loads, loads_of, rows_of
from planner.recommender.restrictions import ShardingRestrictions, covered_options
from planner.recommender.search.problem import FULL, limited

MAX_NAMED_TABLES = 3
"""Tables named of each GPU that ends a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
    places = [placed.at for placed in sharding.tables]
    loads = loads_of(priced, rows, places)
    repriced: dict[int, tuple[float, TablePlacement | None, float | None]] = {}
    stages = []
    for stage, name in enumerate(_names(priced)):
        gpu = int(loads.load[:, stage].argmax())
        longest = float(loads.load[gpu, stage])
        if longest <= 0:
            continue
        bound_by_floor = longest < priced.stage_floors[stage]
        largest = [] if bound_by_floor else _largest(priced, rows, places, gpu, stage)
        for table, _ in largest:
            if table not in repriced:
                repriced[table] = _repriced(priced, loads, rows[table], places[table])
        tables = tuple(
            BindingTable(
                table=table,
                placement=sharding.tables[table],
                seconds=seconds,
                without_seconds=repriced[table][0],
                otherwise=repriced[table][1],
                otherwise_seconds=repriced[table][2],
            )
            for table, seconds in largest
        )
        stages.append(
            BindingStage(
                stage=name,
                seconds=float(loads.stage_seconds[stage]),
                gpu=None if bound_by_floor else gpu,
                mean_seconds=float(loads.load[:, stage].mean()),
                tables=tables,
            )
        )
    return tuple(stages)


def _names(priced: PricedOptions) -> tuple[str, ...]:
    stages = len(priced.fixed)
    return tuple(STAGES) if stages == len(STAGES) else tuple(f"stage {k}" for k in range(stages))


def _largest(
    priced: PricedOptions,
    rows: tuple[int, ...],
    places: list[tuple[int, ...]],
    gpu: int,
    stage: int,
) -> list[tuple[int, float]]:
    """Tables that load a GPU most in a stage, with seconds, largest first."""
    node = gpu // priced.gpus_per_node
    seconds = []
    for table, (row, at) in enumerate(zip(rows, places, strict=True)):
        place_of_gpu = node if priced.options[row].form == "node-row" else gpu
        table_seconds = (
            priced.everywhere_seconds[row, stage] + at.count(place_of_gpu) * priced.shard_seconds[row, stage]
        )
        seconds.append((table, float(table_seconds)))
    return sorted(
        (table_and_seconds for table_and_seconds in seconds if table_and_seconds[1] > 0),
        key=lambda table_and_seconds: (-table_and_seconds[1], table_and_seconds[0]),
    )[:MAX_NAMED_TABLES]


def _repriced(
    priced: PricedOptions, loads: Loads, row: int, at: tuple[int, ...]
) -> tuple[float, TablePlacement | None, float | None]:
    """Step seconds without a table, the table's best alternative placement, and step seconds with the
    alternative."""
    table_loads = loads_of(priced, [row], [at])
    load_without = loads.load - table_loads.load
    device = loads.device_bytes - table_loads.device_bytes + priced.fixed_bytes
    host = loads.host_bytes - table_loads.host_bytes
    best: tuple[TablePlacement | None, float | None] = None, None
    for option_row in np.flatnonzero(priced.table_class == priced.table_class[row]).tolist():
        if option_row == row:
            continue
        tried = best_places(priced, option_row, load_without, device, host)
        if tried is not None and (best[1] is None or tried[1] < best[1]):
            best = TablePlacement(priced.options[option_row], tried[0]), tried[1]
    return _step(priced, load_without), *best


def best_places(
    priced: PricedOptions, row: int, load: Array, device: Array, host: Array
) -> tuple[tuple[int, ...], float] | None:
    """Places for the shards of a table held in one option, each where the step grows least, and step seconds;
    None if they do not fit."""
    per_node = priced.gpus_per_node
    load = load + priced.everywhere_seconds[row]
    device = device + priced.everywhere_bytes[row]
    host = host + priced.everywhere_host_bytes[row]
    node: Ints = np.arange(priced.gpus) // per_node
    on_nodes = priced.options[row].form == "node-row"
    places: list[int] = []
    if priced.shards[row] > (-(-priced.gpus // per_node) if on_nodes else priced.gpus):
        return None
    for _ in range(int(priced.shards[row])):
        load_after = load + priced.shard_seconds[row]
        longest = np.maximum(load.max(axis=0), priced.stage_floors)
        step = np.maximum(load_after, longest).sum(axis=1)
        room = (device + priced.shard_bytes[row] <= priced.device_memory * FULL).all(axis=1)
        room &= (host[node] + priced.shard_host_bytes[row]) <= priced.host_memory * FULL
        step = np.where(room, step + 1e-6 * load_after.sum(axis=1), np.inf)
        if on_nodes:
            step = np.maximum.reduceat(step, np.arange(0, priced.gpus, per_node))
        step[places] = np.inf
        place = int(step.argmin())
        if not np.isfinite(step[place]):
            return None
        gpus = np.flatnonzero(node == place) if on_nodes else np.array([place])
        load[gpus] += priced.shard_seconds[row]
        device[gpus] += priced.shard_bytes[row]
        host[place if on_nodes else place // per_node] += priced.shard_host_bytes[row]
        places.append(place)
    if device.max() > priced.device_memory * FULL or host.max() > priced.host_memory * FULL:
        return None
    return tuple(sorted(places)), _step(priced, load)


def _step(priced: PricedOptions, load: Array) -> float:
    return float(np.maximum(load.max(axis=0), priced.stage_floors).sum() + priced.fixed.sum())


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
    placements = dict(enumerate(sharding.tables))
    stated = {table: _stated_placement(word, nth) for table, (word, nth) in words_by_table.items()}
    priced = _priced(question, restrictions, sharding, words)
    rows = rows_of(priced, sharding)
    placements |= {table: placed for table, placed in stated.items() if placed is not None}
    for placing in (free := [table for table, placed in stated.items() if placed is None]):
        pending = set(free[free.index(placing) :])
        placed_tables = {table: placed for table, placed in placements.items() if table not in pending}
        placements[placing] = _best_place(
            priced, placed_tables, rows[placing], words_by_table[placing][0].option
        )
    left_out = next((str(word.option) for word in words if not restrictions.allows(word.option)), "")
    return Alternative(
        words=words,
        sharding=Sharding(tuple(placements[table] for table in range(len(sharding.tables)))),
        forbidden=f"the plan forbids `{left_out}`" if left_out else "",
    )


def _stated_placement(word: TableWord, nth: int) -> TablePlacement | None:
    """Placement of the nth table that a change names; None if the change gives no places for shards."""
    shards = word.option.shards if word.option.placed else 0
    if shards and not word.at:
        return None
    return TablePlacement(word.option, word.at[nth * shards : (nth + 1) * shards])


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


def _priced(
    question: RecommenderQuestion,
    restrictions: ShardingRestrictions,
    sharding: Sharding,
    words: tuple[TableWord, ...],
) -> PricedOptions:
    """Prices of the options in a sharding and in the user's change, including options that the plan forbids."""
    wider = replace(restrictions, fixed=(*restrictions.fixed, *words))
    return limited(covered_options(question, wider, sharding), restrictions)


def _best_place(
    priced: PricedOptions, placed_tables: dict[int, TablePlacement], row: int, option: Option
) -> TablePlacement:
    """Placement of one table in another option beside tables placed already, each shard where the step grows
    least; memory limits are ignored if the table fits nowhere. `row` is the table's current row of the
    prices."""
    class_rows = np.flatnonzero(priced.table_class == priced.table_class[row]).tolist()
    option_row = next(at for at in class_rows if priced.options[at] == option)
    row_of = {
        (one, known_option): at
        for at, (one, known_option) in enumerate(zip(priced.table_class, priced.options, strict=True))
    }
    classes = np.repeat(np.arange(len(priced.counts)), priced.counts)
    rows = [row_of[classes[table], placed.option] for table, placed in placed_tables.items()]
    loads = loads_of(priced, rows, [placed.at for placed in placed_tables.values()])
    for prices in (priced, replace(priced, device_memory=np.inf, host_memory=np.inf)):
        if places := best_places(prices, option_row, loads.load, loads.device_bytes, loads.host_bytes):
            return TablePlacement(option, places[0])
    raise AssertionError("slices fit on as many places")
