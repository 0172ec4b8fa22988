"""How far predictions are off, fitted to the shipped runs: intervals of steps, and chances that peaks fit.

    python benchmarks/fit_errors.py [--rows] [--write] [--folds FILE]        some minutes

With `--rows` only `data/errors/steps.csv` is written again: the shipped runs under the shipped profiles, to be done
whenever a change moves predictions (seconds). Otherwise every source, and every die, is left out of every fit in
turn (kept in FILE, read again where it exists), the constants of `cost_models/expected.py` and of
`cost_models/risk.py` are fitted, and every source is judged by intervals that it had no part in: `--write` writes
`data/errors` and the page `docs/intervals.md`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import fit_peaks
import numpy as np
from judged_intervals import Judged, fitted_kernel, judged, reaches

from cost_models.defaults import die_of
from cost_models.expected import FEATURES, NAMES, features_of, labels_of, spread_of
from cost_models.measured.calibration.profile_fits import (
    ANY,
    blank_profile,
    fit_families,
    pair_of,
    under_nearest,
)
from cost_models.measured.calibration.step_time_fit import errors_of, measured_seconds
from cost_models.measured.runs.cases import Case, timed_cases
from cost_models.pipeline.pricing import seconds_under_scenarios

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "cost_models" / "data" / "errors"
PAGE = ROOT / "docs" / "intervals.md"
TOLD = ("run", "source", "model", "layout", "batch", "seconds", "log_ratio", "spread")
Folds = dict[str, tuple[np.ndarray, np.ndarray]]
"""Name of what was left out → the places of its runs, and ln(measured / predicted) of all runs without it."""


def main() -> None:
    """Fit both, show both."""
    cases = timed_cases()
    if "--rows" in sys.argv:
        write_rows(cases)
        return
    if "--write" in sys.argv:
        write_rows(cases)
    kernel = fitted_kernel(found := folds(cases))
    told, reach = judged(kernel, found), reaches(kernel, found)
    peaks, chances = fit_peaks.fitted()
    page = "\n".join([*_page(told), *fit_peaks.page(chances)]) + "\n"
    print(page)
    if "--write" not in sys.argv:
        return
    PAGE.write_text(page, encoding="utf-8")
    lines = ["# Written by `python benchmarks/fit_errors.py --write`; what each is: cost_models/expected.py."]
    lines += [f"{name}: {value:.4g}" for name, value in asdict(kernel).items()]
    lines += ["reach:"]
    lines += [
        f"  {name}: {{faster: {ends.faster:.3f}, slower: {ends.slower:.3f}}}" for name, ends in reach.items()
    ]
    lines += [f"borrowed_error: {told.borrowed_error:.3f}", f"borrowed_runs: {told.borrowed_runs}"]
    words = (
        f"Fitted to {len(cases):,} shipped runs of {told.sources} sources, each left out of every fit in turn"
    )
    lines += [f'source: "{words}; reach of borrowed profiles: each die left out."']
    (FOLDER / "steps.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    fit_peaks.write(FOLDER / "peaks.yaml", peaks)


def write_rows(cases: Sequence[Case]) -> None:
    """Write every timed run with its features, and how far it was off under the shipped profiles."""
    errors = errors_of(cases)
    with (FOLDER / "steps.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow((*TOLD, *NAMES, *FEATURES))
        for case, error in zip(cases, errors, strict=True):
            question, measured = case.question, measured_seconds(case)
            under = seconds_under_scenarios(question, case.layout)
            spread = 0.15 if under is None else spread_of(under, measured * (1 + error))
            features, names = features_of(question, case.layout), labels_of(question)
            writer.writerow(
                [
                    case.row.row_id,
                    case.row.source_id,
                    case.row.model,
                    case.layout.model_copy(update={"layers": ()}).brief,
                    question.training.global_batch,
                    f"{measured:.6g}",
                    f"{-np.log1p(error):.4f}",
                    f"{spread:.4f}",
                    *(names[name] for name in NAMES),
                    *(f"{features[name]:.6g}" for name in FEATURES),
                ]
            )


def folds(cases: Sequence[Case]) -> Folds:
    """The errors of all runs with every source, and every die, left out; kept in a file where one is named."""
    kept = Path(sys.argv[sys.argv.index("--folds") + 1]) if "--folds" in sys.argv else None
    if kept is not None and kept.exists():
        saved = np.load(kept)
        names = [name.removeprefix("held ") for name in saved.files if name.startswith("held ")]
        return {name: (saved[f"held {name}"], saved[f"errors {name}"]) for name in names}
    found = dict(_left_out(cases))
    if kept is not None:
        arrays = {f"held {name}": held for name, (held, _) in found.items()}
        np.savez(kept, **arrays, **{f"errors {name}": errors for name, (_, errors) in found.items()})
    return found


def _left_out(cases: Sequence[Case]) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    of_all = fit_families(cases)
    sources = [f"source {case.row.source_id}" for case in cases]
    dies = [f"die {die_of(case.question.cluster.gpu.name)}" for case in cases]
    every = [(name, marks) for marks in (sources, dies) for name in dict.fromkeys(marks)]
    for label, marks in every:
        held = [place for place, mark in enumerate(marks) if mark == label]
        rest = [place for place, mark in enumerate(marks) if mark != label]
        touched, known = (
            {pair_of(cases[place]) for place in places}
            | {(pair_of(cases[place])[0], ANY) for place in places}
            for places in (held, rest)
        )
        fits = fit_families([cases[place] for place in rest], touched & known, around=of_all)
        gone = {blank_profile(*pair).name for pair in touched}
        profiles = {name: fit for name, fit in of_all.items() if name not in gone} | fits
        errors = errors_of(under_nearest([fit.profile for fit in profiles.values()], cases))
        print(f"without {label}: median {np.median(np.abs(errors[held])):.1%} of {len(held)}", flush=True)
        yield label, (np.array(held), -np.log1p(errors))


def _page(told: Judged) -> Iterator[str]:
    yield "# Intervals"
    yield ""
    yield "Written by `python benchmarks/fit_errors.py --write`. Every source of timed runs is predicted by profiles"
    yield "fitted to all the others, conditioned on the others' runs, with an interval whose reach all others needed."
    yield "`held`: of its runs, how many lay in their 90 % interval; `width`: the median of its slow end over its fast"
    yield "end; `timed`: how many of its runs are on a GPU, with a family of stacks and a kind of model that another"
    yield "source timed."
    yield ""
    yield from told.sentences()
    yield ""
    yield "| source | runs | held | width | timed | median error on paper | given the others' runs |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    yield from told.lines()


if __name__ == "__main__":
    main()
