"""What choosing by predictions costs within sweeps, and why: every source predicted by constants that never saw it.

    python benchmarks/regret.py [--runs TABLE.csv ...] [--kept FILE] [--write]        some minutes

A sweep is what one source ran under one nominal question. The layout that a rule picks ran so much slower than the
fastest of its sweep: that is its regret. The page says how much of it comes from the point model, from ties and from
verdicts on memory, for sweeps with pipelines and small microbatches apart, and what other rules would have cost.
Left-out predictions are kept in FILE and read again where it exists; `--runs` adds tables that are not shipped;
`--write` writes the page `docs/regret.md`.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.estimate import pair_error_of, uncovered_facts
from cost_models.expected import (
    Rows,
    features_of,
    labels_of,
    nearest_first,
    row_of,
    rows_of,
    shipped_constants,
    spread_of,
)
from cost_models.measured.calibration.profile_fits import fit_families, profiles_without, under_nearest
from cost_models.measured.calibration.step_time_fit import errors_of, seconds_of
from cost_models.measured.runs.cases import Case, read_rows, shipped_rows
from cost_models.measured.validation.predictions import Prediction, predict
from cost_models.measured.validation.scores import MIN_RANKED, sweep_of
from cost_models.pipeline.pricing import seconds_under_scenarios
from cost_models.risk import interquartile_mean
from planner.search.branching import MAX_COMPARED

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "regret.md"
_ASKED = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One layout of a sweep, as it was predicted without its source and as it ran."""

    source: str
    run: str
    sweep: tuple[str, ...]
    layout: Layout
    measured: float | None
    """None where it ran out of memory."""
    paper: float
    under: np.ndarray
    """(K,) seconds under the scenarios of its profile."""
    unexplained: float
    pair_error: float
    untimed: int
    """Facts of it that no run of its profile covers."""
    expected: float
    """ln(expected / paper), given the runs of all other sources."""
    deviation: float
    fits: bool
    roomy: bool
    chance: float
    """P(fits)."""
    tokens: float
    """Of one microbatch on one rank of a tensor group."""
    suspect: bool


def left_out(predictions: Sequence[Prediction]) -> Iterator[Ran]:
    """Every row of a sweep, its source left out of every fit."""
    timed = [one for one in predictions if one.row.step_seconds]
    cases = [_case(one) for one in timed]
    of_all = fit_families(cases)
    everyone = {name: fit.profile for name, fit in of_all.items()}
    known = _rows(under_nearest(everyone.values(), cases))
    for source, profiles in profiles_without(cases, of_all):
        own = [one for one in predictions if one.row.source_id == source]
        under = under_nearest(profiles, [_case(one) for one in own])
        rest = known["source"] != source
        others = (everyone | {profile.name: profile for profile in profiles}).values()
        errors = -np.log1p(errors_of(under_nearest(others, cases)))
        for one, case, paper in zip(own, under, seconds_of(under), strict=True):
            yield _ran(one, case, float(paper), known[rest], errors[rest])
        print(f"without {source}: {len(own)} rows", flush=True)


def _case(one: Prediction) -> Case:
    assert one.case is not None
    return one.case


def _rows(cases: Sequence[Case]) -> Rows:
    """Timed cases as rows of the process of expected steps."""
    table = []
    for case, paper in zip(cases, seconds_of(cases), strict=True):
        under = seconds_under_scenarios(case.question, case.layout)
        spread = 0.15 if under is None else spread_of(under, float(paper))
        facts = features_of(case.question, case.layout) | labels_of(case.question)
        table.append({**facts, "source": case.row.source_id, "spread": spread})
    return rows_of(table)


def _ran(one: Prediction, case: Case, paper: float, known: Rows, errors: np.ndarray) -> Ran:
    question, layout = case.question, case.layout
    under = seconds_under_scenarios(question, layout)
    under = np.full(16, paper) if under is None else under
    asked, kernel = row_of(question, layout, spread_of(under, paper)), shipped_constants()[0]
    near = nearest_first(kernel, asked, known)[:_ASKED]
    mean, deviation = kernel.posterior(asked, known[near], errors[near])
    scenarios = question.hardware.scenarios
    return Ran(
        source=one.row.source_id,
        run=one.row.row_id,
        sweep=sweep_of(one.row),
        layout=layout,
        measured=None if one.row.out_of_memory else one.row.step_seconds,
        paper=paper,
        under=under,
        unexplained=0.1 if scenarios is None else scenarios.unexplained,
        pair_error=pair_error_of(question),
        untimed=uncovered_facts(question, layout),
        expected=mean,
        deviation=deviation,
        fits=one.fits is not False,
        roomy=one.verdict == "fits",
        chance=1.0 if one.fits_probability is None else one.fits_probability,
        tokens=layout.mbs * question.training.sequence_length / (layout.tp * layout.cp),
        suspect=one.row.suspect,
    )


def gathered(tables: Sequence[Path]) -> list[Prediction]:
    """Shipped rows and those of some tables that were timed or ran out of memory, predicted."""
    shipped = shipped_rows()
    sources = {row.source_id for row in shipped}
    more = [row for table in tables for row in read_rows(table) if row.source_id not in sources]
    rows = [row for row in (*shipped, *more) if row.out_of_memory or row.step_seconds]
    return [one for one in predict(rows) if one.case is not None and one.step_seconds]


def sweeps_of(rows: Sequence[Ran]) -> list[list[Ran]]:
    """Sweeps with three timed rows or more; rows of one layout and one prediction are one, with their median time."""
    together: dict[tuple[str, ...], dict[tuple[str, float], list[Ran]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        together[(row.source, *row.sweep)][str(row.layout), row.paper].append(row)
    return [
        [_merged(own) for own in sweep.values()]
        for sweep in together.values()
        if sum(row.measured is not None for own in sweep.values() for row in own) >= MIN_RANKED
    ]


def _merged(own: Sequence[Ran]) -> Ran:
    times = [row.measured for row in own if row.measured is not None]
    died = 2 * len(times) < len(own)
    return replace(own[0], measured=None if died or not times else float(np.median(times)))


Price = Callable[[Ran], float]
"""What a rule minimises: a logarithm of seconds, in which surcharges are sums."""


def paper(row: Ran) -> float:
    """The step on paper."""
    return math.log(row.paper)


def neutral(row: Ran) -> float:
    """The mean over the scenarios of the profile."""
    return math.log(float(row.under.mean()))


def averse(row: Ran) -> float:
    """The mean of the slowest quarter of the scenarios."""
    return math.log(float(np.sort(row.under)[-(len(row.under) // 4) :].mean()))


def in_the_middle(row: Ran) -> float:
    """The mean over the middle half of the scenarios."""
    return math.log(interquartile_mean(row.under))


def expected(row: Ran) -> float:
    """The expected step."""
    return math.log(row.paper) + row.expected


def prudent(share: float) -> Price:
    """The expected step, `share` deviations later."""
    return lambda row: expected(row) + share * row.deviation


def spread(share: float) -> Price:
    """The step on paper, `share` deviations of its scenarios later."""
    return lambda row: paper(row) + share * float(np.log(row.under / row.paper).std())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What following a rule in one sweep cost."""

    regret: float
    died: int
    """Layouts that ran out of memory before one ran."""


def followed(
    sweep: Sequence[Ran], price: Price, *, verdicts: bool = True, near: Price | None = None
) -> Outcome:
    """Runs the layouts said to fit, the least price first, until one does not run out of memory.

    With `near`, of the first eight within the deviation that no constant explains, one for each choice of degrees and
    microbatch, its least goes first.
    """
    tried = sorted(sweep, key=lambda row: (verdicts and not row.fits, price(row)))
    if near is not None:
        first = tried[0]
        some = [
            row for row in tried if row.fits == first.fits and price(row) - price(first) <= row.unexplained
        ]
        of_each = {
            (own.tp, own.pp, own.cp, own.dp, own.ep, own.mbs): row
            for row in some[::-1]
            if (own := row.layout)
        }
        taken = min(sorted(of_each.values(), key=price)[:MAX_COMPARED], key=near)
        tried.sort(key=lambda row: row is not taken)
    for died, row in enumerate(tried):
        if row.measured is not None:
            return Outcome(row.measured / fastest(sweep) - 1, died)
    raise AssertionError("a sweep has timed rows")


def fastest(sweep: Sequence[Ran]) -> float:
    """Seconds of the fastest row of a sweep."""
    return min(row.measured for row in sweep if row.measured is not None)


def is_narrow(sweep: Sequence[Ran]) -> bool:
    """Whether the sweep has pipelines with one or two sequences a microbatch."""
    return any(row.layout.pp > 1 and row.layout.mbs <= 2 for row in sweep if row.measured is not None)


def ablation(sweep: Sequence[Ran]) -> dict[str, float]:
    """Regret of one sweep by what it comes from: shares of the fastest time that sum to that of `plan`'s order.

    `point`: the row predicted fastest of those that ran, less what `ties` hide: how much faster the best of the rows
    within the error of two times ran. `memory`: what verdicts change.
    """
    ran = [row for row in sweep if row.measured is not None]
    alone = followed(ran, paper, verdicts=False).regret
    first = min(ran, key=paper)
    near = [row for row in ran if paper(row) - paper(first) <= first.pair_error]
    tie = alone - (fastest(near) / fastest(sweep) - 1)
    whole = followed(sweep, paper)
    return {
        "point": alone - tie,
        "ties": tie,
        "memory": whole.regret - alone,
        "regret": whole.regret,
        "died": whole.died,
        "barred": float(all(not row.fits for row in ran if row.measured == fastest(sweep))),
    }


RULES: dict[str, Price] = {
    "on paper": paper,
    "expected": expected,
    "neutral": neutral,
    "averse": averse,
    "middle half": in_the_middle,
    "expected, one deviation later": prudent(1.0),
    "on paper, one spread later": spread(1.0),
}


def page(sweeps: Sequence[Sequence[Ran]]) -> Iterator[str]:
    """All of it as Markdown."""
    trusted = [sweep for sweep in sweeps if not any(row.suspect for row in sweep)]
    narrow = [sweep for sweep in trusted if is_narrow(sweep)]
    kinds = {
        "all": sweeps,
        "without rows that their transcriber flagged": trusted,
        "of these with pipelines and small microbatches": narrow,
        "of these without": [sweep for sweep in trusted if not is_narrow(sweep)],
    }
    yield "# Regret"
    yield ""
    yield "Written by `python benchmarks/regret.py --write`: how much slower than the fastest of its sweep the"
    yield "layout ran that is predicted fastest of those said to fit, by constants fitted to all other sources, as a"
    yield "mean over sweeps, and what it comes from. `ties`: the fastest of the rows within the error of two times was"
    yield "not the first of them. `memory`: what verdicts change; `died`: sweeps in which a layout said to fit ran out"
    yield "of memory first, `barred`: in which the fastest was said not to fit. A small microbatch has one or two"
    yield "sequences. Of sweeps with flagged rows the times say little: they are noisy, or bound by what the row does"
    yield "not describe, and no fit counts them."
    yield ""
    yield "| sweeps | | point | ties | memory | regret | worst | died | barred |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, some in kinds.items():
        parts = [ablation(sweep) for sweep in some]
        mean = {part: float(np.mean([one[part] for one in parts])) for part in parts[0]} if parts else {}
        cells = (
            [f"{100 * mean[part]:.2f} %" for part in ("point", "ties", "memory", "regret")] if parts else []
        )
        worst = max((one["regret"] for one in parts), default=0.0)
        counts = [f"{sum(one[part] > 0 for one in parts)}" for part in ("died", "barred")]
        yield f"| {name} | {len(some)} | {' | '.join(cells)} | {100 * worst:.1f} % | {' | '.join(counts)} |"
    yield ""
    yield "Other rules: each cell has the mean, the worst, and the sweeps in which a layout ran out of memory first."
    yield "`neutral` and `averse` are what `plan --risk` minimises; a spread is the deviation of a step over the"
    yield "scenarios of its profile."
    yield ""
    yield f"| rule | {' | '.join(kinds)} |"
    yield f"| --- |{' --- |' * len(kinds)}"
    for name, price in RULES.items():
        yield f"| {name} | {' | '.join(_outcome(some, price) for some in kinds.values())} |"
    yield f"| {_PLAN} | {' | '.join(_outcome(some, paper, in_the_middle) for some in kinds.values())} |"
    yield ""
    yield f"| source | sweeps | {' | '.join(RULES)} | {_PLAN} |"
    yield f"| --- | --- |{' --- |' * len(RULES)} --- |"
    for source in dict.fromkeys(sweep[0].source for sweep in sweeps):
        own = [sweep for sweep in sweeps if sweep[0].source == source]
        cells = [*(_outcome(own, price) for price in RULES.values()), _outcome(own, paper, in_the_middle)]
        yield f"| {source} | {len(own)} | {' | '.join(cells)} |"


_PLAN = "as `plan` does: near the fastest on paper, the middle half"


def _outcome(sweeps: Sequence[Sequence[Ran]], price: Price, near: Price | None = None) -> str:
    found = [followed(sweep, price, near=near) for sweep in sweeps]
    if not found:
        return "-"
    regrets = [one.regret for one in found]
    died = sum(one.died > 0 for one in found)
    return f"{100 * np.mean(regrets):.2f} %, {100 * max(regrets):.0f} %, {died}"


def main() -> None:
    """Leave out every source, show what choosing costs."""
    tables = [Path(one) for one in sys.argv[1:] if one.endswith(".csv")]
    kept = Path(sys.argv[sys.argv.index("--kept") + 1]) if "--kept" in sys.argv else None
    if kept is not None and kept.exists():
        rows = pickle.loads(kept.read_bytes())
    else:
        rows = list(left_out(gathered(tables)))
        if kept is not None:
            kept.write_bytes(pickle.dumps(rows))
    text = "\n".join(page(sweeps_of(rows))) + "\n"
    print(text)
    if "--write" in sys.argv:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
