"""How the shipped profiles came to be: their constants fitted to the published runs that the project ships.

    python benchmarks/fit_profiles.py [--write] [--leave-out]        some minutes

Prints every constant with its 90 % interval and the runs that moved it most, and the errors each profile leaves; with
`--write` the profiles replace those in `cost_models/data/profiles/`, with `--leave-out` every source is first predicted
by profiles that never saw it (with what choosing by that would have cost in its sweeps), and the profiles of whole dies
claim the error that this leaves (a quarter of an hour).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cost_models.evidence.calibration.families import ANY, blank_profile, fit_families, leave_sources_out
from cost_models.evidence.calibration.saving import save_profile
from cost_models.evidence.calibration.step_time_fit import StepTimeFit, fitted_profile
from cost_models.evidence.rows.cases import Case
from cost_models.evidence.rows.shipped import timed_cases
from cost_models.evidence.validation.choices import choice_scores
from cost_models.evidence.validation.predicting import predict
from cost_models.evidence.validation.scores import measured_seconds
from cost_models.files import catalog
from meshwright.render.runs.validation import choice_cells

FOLDER = Path(__file__).parents[1] / "cost_models" / "data" / "profiles"


def main() -> None:
    """Fit every profile the runs tell something about."""
    cases = timed_cases()
    unseen = _unseen(cases) if "--leave-out" in sys.argv else {}
    for name, fit in fit_families(cases).items():
        _show(name, fit)
        if "--write" in sys.argv:
            before = catalog.load_profile(name).unseen_error if name in catalog.names("profiles") else None
            claimed = unseen.get(name, before)
            save_profile(fitted_profile(fit, unseen_error=claimed), FOLDER / f"{name}.yaml")


def _unseen(cases: Sequence[Case]) -> dict[str, float]:
    """Profile of a die over all stacks → what its sources' medians are, in the middle, when each is left out."""
    medians: dict[str, list[float]] = {}
    errors = leave_sources_out(cases)
    for source, found in errors.items():
        print(f"without {source}: median {np.median(np.abs(found)):.1%} over {len(found)} runs")
        first = next(case for case in cases if case.row.source == source)
        name = blank_profile(first.question.cluster.gpu.name, ANY).name
        medians.setdefault(name, []).append(float(np.median(np.abs(found))))
    _show_choices(cases, errors)
    return {name: float(np.median(found)) for name, found in medians.items()}


def _show_choices(cases: Sequence[Case], errors: Mapping[str, npt.NDArray[np.float64]]) -> None:
    """Regret of the layout predicted fastest and of the one recommended, by profiles that never saw the source."""
    predictions = []
    for source, found in errors.items():
        own = [case for case in cases if case.row.source == source]
        for one, error in zip(predict([case.row for case in own]), found.tolist(), strict=True):
            seconds = measured_seconds(one.row)
            assert seconds is not None
            predictions.append(replace(one, step_seconds=seconds * (1 + error)))
    for choice in choice_scores(predictions):
        print("  ".join(f"{cell:>14}" for cell in choice_cells(choice)))


def _show(name: str, fit: StepTimeFit) -> None:
    print(f"{name}: {len(fit.residuals)} runs, median error {fit.median_error:.1%}")
    for constant, interval in fit.constants.items():
        span = f"{interval.value:10.4g}  [{interval.low:.4g}, {interval.high:.4g}]"
        print(f"  {constant:30}{span:34}{', '.join(interval.moved_by[:2])}")
    for source, errors in fit.by_source().items():
        print(f"  {source:30}{np.median(np.abs(errors)):10.1%} over {len(errors)}")


if __name__ == "__main__":
    main()
