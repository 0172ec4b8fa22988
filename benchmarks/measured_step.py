"""How far one measured step corrects others of its source, each source left out of every fit and of all other runs.

    python benchmarks/measured_step.py FOLDS        FOLDS: written by `fit_errors.py --folds FOLDS`

For every pair of runs of a source that differ in recompute, sharding or precision, the second is predicted with the
first known (`cost_models.expected`): median error without and with it, by how far the sizes of the jobs differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from cost_models.expected import (
    LARGEST,
    SHAPE,
    SPLIT,
    SWITCHES,
    USERS_SOURCE,
    Kernel,
    Rows,
    shipped_constants,
    timed_rows,
)
from cost_models.measured.runs.cases import timed_cases


def main() -> None:
    """Print a line for each largest difference of sizes, and one for a common factor of all layouts of a source."""
    folds, (rows, _) = np.load(sys.argv[1]), timed_rows()
    place = {run["run"]: at for at, run in enumerate(rows["run"])}
    known = [place.get(case.row.row_id) for case in timed_cases()]
    kernel, shipped = shipped_constants()[0], [at for at, row in enumerate(known) if row is not None]
    sources = [name for name in folds.files if name.startswith("held source")]
    pairs = []
    for name in sources:
        held = np.array([known[at] for at in folds[name] if known[at] is not None])
        if len(held) > 2:
            errors = folds[name.replace("held", "errors", 1)][shipped]
            pairs.append(np.array([*corrected(kernel, rows, held, errors)]))
    for label, least_switches, most_size, most_split in (
        ("other switches, same model and batch", 1, 0.1, np.inf),
        ("other switches, sizes within a factor of 2.8", 1, 1.5, np.inf),
        ("same switches and sizes, one degree doubled", 0, 0.1, 1.5),
        ("all pairs", 0, np.inf, np.inf),
    ):
        medians = []
        for own in pairs:
            size, split, switches, *errors = own.T
            chosen = (size <= most_size) & (split <= most_split) & (switches >= least_switches)
            if most_split < np.inf:
                chosen &= switches == 0
            if chosen.sum() >= 4:
                medians.append(np.median(np.abs(np.stack(errors)[:, chosen]), axis=1))
        without, with_it, factor = np.median(medians, axis=0)
        print(
            f"{label}: {len(medians)} sources; {without:.1%} off without, {with_it:.1%} with the run,"
            f" {factor:.1%} with one factor for all"
        )


def corrected(
    kernel: Kernel, rows: Rows, held: np.ndarray, errors: np.ndarray
) -> Iterator[tuple[float, ...]]:
    """Differences of two runs in sizes, degrees and switches, and the second's errors: without the first, given the
    first, and with the first's error as a factor."""
    rest = np.setdiff1d(np.arange(len(rows)), held)
    inside = kernel.covariance(rows[rest], rows[rest])
    inside[np.diag_indices(len(rest))] += kernel.noise**2
    own = rows[held].copy()
    own["source"] = USERS_SOURCE
    cross = kernel.covariance(own, rows[rest])
    solved = np.linalg.solve(
        inside, np.concatenate([np.clip(errors[rest], -LARGEST, LARGEST)[:, None], cross.T], axis=1)
    )
    mean, covariance = cross @ solved[:, 0], kernel.covariance(own, own) - cross @ solved[:, 1:]
    for first in range(len(held)):
        gain = covariance[:, first] / (covariance[first, first] + kernel.noise**2)
        for second in range(len(held)):
            if first != second:
                size, split, switches = (
                    np.sqrt(sum((own[name][first] - own[name][second]) ** 2 for name in names))
                    for names in (SHAPE, SPLIT, SWITCHES)
                )
                error = errors[held[second]]
                given = error - mean[second] - gain[second] * (errors[held[first]] - mean[first])
                yield (
                    size,
                    split,
                    float(switches > 0),
                    error - mean[second],
                    given,
                    error - errors[held[first]],
                )


if __name__ == "__main__":
    main()
