"""How the shipped profiles came to be: their constants fitted to the published runs that the project ships.

    python benchmarks/fit_profiles.py [--write] [--leave-out]        some minutes

Prints every constant with its 90 % interval and the runs that moved it most, and the errors each profile leaves; with
`--write` the profiles replace those in `cost_models/data/profiles/`. With `--leave-out` every source is first predicted
by profiles that never saw it (`left_out.py`): what choosing by that would have cost in its sweeps, and how many runs
lay in their intervals. Profiles then claim the error and the reach of intervals that this leaves, and `--write` writes
the page `docs/left-out.md` too.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import left_out
import numpy as np

from cost_models.arrays import group_by
from cost_models.expected import Reach
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.profile_fits import fit_families
from cost_models.measured.calibration.step_time_fit import StepTimeFit
from cost_models.measured.runs.cases import timed_cases
from cost_models.specs.hardware import HardwareProfile

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "cost_models" / "data" / "profiles"
PAGE = ROOT / "docs" / "left-out.md"


def main() -> None:
    """Fit every profile the runs tell something about."""
    cases = timed_cases()
    unseen = left_out.tried(cases) if "--leave-out" in sys.argv else None
    if unseen is not None:
        print(unseen.page())
        if "--write" in sys.argv:
            PAGE.write_text(unseen.page(), encoding="utf-8")
    for name, fit in fit_families(cases).items():
        _show(name, fit)
        if "--write" in sys.argv:
            before = catalog.load_profile(name) if name in catalog.names("profiles") else None
            claimed = before and before.unseen_error
            known = before and before.scenarios
            reach = known and Reach(known.faster, known.slower)
            if unseen is not None:
                claimed, reach = unseen.medians().get(name, claimed), unseen.reach
            save_spec(_shipped(fit, claimed, reach), FOLDER / name.split("-")[0] / f"{name}.yaml")


def _shipped(fit: StepTimeFit, unseen_error: float | None, reach: Reach | None) -> HardwareProfile:
    """Fitted profile with what leaving sources out says of it."""
    scenarios, runs = fit.profile.scenarios, Counter(fit.sources.values()).items()
    assert scenarios is not None
    sources = ", ".join(f"{count} of {source}" for source, count in runs)
    claims = {
        "unseen_error": None if unseen_error is None else round(unseen_error, 4),
        "scenarios": scenarios if reach is None else scenarios.model_copy(update=reach._asdict()),
        "source": f"Fitted to published runs: {sources}. The median error is that of the fit itself.",
    }
    return fit.profile.model_copy(update=claims)


def _show(name: str, fit: StepTimeFit) -> None:
    print(f"{name}: {len(fit.residuals)} runs, median error {fit.median_error:.1%}")
    for constant, interval in fit.constants.items():
        span = f"{interval.value:10.4g}  [{interval.low:.4g}, {interval.high:.4g}]"
        print(f"  {constant:30}{span:34}{', '.join(interval.movers[:2])}")
    for source, runs in group_by(fit.residuals, fit.sources.__getitem__).items():
        print(f"  {source:30}{np.median([abs(fit.residuals[run]) for run in runs]):10.1%} over {len(runs)}")


if __name__ == "__main__":
    main()
