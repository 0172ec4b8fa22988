"""Predicting published rows: one prediction each, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.estimate import Estimate, Verdict
from cost_models.evidence.rows.cases import Case, read_case
from cost_models.evidence.rows.notes import UnpredictableError
from cost_models.evidence.rows.row import Row
from cost_models.evidence.validation.peak_as_measured import peak_bytes
from cost_models.pipeline.estimating import estimate
from cost_models.specs.hardware import HardwareProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction of one row; where `skipped` gives a reason, everything else is empty."""

    row: Row
    case: Case | None = None
    step_seconds: float | None = None
    peak_bytes: float | None = None
    """Predicted peak as the row measured it: allocated on the rank it names, or as the driver reports."""
    fits: bool | None = None
    fits_probability: float | None = None
    """Chance that it fits."""
    verdict: Verdict | None = None
    """Whether it fits, `tight` where the error of peaks leaves that open; None where nothing was predicted."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of the step by part."""
    assumptions: tuple[str, ...] = ()
    trust: str = ""
    skipped: str = ""
    anchor: bool = False
    """True for a row whose measured step time calibrates the rest of its sweep, so that it has no prediction."""


def predict(
    rows: Iterable[Row], *, stack: str | None = None, profile: str | HardwareProfile | None = None
) -> Iterator[Prediction]:
    """Predict rows one by one, in order; a row that cannot be predicted is skipped with its reason, never an error."""
    for row in rows:
        try:
            case = read_case(row, stack=stack, profile=profile)
            priced = estimate(case.question, case.layout)
        except (UnpredictableError, InputError) as reason:
            yield Prediction(row=row, skipped=printable(str(reason).splitlines()[0]))
            continue
        yield _prediction(case, priced)


def _prediction(case: Case, priced: Estimate) -> Prediction:
    return Prediction(
        row=case.row,
        case=case,
        step_seconds=priced.step_seconds if case.sized else None,
        peak_bytes=peak_bytes(case, priced),
        fits=priced.fits,
        fits_probability=priced.fits_probability,
        verdict=priced.verdict,
        parts=dict(priced.time) if case.sized else {},
        assumptions=case.assumptions,
        trust=str(priced.trust),
    )
