"""How the shipped profiles came to be: their constants fitted to the published runs of their GPU and stack.

    python benchmarks/fit_profiles.py [PROFILE ...]        about half a minute to some minutes a profile

Starts from the datasheet defaults and prints the constants and the error they leave, beside those of the shipped file;
it changes no file.
"""

from __future__ import annotations

import sys

from cost_models.calibration.from_runs import fit_profile
from cost_models.specs import catalog
from cost_models.validation.shipped import shipped_cases

CONSTANTS = (
    "gemm_efficiency",
    "attention_forward_efficiency",
    "attention_backward_efficiency",
    "memory_efficiency",
    "link_efficiency",
    "network_efficiency",
    "jitter_per_doubling",
)


def main() -> None:
    """Fit every profile named, or all fitted ones."""
    shipped = [catalog.load_profile(name) for name in sys.argv[1:] or catalog.names("profiles")]
    for profile in shipped:
        runs = [case for case in shipped_cases() if case.question.hardware == profile]
        if not runs:
            continue
        identity = {
            "gpu": profile.gpu,
            "stack": profile.stack,
            "also_for": profile.also_for,
            "tier": "profile",
        }
        start = catalog.load_profile("datasheet-gpu").model_copy(update={"name": profile.name, **identity})
        fit = fit_profile(start, runs, CONSTANTS)
        print(
            f"{profile.name}: {len(runs)} runs, median error {fit.median_error:.1%}, shipped {profile.median_error:.1%}"
        )
        for name in CONSTANTS:
            print(f"  {name:32} {getattr(fit.profile, name):.4g}  shipped {getattr(profile, name):.4g}")


if __name__ == "__main__":
    main()
