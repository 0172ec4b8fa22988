"""Validation: predicts runs that others timed, and says how far off, as records, tables and pictures."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import UnknownNameError
from cost_models.files import catalog
from cost_models.files.whole import write_whole
from cost_models.measured.calibration.profile_fits import anchor
from cost_models.measured.runs.cases import read_rows, shipped_rows
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Figures, Prediction, predict, published_figures
from cost_models.measured.validation.scores import (
    ChoiceScore,
    ErrorScore,
    SourceScore,
    SweepScore,
    brier_scores,
    chance_ranges,
    choice_scores,
    measured_bytes,
    score,
    step_error,
)
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, grouped
from meshwright.inputs.problems import Problems
from meshwright.plots.drawing import Drawing
from meshwright.records import fields_of, frame_of
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import percent, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.validate import ValidateOptions

if TYPE_CHECKING:
    import pandas as pd

SUBJECT = "runs that others timed"


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """One row; seconds and bytes, null where nothing was predicted or measured."""
    case = prediction.case
    return {
        "row_id": prediction.row.row_id,
        "source_id": prediction.row.source_id,
        "predicted_step_seconds": prediction.step_seconds,
        "predicted_peak_bytes": prediction.peak_bytes,
        "predicted_fits": prediction.fits,
        **fields_of(prediction, "fits_probability", "verdict"),
        "measured_step_seconds": prediction.row.step_seconds,
        "measured_peak_bytes": measured_bytes(prediction.row),
        "ran_out_of_memory": prediction.row.out_of_memory,
        "layout": case and str(case.layout),
        "stack": case and case.question.stack.name,
        "profile": case and case.question.hardware.name,
        "parts": dict(prediction.parts),
        "assumptions": list(prediction.assumptions),
        "trust": prediction.trust or None,
        "anchor": prediction.anchor,
        "skipped": prediction.skipped or None,
    }


def prediction_row(prediction: Prediction) -> dict[str, Any]:
    """Flat row of a prediction: a column for each part of the step, assumptions in one cell."""
    record = prediction_record(prediction)
    parts = {f"{part}_seconds": seconds for part, seconds in record.pop("parts").items()}
    return record | {"assumptions": "; ".join(record["assumptions"])} | parts


def source_record(source: SourceScore) -> dict[str, Any]:
    """Every figure of one source; shares, null where the rows do not say."""
    return {
        "source_id": source.source,
        "rows": source.rows,
        "timed_predicted": source.predicted,
        "skipped": source.skipped,
        "step_seconds": source.step and asdict(source.step),
        "anchored_step_seconds": source.anchored and asdict(source.anchored),
        "peak_bytes": source.memory and asdict(source.memory),
        "out_of_memory": asdict(source.verdicts),
        "regret": {"mean": source.mean_regret, "worst": source.worst_regret},
        "kendall_tau": source.mean_tau,
        "sweeps": [sweep_record(sweep) for sweep in source.sweeps],
    }


def source_row(source: SourceScore) -> dict[str, Any]:
    """Flat row of a source's scores, without sweeps: `step_seconds_median`, `out_of_memory_recall`, `regret_worst` …"""
    record = source_record(source)
    del record["sweeps"]
    row: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            row |= {f"{name}_{figure}": share for figure, share in value.items()}
        elif name in ("step_seconds", "anchored_step_seconds", "peak_bytes"):  # nothing to compare with
            row |= {f"{name}_{figure.name}": None for figure in fields(ErrorScore)}
        else:
            row[name] = value
    return row


def sweep_record(sweep: SweepScore) -> dict[str, Any]:
    """One sweep by the cells that name it."""
    return {"sweep": list(sweep.key), "rows": sweep.rows, "regret": sweep.regret, "kendall_tau": sweep.tau}


def choice_record(choice: ChoiceScore) -> dict[str, Any]:
    """Regrets by sweep, and how often a stated interval held the measured ratio of two times."""
    regrets = {"regret_fastest": list(choice.point), "regret_recommended": list(choice.recommended)}
    return {"source_id": choice.source, **regrets, **fields_of(choice, "pairs", "covered")}


def plot_subject(anchors: int) -> str:
    """Subject of plots of residuals."""
    return f"{SUBJECT}; {counted(anchors, 'anchor')} a sweep" if anchors else SUBJECT


def residual_frame(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Frame with a row per timed and predicted run, and columns to sort by.

    Columns: `row_id`, `source`, `measured_seconds`, `predicted_seconds`, `bound_by` (the largest part beside compute),
    `tp`, `pp`, `mbs`, `gpus`, `layout`.
    """
    columns = ["row_id", "source", "measured_seconds", "predicted_seconds", "bound_by"]
    rows = []
    for run in predictions:
        if run.case is not None and step_error(run) is not None:
            row, layout = run.row, run.case.layout
            seconds = row.step_seconds, run.step_seconds
            degrees = layout.tp, layout.pp, layout.mbs, layout.num_gpus
            rows.append((row.row_id, row.source_id, *seconds, _bound_by(run.parts), *degrees, layout.brief))
    return frame_of(rows, columns=[*columns, "tp", "pp", "mbs", "gpus", "layout"])


def _bound_by(parts: Mapping[str, float]) -> str:
    waits = {part: seconds for part, seconds in parts.items() if part != "compute"}
    return max(waits, key=waits.__getitem__) if waits else "compute"


_NOTHING = "-"
_MAX_REASONS = 8
_STEP_TIME = (
    "Step time. Errors are predicted / measured - 1; bias: their mean; tau: rank correlation within sweeps; regret,"
    " worst: how much slower the layout with the best prediction ran than the fastest of its sweep, on average and at"
    " worst."
)
_CHOICES = (
    "Choices within sweeps. Regret of the layout predicted fastest and of the one recommended, on average and at worst;"
    " in 90 %: of all pairs of layouts, the share whose measured ratio of times lay in the model's 90 % interval."
)
_MEMORY = (
    "Memory. Caught: runs out of memory that were predicted so; alarms: runs that fitted but were predicted not to;"
    " precision: share of predictions of running out that were right."
)


def step_table(sources: Sequence[SourceScore]) -> Table | None:
    """A line of step-time errors for each source with timed runs; None without any."""
    scores = [(source, source.step) for source in sources if source.step]
    taus = [source.mean_tau for source, _ in scores]
    columns = {
        "source": [printable(source.source, 40) for source, _ in scores],
        "timed": [str(step.count) for _, step in scores],
        "median": [_percent(step.median) for _, step in scores],
        "p90": [_percent(step.p90) for _, step in scores],
        "bias": [signed_percent(step.bias) for _, step in scores],
        "tau": [_NOTHING if tau is None else f"{tau:.2f}" for tau in taus],
        "regret": [_percent(source.mean_regret) for source, _ in scores],
        "worst": [_percent(source.worst_regret) for source, _ in scores],
    }
    return table_of(columns, words=("source",)) if scores else None


def memory_table(sources: Sequence[SourceScore]) -> Table | None:
    """A line for each source with a measured peak, an out-of-memory run or a run predicted not to fit; None without."""
    headers = ("source", "peaks", "median", "p90", "bias", "caught", "alarms", "precision")
    rows = []
    for source in sources:
        memory, verdicts = source.memory, source.verdicts
        out, ran = verdicts.caught + verdicts.missed, verdicts.false_alarms + verdicts.agreed
        if memory or out or verdicts.false_alarms:
            figures = (memory.median, memory.p90, memory.bias) if memory else (None, None, None)
            count = str(memory.count) if memory else _NOTHING
            errors = _percent(figures[0]), _percent(figures[1]), signed_percent(figures[2])
            caught = f"{verdicts.caught}/{out}" if out else _NOTHING
            alarms = f"{verdicts.false_alarms}/{ran}" if ran else _NOTHING
            name = printable(source.source, 40)
            rows.append((name, count, *errors, caught, alarms, _percent(verdicts.precision)))
    return table(headers, rows, words=("source",)) if rows else None


def choice_table(choices: Sequence[ChoiceScore]) -> Table | None:
    """A line on the regret of each source's choices; None without any."""
    headers = ("source", "sweeps", "fastest", "worst", "recommended", "its worst", "pairs", "in 90 %")
    rows = []
    for choice in choices:
        regrets = []
        for shares in (choice.point, choice.recommended):
            regrets += [
                _percent(statistics.mean(shares) if shares else None),
                _percent(max(shares, default=None)),
            ]
        sweeps, pairs = (str(number) if number else _NOTHING for number in (len(choice.point), choice.pairs))
        rows.append((printable(choice.source, 40), sweeps, *regrets, pairs, _percent(choice.covered)))
    return table(headers, rows, words=("source",)) if rows else None


def chance_table(predictions: Sequence[Prediction]) -> Table | None:
    """A line for each range of predicted probabilities of fitting; None where no run was out of memory."""
    if not any(one.row.out_of_memory for one in predictions):
        return None
    ranges = chance_ranges(predictions)
    columns = {
        "probability": [f"{100 * one.least:.0f} to {100 * one.most:.0f} %" for one in ranges],
        "runs": [str(one.runs) for one in ranges],
        "predicted": [_percent(one.fits_probability) for one in ranges],
        "fitted": [_percent(one.ran_share) for one in ranges],
    }
    return table_of(columns)


def chances_heading(predictions: Sequence[Prediction]) -> str:
    """Heading on the columns of the table of chances, and on their Brier score."""
    words = "Runs by their predicted probability of fitting: its mean, and the share that fitted."
    if (scores := brier_scores(predictions)) is None:
        return words
    return f"{words} Brier score {scores[0]:.3f}; with the same probability for every run {scores[1]:.3f}."


def summary(predictions: Sequence[Prediction], *, anchors: int) -> str:
    """How many rows were predicted."""
    skipped = sum(bool(one.skipped) and not one.anchor for one in predictions)
    anchored = sum(one.anchor for one in predictions)
    words = [f"{counted(len(predictions) - skipped - anchored, 'row')} predicted", f"{skipped} skipped"]
    if anchors:
        words.append(f"{anchored} given as anchors, {anchors} a sweep of one framework and GPU")
    return wrapped(", ".join(words))


def reasons(predictions: Sequence[Prediction]) -> list[tuple[str, int]]:
    """Why rows were skipped, the most frequent reason first."""
    return Counter(one.skipped for one in predictions if one.skipped and not one.anchor).most_common()


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else percent(share)


def signed_percent(share: float | None) -> str:
    """0.031 → "+3.1 %"; a dash for None."""
    return _NOTHING if share is None else percent(share, "+.1%")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateQuestion:
    """Rows that were read: what is left is to predict them."""

    rows: tuple[Row, ...]
    stack: str | None
    profile: HardwareProfile | None
    anchors: int
    shipped: bool = False
    """Whether the rows are the shipped tables."""

    def answer(
        self, *, on_status: Callable[[str], None] | None = None, keep_on_interrupt: bool = False
    ) -> Validated:
        """Predict every row; with `keep_on_interrupt`, Ctrl-C leaves the rows predicted so far."""
        say = on_status or (lambda _: None)
        predictions: list[Prediction] = []
        try:
            for prediction in predict(self.rows, stack=self.stack, profile=self.profile):
                predictions.append(prediction)
                count = f"{grouped(len(predictions))}/{grouped(len(self.rows))}"
                say(f"predicting  {count} rows  {prediction.row.source_id}")
        except KeyboardInterrupt:
            if not keep_on_interrupt or not predictions or self.anchors:
                raise
            return Validated(predictions=tuple(predictions), anchors=self.anchors, interrupted=True)
        anchored = anchor(
            predictions, self.anchors, on_sweep=lambda count, of: say(f"calibrating  {count}/{of} sweeps")
        )
        figures = published_figures() if self.shipped and self.stack is None and self.profile is None else ()
        return Validated(predictions=anchored, anchors=self.anchors, figures=figures)


def ask(runs: Sequence[str | Path], options: ValidateOptions) -> ValidateQuestion:
    """Read the tables of runs; without any, those that are shipped.

    Raises:
        InputError: a table, a stack or a profile cannot be read; everything that cannot, at once.
    """
    problems, stack, profile = Problems(), options.stack, options.profile
    tables = [problems.read(partial(read_rows, Path(path))) for path in runs] if runs else [shipped_rows()]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    constants = problems.read(lambda: catalog.load_profile(profile) if isinstance(profile, str) else profile)
    problems.require()
    rows = tuple(row for table in tables for row in table or ())
    anchors = options.anchors
    return ValidateQuestion(rows=rows, stack=stack, profile=constants, anchors=anchors, shipped=not runs)


PAGE = "accuracy.md"
_KINDS = ("accuracy", "errors")


class Validated(Answer):
    """Runs with their predictions, and the figures of each source."""

    predictions: tuple[Prediction, ...]
    """One for each row, in order; what could not be predicted says why."""
    anchors: int = 0
    """Rows of each sweep that calibrated its others."""
    figures: tuple[Figures, ...] = ()
    """Predictions of papers' figures beside the shipped tables; empty for tables of the user."""
    interrupted: bool = False
    """Ctrl-C left rows without a prediction."""

    @cached_property
    def sources(self) -> tuple[SourceScore, ...]:
        """The figures of every source, in order of first appearance."""
        return score(self.predictions)

    @cached_property
    def choices(self) -> tuple[ChoiceScore, ...]:
        """Costs of choosing by the predictions within each source's sweeps."""
        return choice_scores(self.predictions)

    def sources_to_frame(self) -> pd.DataFrame:
        """A row for each source: errors of step time and memory, verdicts, order and regret; shares."""
        return frame_of([source_row(source) for source in self.sources])

    def plot(self, kind: str = "accuracy") -> Drawing:
        """Draw `accuracy` (predicted against measured) or `errors` (by part, axis, size and source).

        Raises:
            UnknownNameError: there is no such kind.
            ValueError: no run was both timed and predicted.
        """
        from meshwright.plots.measured import errors_by_axis, predicted_against_measured

        if kind not in _KINDS:
            raise UnknownNameError("plot", kind, _KINDS)
        frame = residual_frame(self.predictions)
        if frame.empty:
            raise ValueError("no run was both timed and predicted")
        draw = predicted_against_measured if kind == "accuracy" else errors_by_axis
        return Drawing(frame=frame, figure=draw(frame, plot_subject(self.anchors)))

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each run, flat."""
        return [prediction_row(one) for one in self.predictions]

    def document(self) -> dict[str, Any]:
        brier = brier_scores(self.predictions)
        return {
            "anchors": self.anchors,
            "rows": [prediction_record(one) for one in self.predictions],
            "sources": [source_record(one) for one in self.sources],
            "choices": [choice_record(one) for one in self.choices],
            "figures": [one.model_dump() for one in self.figures],
            "chances": [asdict(one) for one in chance_ranges(self.predictions)],
            "brier": brier and {"predicted": brier[0], "constant": brier[1]},
        }

    def view(self) -> Iterator[str | Table]:
        """The tables, what their columns mean, and what was skipped."""
        tables = {
            _STEP_TIME: step_table(self.sources),
            _CHOICES: choice_table(self.choices),
            _MEMORY: memory_table(self.sources),
            chances_heading(self.predictions): chance_table(self.predictions),
        }
        for heading, body in tables.items():
            if body is not None:
                yield from (wrapped(heading, indent=""), "", body, "")
        yield summary(self.predictions, anchors=self.anchors)
        for reason, rows in reasons(self.predictions)[:_MAX_REASONS]:
            yield wrapped(f"  {rows} skipped: {reason}", indent="    ")

    def save_page(self, folder: Path) -> None:
        """Write the page `accuracy.md`, with its plots, into a folder."""
        from meshwright.verbs.validate.page import AXES_PLOT, PREDICTED_PLOT, accuracy_page

        (folder / PREDICTED_PLOT).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / PAGE, accuracy_page(self))
        if not residual_frame(self.predictions).empty:
            self.plot("accuracy").save(folder / PREDICTED_PLOT)
            self.plot("errors").save(folder / AXES_PLOT)

    def __repr__(self) -> str:
        return f"{step_table(self.sources)}\n\n{summary(self.predictions, anchors=self.anchors)}"
