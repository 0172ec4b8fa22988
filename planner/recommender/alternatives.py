"""Tables held otherwise than in a sharding: the words that say how, read; places found; and what refuses it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.errors import InputError
from cost_models.memory.device import is_own_host
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Option, Placed, SaidOfTables, Sharding, parse_words
from planner.recommender.binding import put
from planner.recommender.covered import covered_options
from planner.recommender.loads import loads_of, rows_of
from planner.recommender.posing import limited
from planner.recommender.restrictions import ShardingRestrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A sharding with some tables held otherwise, or the rule that refuses it."""

    words: tuple[SaidOfTables, ...]
    sharding: Sharding | None
    """All other tables where they were; None where a rule refuses it, or no place has room."""
    refused: str = ""
    forbidden: str = ""
    """The restriction of the plan that leaves it out; it is priced all the same."""

    @property
    def tables(self) -> tuple[int, ...]:
        """Tables that are said to be held otherwise."""
        return tuple(table for said in self.words for table in range(said.first, said.last + 1))


def alternative(
    question: RecommenderQuestion, sharding: Sharding, text: str, restrictions: ShardingRestrictions
) -> Alternative:
    """The sharding with these words in place of what it says of their tables.

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
    said = {table: (one, nth) for one in words for nth, table in enumerate(range(one.first, one.last + 1))}
    for table, (one, _) in said.items():
        if reason := refusal(question, table, one.option):
            return Alternative(words=words, sharding=None, refused=reason)
    held = dict(enumerate(sharding.tables))
    given = {table: _given(one, nth) for table, (one, nth) in said.items()}
    priced = _priced(question, restrictions, sharding, words)
    rows = rows_of(priced, sharding)
    held |= {table: placed for table, placed in given.items() if placed is not None}
    for placing in (free := [table for table, placed in given.items() if placed is None]):
        pending = set(free[free.index(placing) :])
        there = {table: placed for table, placed in held.items() if table not in pending}
        held[placing] = _best_place(priced, there, rows[placing], said[placing][0].option)
    left_out = next((str(one.option) for one in words if not restrictions.allows(one.option)), "")
    return Alternative(
        words=words,
        sharding=Sharding(tuple(held[table] for table in range(len(sharding.tables)))),
        forbidden=f"the plan forbids `{left_out}`" if left_out else "",
    )


def _given(said: SaidOfTables, nth: int) -> Placed | None:
    """The nth table of a word with its places; None where these are free."""
    shards = said.option.shards if said.option.placed else 0
    if shards and not said.at:
        return None
    return Placed(said.option, said.at[nth * shards : (nth + 1) * shards])


def refusal(question: RecommenderQuestion, table: int, option: Option) -> str:
    """The rule that an option of a table breaks; nothing where it is legal."""
    model, cluster = question.model, question.cluster
    width = model.classes[model.class_of_table[table]].width
    name = model.table_names[table]
    places = cluster.nodes if option.form == "node-row" else cluster.num_gpus
    if option.form == "column" and width % option.shards:
        divisors = [str(n) for n in range(2, width + 1) if width % n == 0 and n <= places]
        verb = "does" if len(divisors) == 1 else "do"
        others = f"{', '.join(divisors)} {verb}" if divisors else f"no number of slices up to {places} does"
        return f"{name} has {width} columns, which {option.shards} slices do not divide; {others}"
    if option.placed and option.shards > places:
        what = "nodes" if option.form == "node-row" else "GPUs"
        return f"`{option}` has {option.shards} slices, and there are {places} {what}"
    if option.tier == "host" and is_own_host(cluster):
        return f"`{cluster.name}` has one memory, the host's: no table lies elsewhere"
    if option.tier == "host" and not cluster.host_memory:
        return f"nobody says how much memory hosts of `{cluster.name}` have; plan with --host-memory"
    return ""


def _priced(
    question: RecommenderQuestion,
    restrictions: ShardingRestrictions,
    sharding: Sharding,
    words: tuple[SaidOfTables, ...],
) -> PricedOptions:
    """Prices of the sharding's options and of those that are said, whatever the plan forbids."""
    asked = replace(restrictions, fixed=(*restrictions.fixed, *words))
    return limited(covered_options(question, asked, sharding), restrictions)


def _best_place(priced: PricedOptions, there: dict[int, Placed], row: int, option: Option) -> Placed:
    """A table, `row` of the prices today, in an option beside those that lie there: its shards where they lengthen the
    step least; where none has room, as if there were."""
    own = np.flatnonzero(priced.table_class == priced.table_class[row]).tolist()
    chosen = next(at for at in own if priced.options[at] == option)
    row_of = {
        (one, held): at for at, (one, held) in enumerate(zip(priced.table_class, priced.options, strict=True))
    }
    classes = np.repeat(np.arange(len(priced.counts)), priced.counts)
    rows = [row_of[classes[table], placed.option] for table, placed in there.items()]
    loads = loads_of(priced, rows, [placed.at for placed in there.values()])
    for prices in (priced, replace(priced, device_memory=np.inf, host_memory=np.inf)):
        if found := put(prices, chosen, loads.load, loads.device_bytes, loads.host_bytes):
            return Placed(option, found[0])
    raise AssertionError("slices fit on as many places")
