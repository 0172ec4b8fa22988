"""Answer of `validate`: predictions of runs that others timed, with errors as records, tables, pictures and a page.

`accuracy.md.j2` has the page's words; here are the cells of its tables.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cost_models.documents import printable
from cost_models.errors import UnknownNameError
from cost_models.files import catalog
from cost_models.files.whole import write_whole
from cost_models.measured.calibration.profile_fits import anchor
from cost_models.measured.runs.cases import read_rows, shipped_rows, source_notes
from cost_models.measured.runs.rows import Row
from cost_models.measured.validation.predictions import Figures, Prediction, predict, published_figures
from cost_models.measured.validation.recommenders import RecommenderPrediction, RecommenderScore, read_runs
from cost_models.measured.validation.recommenders import predict as predict_recommender
from cost_models.measured.validation.recommenders import scores as recommender_scores
from cost_models.measured.validation.scores import (
    ChoiceScore,
    ErrorScore,
    SourceScore,
    SweepScore,
    brier_scores,
    chance_ranges,
    choice_scores,
    measured_bytes,
    relative_error,
    score,
    step_error,
)
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_seconds, grouped
from meshwright.inputs.problems import Problems
from meshwright.pages.html import templates
from meshwright.plots.drawing import Drawing
from meshwright.records import fields_of, frame_of
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import part_label, percent, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.validate import ValidateFlags

if TYPE_CHECKING:
    import pandas as pd


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """JSON object of a run's prediction: seconds and bytes, predicted and measured; null if unknown."""
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
    """Flat CSV row of a run's prediction: a column for each part of the step, assumptions in one cell."""
    record = prediction_record(prediction)
    parts = {f"{part}_seconds": seconds for part, seconds in record.pop("parts").items()}
    return record | {"assumptions": "; ".join(record["assumptions"])} | parts


def source_record(source: SourceScore) -> dict[str, Any]:
    """JSON object of a source's scores: errors of time and memory, out-of-memory verdicts, rank correlation, and
    regret (slowdown of chosen layouts against the fastest); null if its rows do not say."""
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
    """Flat CSV row of a source's scores, without its sweeps: `step_seconds_median`, `out_of_memory_recall`,
    `regret_worst` ..."""
    record = source_record(source)
    del record["sweeps"]
    for name in ("step_seconds", "anchored_step_seconds", "peak_bytes"):
        record[name] = record[name] or {figure.name: None for figure in fields(ErrorScore)}
    row: dict[str, Any] = {}
    for name, value in record.items():
        nested = isinstance(value, dict)
        row |= {f"{name}_{figure}": share for figure, share in value.items()} if nested else {name: value}
    return row


def sweep_record(sweep: SweepScore) -> dict[str, Any]:
    """JSON object of a sweep (runs of one job with several layouts): regret (slowdown of the chosen layout against
    the fastest) and rank correlation."""
    return {"sweep": list(sweep.key), "rows": sweep.rows, "regret": sweep.regret, "kendall_tau": sweep.tau}


def choice_record(choice: ChoiceScore) -> dict[str, Any]:
    """JSON object of one source's choices of layouts: regret (slowdown against the fastest) by sweep, and the share
    of pairs of layouts whose measured ratio lies in the 90 % interval."""
    regrets = {"regret_fastest": list(choice.point), "regret_recommended": list(choice.recommended)}
    return {"source_id": choice.source, **regrets, **fields_of(choice, "pairs", "covered")}


def residual_frame(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """Frame with a row per timed and predicted run: seconds, and columns to group errors by.

    Columns: `row_id`, `source`, `measured_seconds`, `predicted_seconds`, `bound_by` (the largest part beside compute),
    `tp`, `pp`, `mbs`, `gpus`, `layout`.
    """
    columns = ["row_id", "source", "measured_seconds", "predicted_seconds", "bound_by"]
    rows = []
    for run in predictions:
        if run.case is not None and step_error(run) is not None:
            row, layout = run.row, run.case.layout
            cells = row.row_id, row.source_id, row.step_seconds, run.step_seconds, _bound_by(run.parts)
            rows.append((*cells, layout.tp, layout.pp, layout.mbs, layout.num_gpus, layout.brief))
    return frame_of(rows, columns=[*columns, "tp", "pp", "mbs", "gpus", "layout"])


def _bound_by(parts: Mapping[str, float]) -> str:
    """Longest part of a step other than compute; "compute" if there is no other part."""
    waits = {part: seconds for part, seconds in parts.items() if part != "compute"}
    return max(waits, key=waits.__getitem__) if waits else "compute"


_MAX_REASONS = 8
_STEP_TIME = (
    "Step time. Errors are predicted / measured - 1; bias: their mean; tau: rank correlation within sweeps; regret,"
    " worst: by how much the layout that was predicted fastest is slower, as measured, than the fastest of its sweep,"
    " on average and at worst."
)
_CHOICES = (
    "Choices within sweeps. Regret of the layout predicted fastest and of the one recommended, on average and at worst;"
    " in 90 %: of all pairs of layouts, the share whose measured ratio of times lay in the model's 90 % interval."
)
_MEMORY = (
    "Memory. Caught: out-of-memory runs that were predicted to be; alarms: runs that fitted but were predicted not to;"
    " precision: share of predictions of running out that were right."
)


def step_table(sources: Sequence[SourceScore]) -> Table:
    """Table with a row of step-time errors for each source with timed runs."""
    scores = [(source, source.step) for source in sources if source.step]
    columns = {
        "source": [printable(source.source, 40) for source, _ in scores],
        "timed": [str(step.count) for _, step in scores],
        "median": [percent(step.median) for _, step in scores],
        "p90": [percent(step.p90) for _, step in scores],
        "bias": [percent(step.bias, "+.1%") for _, step in scores],
        "tau": [_optional(source.mean_tau, ".2f") for source, _ in scores],
        "regret": [_optional(source.mean_regret) for source, _ in scores],
        "worst": [_optional(source.worst_regret) for source, _ in scores],
    }
    return table_of(columns, words=("source",))


def memory_table(sources: Sequence[SourceScore]) -> Table:
    """Table with a row of memory errors for each source with measured peaks, out-of-memory runs or false alarms."""
    headers = ("source", "peaks", "median", "p90", "bias", "caught", "alarms", "precision")
    rows = []
    for source in sources:
        memory, verdicts = source.memory, source.verdicts
        out, ran = verdicts.caught + verdicts.missed, verdicts.false_alarms + verdicts.agreed
        if memory or out or verdicts.false_alarms:
            errors = ["-"] * 4
            if memory:
                shares = percent(memory.median), percent(memory.p90), percent(memory.bias, "+.1%")
                errors = [str(memory.count), *shares]
            caught = f"{verdicts.caught}/{out}" if out else "-"
            alarms = f"{verdicts.false_alarms}/{ran}" if ran else "-"
            name, precision = printable(source.source, 40), _optional(verdicts.precision)
            rows.append((name, *errors, caught, alarms, precision))
    return table(headers, rows, words=("source",))


def choice_table(choices: Sequence[ChoiceScore]) -> Table:
    """Table with a row of regrets for each source: how much slower the chosen layouts ran than the fastest."""
    headers = ("source", "sweeps", "fastest", "worst", "recommended", "its worst", "pairs", "in 90 %")
    rows = []
    for choice in choices:
        regrets = []
        for shares in (choice.point, choice.recommended):
            mean = statistics.mean(shares) if shares else None
            regrets += [_optional(mean), _optional(max(shares, default=None))]
        sweeps, pairs = (str(number or "-") for number in (len(choice.point), choice.pairs))
        rows.append((printable(choice.source, 40), sweeps, *regrets, pairs, _optional(choice.covered)))
    return table(headers, rows, words=("source",))


def chance_table(predictions: Sequence[Prediction]) -> Table:
    """Table with a row for each range of predicted probabilities of fitting; empty if no run was out of memory."""
    ranges = chance_ranges(predictions) if any(one.row.out_of_memory for one in predictions) else ()
    columns = {
        "probability": [f"{100 * one.least:.0f} to {100 * one.most:.0f} %" for one in ranges],
        "runs": [str(one.runs) for one in ranges],
        "predicted": [percent(one.fits_probability) for one in ranges],
        "fitted": [percent(one.ran_share) for one in ranges],
    }
    return table_of(columns)


def chances_heading(predictions: Sequence[Prediction]) -> str:
    """Heading of the table of probabilities of fitting, with the Brier score."""
    words = "Runs grouped by predicted probability of fitting, with its mean and the share that fitted."
    if (scores := brier_scores(predictions)) is None:
        return words
    return f"{words} Brier score {scores[0]:.3f}; with the same probability for every run {scores[1]:.3f}."


def summary(predictions: Sequence[Prediction], *, anchors: int) -> str:
    """Sentence on how many rows were predicted, skipped or used as anchors."""
    skipped = sum(bool(one.skipped) and not one.anchor for one in predictions)
    anchored = sum(one.anchor for one in predictions)
    words = [f"{counted(len(predictions) - skipped - anchored, 'row')} predicted", f"{skipped} skipped"]
    if anchors:
        words.append(f"{anchored} used to correct the others ({anchors} of each framework and GPU)")
    return wrapped(", ".join(words))


def reasons(predictions: Sequence[Prediction]) -> list[tuple[str, int]]:
    """Reasons why rows were skipped, with the number of rows; most frequent first."""
    return Counter(one.skipped for one in predictions if one.skipped and not one.anchor).most_common()


def _optional(share: float | None, form: str = ".1%") -> str:
    """Share as percent text (with another `form`, the number in that format); a dash for None."""
    return "-" if share is None else percent(share, form)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateQuestion:
    """Question of `validate` with its tables and profile read: only the predictions of the rows are left to do."""

    options: ValidateFlags
    rows: tuple[Row, ...]
    profile: HardwareProfile | None

    def answer(
        self, *, on_status: Callable[[str], None] = lambda _: None, keep_on_interrupt: bool = False
    ) -> Validated:
        """Predict every row; with `keep_on_interrupt`, Ctrl-C leaves the rows predicted so far. `on_status` is called
        with a text on the work that is done."""
        stack, anchors, predictions = self.options.stack, self.options.anchors, list[Prediction]()
        try:
            for prediction in predict(self.rows, stack=stack, profile=self.profile):
                predictions.append(prediction)
                count = f"{grouped(len(predictions))}/{grouped(len(self.rows))}"
                on_status(f"predicting  {count} rows  {prediction.row.source_id}")
        except KeyboardInterrupt:
            if not keep_on_interrupt or not predictions or anchors:
                raise
            return Validated(predictions=tuple(predictions), anchors=anchors, interrupted=True)
        anchored = anchor(
            predictions, anchors, on_sweep=lambda count, of: on_status(f"calibrating  {count}/{of} sweeps")
        )
        figures = () if self.options.runs or stack or self.profile else published_figures()
        return Validated(predictions=anchored, anchors=anchors, figures=figures)


def ask(options: ValidateFlags) -> ValidateQuestion:
    """Read tables of timed runs (the shipped tables if none are given), and the profile that predicts them.

    Raises:
        InputError: a table, a stack or a profile cannot be read; everything that cannot, at once.
    """
    problems, profile = Problems(), options.profile
    tables = [problems.read(read_rows, Path(path)) for path in options.runs] or [shipped_rows()]
    problems.read(lambda: catalog.load_stack(options.stack) if options.stack else None)
    constants = problems.read(lambda: catalog.load_profile(profile) if isinstance(profile, str) else profile)
    problems.require()
    return ValidateQuestion(options=options, rows=tuple(chain(*tables)), profile=constants)


def validate(
    *runs: str | Path,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    anchors: int = 0,
) -> Validated:
    """Predict every timed run in the tables (default: the shipped tables), and compare.

    `anchors` timed rows of each sweep calibrate its others, and are no predictions then.

    Raises:
        InputError: a table, a stack or a profile cannot be read.
    """
    if anchors < 0:
        raise ValueError(f"anchors is {anchors}, and must not be negative")
    options = ValidateFlags(runs=tuple(map(Path, runs)), stack=stack, profile=profile, anchors=anchors)
    return ask(options).answer()


PAGE = "accuracy.md"
_KINDS = ("accuracy", "errors")


class Validated(Answer):
    """Answer of `validate`: runs with their predictions, and scores by source."""

    predictions: tuple[Prediction, ...]
    """Prediction of each row, in order, or the reason why there is none."""
    anchors: int = 0
    """Rows of each sweep that calibrated its other rows."""
    figures: tuple[Figures, ...] = ()
    """Published figures of papers beside predictions; empty unless the shipped tables are predicted with default
    profiles."""
    interrupted: bool = False
    """Whether Ctrl-C left rows without a prediction."""

    @cached_property
    def sources(self) -> tuple[SourceScore, ...]:
        """Scores of each source, in order of first appearance."""
        return score(self.predictions)

    @cached_property
    def choices(self) -> tuple[ChoiceScore, ...]:
        """Regret (slowdown against the fastest layout) of choosing layouts by prediction, within each source's
        sweeps."""
        return choice_scores(self.predictions)

    def sources_to_frame(self) -> pd.DataFrame:
        """Frame with a row for each source: errors of step time and memory, verdicts, order and regret, as shares."""
        return frame_of([source_row(source) for source in self.sources])

    def plot(self, kind: str = "accuracy") -> Drawing:
        """Draw `accuracy` (predicted against measured step times) or `errors` (box plots by part, axis, size and
        source).

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
        anchored = f"; {counted(self.anchors, 'anchor')} a sweep" * bool(self.anchors)
        return Drawing.of(draw, frame, f"runs that others timed{anchored}")

    def csv_rows(self) -> list[dict[str, Any]]:
        """Flat row for each run."""
        return [prediction_row(one) for one in self.predictions]

    def document(self) -> dict[str, Any]:
        """JSON document: predictions, scores of sources, choices, figures and probabilities of fitting."""
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
        """Text: tables of errors with their meaning, and reasons for skipped rows."""
        tables = {
            _STEP_TIME: step_table(self.sources),
            _CHOICES: choice_table(self.choices),
            _MEMORY: memory_table(self.sources),
            chances_heading(self.predictions): chance_table(self.predictions),
        }
        for heading, body in tables.items():
            if body.rows:
                yield from (wrapped(heading, indent=""), "", body, "")
        yield summary(self.predictions, anchors=self.anchors)
        for reason, rows in reasons(self.predictions)[:_MAX_REASONS]:
            yield wrapped(f"  {rows} skipped: {reason}", indent="    ")

    def save_page(self, folder: Path) -> None:
        """Write the page `accuracy.md` with its plots into a folder."""
        (folder / PREDICTED_PLOT).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / PAGE, accuracy_page(self))
        if not residual_frame(self.predictions).empty:
            self.plot("accuracy").save(folder / PREDICTED_PLOT)
            self.plot("errors").save(folder / AXES_PLOT)

    def __repr__(self) -> str:
        """Table of step-time errors by source, as text, and the number of predicted rows."""
        return f"{step_table(self.sources)}\n\n{summary(self.predictions, anchors=self.anchors)}"


PREDICTED_PLOT = "images/accuracy-predicted.png"
AXES_PLOT = "images/accuracy-by-axis.png"
T = TypeVar("T")
_LOCAL = "in the table that was given"
_MAX_EACH = 3
_MAX_ROWS = 20
"""Largest number of rows in tables of the largest errors."""
_ENOUGH = 5
"""Fewest rows of a group whose median is printed."""
_HEAVY = 0.1


def accuracy_page(validated: Validated) -> str:
    """Text of the page `accuracy.md`, in Markdown, with links to its plots."""
    predictions, sources, notes = validated.predictions, validated.sources, source_notes()
    measured = {name: note.measured for name, note in notes.items()}
    compared = [
        (one.source, str(one.rows), str(one.step.count if one.step else 0), measured.get(one.source, _LOCAL))
        for one in sources
    ]
    anchored = [
        (source.source, str(error.count), percent(error.median), percent(error.p90))
        for source in sources
        if (error := source.anchored) is not None
    ]
    unknown = [(one.source, notes[one.source].unknown) for one in sources if one.source in notes]
    skipped = [(reason, str(rows)) for reason, rows in reasons(predictions)[:_MAX_ROWS]]
    environment = templates("meshwright.verbs.validate", escaped=False)
    environment.filters |= {"cell": _cell, "dashes": lambda _: " --- "}
    page = environment.get_template("accuracy.md.j2").render(
        anchors=validated.anchors,
        summary=" ".join(summary(predictions, anchors=validated.anchors).split()),
        compared=table(("source", "rows", "timed", "measured by"), compared),
        predicted_plot=PREDICTED_PLOT,
        axes_plot=AXES_PLOT,
        timed=step_table(sources),
        choices=choice_table(validated.choices),
        memory=memory_table(sources),
        chances=chance_table(predictions),
        chances_heading=chances_heading(predictions),
        figures=[_figures(group) for group in validated.figures],
        anchored=table(("source", "rows", "median", "p90"), anchored),
        of_each=_MAX_EACH,
        sweeps=table(("source", "sweep", "rows", "regret", "tau"), [*_sweeps(sources)]),
        heavy=f"{100 * _HEAVY:.0f}",
        by_part=table(_PART_HEADERS, [*_by_part(predictions)]),
        worst=table(("run", "model", "layout", "measured", "predicted", "error"), [*_worst(predictions)]),
        unknown=table(("source", "unknown"), unknown),
        assumed=table(("assumption", "rows", "median error of those timed"), [*_assumed(predictions)]),
        skipped=table(("reason", "rows"), skipped),
    )
    return page.rstrip() + "\n"


_PART_HEADERS = ("part", "runs", "median share", "median error", "median size")
_FIGURE_FORMATS = {
    "mfu": ("points of MFU", "{:.1f} %", "{:+.1f} points"),
    "days": ("%", "{:.2f} days", "{:+.1f} %"),
}
"""Quantity that papers publish → unit of its tolerance, format of its values, format of their errors."""


def _figures(group: Figures) -> dict[str, Any]:
    """Table of a paper's published figures beside predictions, and how many are within tolerance."""
    unit, value, off = _FIGURE_FORMATS[group.quantity]
    headers, near = ["", "published", "predicted", "off"], f"{group.within:g} {unit}"
    rows = [
        [one.name, value.format(one.published), value.format(one.predicted), off.format(one.off)]
        for one in group.points
    ]
    profiles = ", ".join(sorted({point.profile for point in group.points}))
    met = sum(abs(point.off) <= group.within for point in group.points)
    notes = [f"Within {near}: {met} of {len(rows)}; profiles: {profiles}."]
    if group.ladder:
        headers += ["adds, published", "adds, predicted"]
        pairs = pairwise(group.points)
        adds = [(two.published - one.published, two.predicted - one.predicted) for one, two in pairs]
        for row, added in zip(rows, [("", ""), *((f"{a:+.1f}", f"{b:+.1f}") for a, b in adds)], strict=True):
            row += added
        right = sum(abs(predicted - published) <= group.within for published, predicted in adds)
        notes.append(f"What a rung adds, by itself: {right} of {len(adds)} within {near}.")
    return {"title": group.title, "source": group.source, "points": table(headers, rows), "met": notes}


Cells = Iterator[tuple[str, ...]]
"""Cells of the rows of a table on the page."""


def _sweeps(sources: Sequence[SourceScore]) -> Cells:
    """Cells of the sweeps with the largest regret."""
    regrets = [(source.source, sweep) for source in sources for sweep in source.sweeps if sweep.regret > 0]
    regrets.sort(key=lambda pair: -pair[1].regret)
    for name, sweep in _examples(regrets, lambda pair: pair[0]):
        model, sequence, gpus, batch, gpu, precision = sweep.key
        job = f"{model}, sequence {sequence}, {gpus} x {gpu}, batch {batch}, {precision}"
        yield name, job, str(sweep.rows), percent(sweep.regret), _optional(sweep.tau, ".2f")


def _by_part(predictions: Sequence[Prediction]) -> Cells:
    """Cells for each part of a step: median errors of the runs in which the part takes 10 % of the step or more."""
    shares: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for prediction in predictions:
        if (error := step_error(prediction)) is not None:
            for part, seconds in prediction.parts.items():
                shares[part].append((seconds / sum(prediction.parts.values()), error))
    for part, pairs in shares.items():
        heavy = [(share, error, abs(error)) for share, error in pairs if share >= _HEAVY]
        if len(heavy) >= _ENOUGH:
            share, error, size = (statistics.median(values) for values in zip(*heavy, strict=True))
            yield part_label(part), str(len(heavy)), percent(share), percent(error, "+.1%"), percent(size)


def _worst(predictions: Sequence[Prediction]) -> Cells:
    """Cells of the runs with the largest step-time errors."""
    timed = [(error, run) for run in predictions if (error := step_error(run)) is not None]
    timed.sort(key=lambda pair: -abs(pair[0]))
    for error, run in _examples(timed, lambda pair: pair[1].row.source_id):
        assert run.case is not None
        times = [format_seconds(seconds or 0.0) for seconds in (run.row.step_seconds, run.step_seconds)]
        yield run.row.row_id, run.row.model, f"`{run.case.layout.brief}`", *times, percent(error, "+.1%")


def _assumed(predictions: Sequence[Prediction]) -> Cells:
    """Cells for each assumption, most frequent first: number of rows that needed it, and the median step-time error
    of these rows."""
    rows: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        for assumption in prediction.assumptions:
            rows[assumption].append(prediction)
    for assumption, group in sorted(rows.items(), key=lambda item: -len(item[1]))[:_MAX_ROWS]:
        errors = [abs(error) for one in group if (error := step_error(one)) is not None]
        yield assumption, str(len(group)), _optional(statistics.median(errors) if errors else None)


def _examples(items: Sequence[T], source_of: Callable[[T], str]) -> list[T]:
    """First three items of each source, at most `_MAX_ROWS` in all."""
    counts: Counter[str] = Counter()
    examples = []
    for item in items:
        counts[source_of(item)] += 1
        if counts[source_of(item)] <= _MAX_EACH:
            examples.append(item)
    return examples[:_MAX_ROWS]


def _cell(text: str) -> str:
    """Text as one line that Markdown and tables read as plain text."""
    return printable(text).replace("|", "/").replace("[", "(").replace("]", ")").replace("<", "(")


def validate_recommenders(*runs: str | Path) -> ValidatedRecommenders:
    """Predict every recommender's run in the tables (default: the shipped table), and compare.

    Raises:
        InputError: a table cannot be read.
    """
    tables = [read_runs(Path(path)) for path in runs] or [read_runs()]
    return ValidatedRecommenders(
        predictions=tuple(predict_recommender(run) for rows in tables for run in rows)
    )


_RECOMMENDER_HEADERS = ("framework", "GPU", "timed", "median", "worst", "memory", "out of memory")


class ValidatedRecommenders(Answer):
    """Answer of `validate --recommenders`: runs of recommenders with their predictions."""

    predictions: tuple[RecommenderPrediction, ...]

    @cached_property
    def scores(self) -> tuple[RecommenderScore, ...]:
        """Scores by framework and GPU, such as median errors."""
        return recommender_scores(self.predictions)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Flat row for each run."""
        return [_recommender_row(one) for one in self.predictions]

    def document(self) -> dict[str, Any]:
        """JSON document: rows, and scores by framework."""
        scores = [asdict(one) for one in self.scores]
        return {"rows": self.rows, "frameworks": scores}

    def view(self) -> Iterator[str | Table]:
        """Text: table of scores by framework and GPU, and shares of exchanges in MLPerf's steps."""
        yield wrapped(
            "Runs of recommenders (errors are predicted / measured - 1, of step times and of the first GPU's memory)"
        )
        yield table(
            _RECOMMENDER_HEADERS, [_recommender_cells(one) for one in self.scores], words=("framework", "GPU")
        )
        exchanges = [
            (run.question.cluster.num_gpus, one.exchange_share)
            for one in self.predictions
            if (run := one.run).training_seconds is not None
        ]
        if exchanges:
            listing = ", ".join(
                f"{share:.0%} on {gpus} GPUs" for gpus, share in sorted(dict(exchanges).items())
            )
            yield wrapped(
                f"Of MLPerf's steps, exchanges of vectors and gradients are predicted to take {listing}."
            )


def _recommender_row(prediction: RecommenderPrediction) -> dict[str, Any]:
    """Flat row of a recommender's run: seconds and bytes, predicted and measured."""
    run, question = prediction.run, prediction.run.question
    return {
        "row": run.row,
        "framework": run.framework,
        "gpu": question.cluster.gpu.name,
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "sharding": str(run.sharding),
        "predicted_seconds": prediction.seconds,
        "measured_seconds": run.seconds,
        "error": prediction.error,
        "error_without_evaluations": relative_error(prediction.estimate.step_seconds, run.training_seconds),
        **{f"{stage} seconds": seconds for stage, seconds in prediction.estimate.stages.items()},
        "predicted_bytes": float(prediction.estimate.device_bytes[0]),
        "measured_bytes": run.memory_bytes,
        "memory_error": prediction.memory_error,
        "predicted_to_fit": prediction.estimate.fits,
        "ran_out_of_memory": run.out_of_memory,
    }


def _recommender_cells(score: RecommenderScore) -> tuple[str, ...]:
    """Cells of a framework's scores as text."""
    memory = f"{score.median_memory_error:.1%}" if score.median_memory_error is not None else "-"
    full, caught = score.out_of_memory
    off = f"{score.median_error:.1%}", f"{score.worst_error:.0%}", memory
    return (score.framework, score.gpu, str(score.runs), *off, f"{caught} of {full} caught" if full else "-")
