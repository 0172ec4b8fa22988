"""Cross-validation: how well runs of some sources predict another's times, with every source left out in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.measured.calibration.families import leave_sources_out, predict_with
from cost_models.measured.runs.cases import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class UnseenSource:
    """Median absolute relative errors of one source's step times under three kinds of profiles."""

    source: str
    runs: int
    defaults: float
    """Error under the documented defaults, which were fitted to nothing."""
    left_out: float
    """Error under profiles fitted to every other source."""
    fitted: float
    """Error under the profile that was fitted to this source too."""


def cross_validate(
    cases: Sequence[Case],
    fitted_errors: Mapping[str, float],
    *,
    on_source: Callable[[str], None] | None = None,
) -> tuple[UnseenSource, ...]:
    """The errors of every source of `cases`, left out in turn; `fitted_errors` are those of the full fits, by run.

    The fits start from the documented defaults, not from the catalogue's profiles, which may have seen the same
    runs. A source whose GPU and stack no other source has is predicted with the nearest of the others' profiles.
    """
    unseen = leave_sources_out(cases, fewest=1, on_source=on_source)
    found = []
    for source, errors in unseen.items():
        members = [case for case in cases if case.row.source == source]
        fitted = np.array([fitted_errors[case.row.row_id] for case in members])
        found.append(
            UnseenSource(
                source=source,
                runs=len(members),
                defaults=_median(predict_with((), members)),
                left_out=_median(errors),
                fitted=_median(fitted),
            )
        )
    return tuple(found)


def _median(errors: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(errors)))
