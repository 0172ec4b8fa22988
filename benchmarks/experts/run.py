"""What experts chose, beside what the search chooses: both priced by the same model, and why they differ.

    python benchmarks/experts/run.py [--time-limit 60] [SOURCE ...]

Sources: `megatron_sc21` (Narayanan et al. 2021, table 1), `llama3` (table 4 of the Llama 3 paper, `llama3.csv` beside
this file), `megascale` (Jiang et al. 2024, 175B on 256 to 12,288 GPUs) and `dgxc` (NVIDIA's recipes on H100: of each
model and trainer the latest release, on its fewest and its most GPUs, reduced models left out).

Theirs is priced exactly as published, its blocks where its trainer puts them. Ours answers the same question: model,
GPUs, global batch, sequence, precision, software stack, hardware profile and memory limit. It is searched twice: within
what their trainer could do at the time (`HAD`), and over all that the search covers. Beside both stands what `plan`
recommends within the first. Writes `results.csv` and the tables of `experts.md`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InfeasibleError, RunError
from cost_models.estimate import Estimate
from cost_models.files.whole import write_whole
from cost_models.measured.runs.cases import Case, read_case
from cost_models.measured.runs.rows import Row, UnpredictableError, read_rows
from cost_models.measured.runs.shipped import shipped_rows
from cost_models.pipeline.estimating import estimate
from cost_models.question import Question
from cost_models.units import GIB
from meshwright.render.explanation import saves_and_pays, unplaced
from meshwright.terminal.formats import as_csv
from planner.answers.recommended import recommend
from planner.explaining.compare import difference
from planner.rules.legality import check
from planner.search.budget import Budget
from planner.search.search import search
from planner.space.layouts import parse_restrictions

HERE = Path(__file__).parent
SOURCES = {
    "megatron_sc21": "SC21 table 1 (Narayanan et al. 2021), A100, megatron-2021",
    "llama3": "Llama 3 405B (arXiv:2407.21783, table 4), H100",
    "megascale": "MegaScale and its baseline (Jiang et al. 2024), 175B on A100",
    "dgxc": "NVIDIA's recipes for H100 (dgxc-benchmarking)",
}
TABLE_1 = 10
"""Rows of SC21's table 1; the others are of its figures."""
SAME = 5e-3
"""Relative difference of step time that is not worth a sentence."""


HAD: dict[str, tuple[tuple[str, ...], tuple[str, ...], str | None]] = {
    "megatron_sc21": (("zero=0",), ("sp", "recompute=selective"), "megatron"),
    "llama3": ((), (), "megatron"),
    "megascale": ((), (), "megatron"),
    "dgxc": ((), (), "megatron"),
}
"""What to fix and forbid, and whose rules: Megatron of 2021 knew neither sharded optimizers nor sequence parallelism
nor selective recomputation (Korthikanti et al. 2022)."""


@dataclass(frozen=True)
class Found:
    """The best of one space."""

    estimate: Estimate
    gap: float
    seconds: float
    recommended: Estimate | None = None
    """What `plan` recommends instead, within the same; None where the search has no proof."""


@dataclass(frozen=True)
class Pair:
    """Theirs and ours."""

    row: Row
    question: Question
    theirs: Estimate
    had: Found | None
    """Within what their trainer could do; None where nothing fits."""
    free: Found

    @property
    def best(self) -> Found:
        """What theirs is compared with."""
        return self.had or self.free

    def ratio(self, ours: Found) -> float:
        """Step time of theirs over that of ours."""
        return self.theirs.step_seconds / ours.estimate.step_seconds

    @property
    def recommended_ratio(self) -> float | None:
        """Step time of theirs over that of the recommended layout."""
        recommended = self.best.recommended
        return None if recommended is None else self.theirs.step_seconds / recommended.step_seconds

    @property
    def measured(self) -> float | None:
        """Seconds of a step as published, where it was."""
        printed = self.row.number("step_time_best_s")
        if printed is not None:
            return printed
        share = self.row.number("published_mfu")
        return None if share is None else self.theirs.step_seconds * self.theirs.mfu / share

    @property
    def why(self) -> str:
        """One sentence, of theirs and ours within what their trainer could do."""
        ours = self.best.estimate
        words = _changed(self.theirs.layout, ours.layout)
        if abs(self.ratio(self.best) - 1) <= SAME:
            told = f"as fast ({words})" if words else "the same"
        else:
            parts = saves_and_pays(difference(ours.time, self.theirs.time), ours.step_seconds)
            told = f"{words}: {parts}" if words else parts
        notes = []
        if self.had is None:
            notes.append(
                "nothing fits within what their trainer could do, so ours is of all the search covers"
            )
        if not self.theirs.fits:
            excess = (self.theirs.peak_bytes - self.theirs.memory_limit) / GIB
            notes.append(f"theirs does not fit in the model of memory ({excess:.1f} GiB too many)")
        if self.best.gap > 0:
            notes.append(f"ours is proven within {self.best.gap:.1%}")
        return "; ".join([told, *notes])


def _changed(theirs: Layout, ours: Layout) -> str:
    """ "pp8 → pp4, full → none": the words in which two layouts differ."""
    before, after = (dict(_words(layout)) for layout in (theirs, ours))
    names = [name for name in {**before, **after} if before.get(name, "-") != after.get(name, "-")]
    return ", ".join(f"{before.get(name, f'no {name}')} → {after.get(name, f'no {name}')}" for name in names)


def _words(layout: Layout) -> Iterator[tuple[str, str]]:
    """(axis, word) of a layout, its placement aside."""
    for word in unplaced(layout).split():
        name = word.split("=")[0].rstrip("0123456789")
        if name == "recompute" and len(word) > 30:
            yield name, "recompute by stage"
        else:
            yield name, word


def chosen_rows(sources: Sequence[str]) -> Iterator[Row]:
    """The published configurations that are compared."""
    rows = [row for row in shipped_rows() if row.source in sources]
    yield from [row for row in rows if row.source == "megatron_sc21"][:TABLE_1]
    if "llama3" in sources:
        yield from read_rows(HERE / "llama3.csv")
    yield from (row for row in rows if row.source == "megascale")
    yield from _latest_recipes([row for row in rows if row.source == "dgxc"])


def _latest_recipes(rows: Sequence[Row]) -> Iterator[Row]:
    """Of each model and trainer the last rows of each number of GPUs; of those the fewest and the most GPUs."""
    families: dict[tuple[str, str], dict[int, Row]] = {}
    most_layers: dict[str, int] = {}
    for row in rows:
        most_layers[row.text("model_name")] = max(
            most_layers.get(row.text("model_name"), 0), row.count("layers") or 0
        )
    for row in rows:
        name, gpus = row.text("model_name"), row.count("num_gpus")
        if gpus is not None and row.count("layers") == most_layers[name]:
            trainer = "jax" if "jax" in row.text("framework").lower() else "nemo"
            families.setdefault((name, trainer), {})[gpus] = row
    for by_gpus in families.values():
        yield from [by_gpus[gpus] for gpus in sorted({min(by_gpus), max(by_gpus)})]


def compared(row: Row, time_limit: float) -> Pair:
    """Theirs as published, ours as found."""
    case = read_case(row)
    theirs = estimate(case.question, _published(case))
    fix, forbid, trainer = HAD[row.source]
    jax = case.question.stack.name == "jax"
    had = None if jax else _search(case.question, fix, forbid, trainer, time_limit, recommended=True)
    free = _search(case.question, (), (), None, time_limit, recommended=had is None)
    assert free is not None
    return Pair(row=row, question=case.question, theirs=theirs, had=free if jax else had, free=free)


def _search(
    question: Question,
    fix: Sequence[str],
    forbid: Sequence[str],
    trainer: str | None,
    time_limit: float,
    *,
    recommended: bool,
) -> Found | None:
    """The best within what is fixed and forbidden; None where nothing fits or was found in time."""
    limits = parse_restrictions(fix, forbid, trainer=trainer)
    try:
        found = search(question, top=1, restrictions=limits, time_limit=time_limit)
    except (InfeasibleError, RunError):
        return None
    told = recommend(question, found, limits, Budget(time_limit=time_limit)) if recommended else None
    return Found(
        found.best, found.certificate.gap, found.certificate.seconds, told.estimate if told else None
    )


def _published(case: Case) -> Layout:
    """The row's layout; where its table says which blocks each chunk holds, placed like that."""
    blocks, chunks = case.row.text("blocks"), case.row.text("chunks")
    if not blocks:
        return case.layout
    return parse_layout(f"{unplaced(case.layout)} vpp{chunks} layers={blocks}")


def record(pair: Pair) -> dict[str, object]:
    """One row of `results.csv`."""
    question, theirs, ours, free = pair.question, pair.theirs, pair.best, pair.free
    return {
        "source": pair.row.source,
        "row_id": pair.row.row_id,
        "model": pair.row.text("model_name"),
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "sequence": question.training.sequence_length,
        "stack": question.stack.name,
        "profile": question.hardware.name,
        "measured_seconds": "" if pair.measured is None else f"{pair.measured:.4g}",
        **_side("their", theirs),
        "their_fits": theirs.fits,
        "their_objections": "; ".join(problem.what for problem in check(question, theirs.layout)),
        **_side("our", ours.estimate),
        "ratio": f"{pair.ratio(ours):.3f}",
        **(_side("recommended", ours.recommended) if ours.recommended else _NO_SIDE),
        "recommended_ratio": "" if pair.recommended_ratio is None else f"{pair.recommended_ratio:.3f}",
        "gap": f"{ours.gap:.4f}",
        "search_seconds": f"{ours.seconds:.2f}",
        "why": pair.why,
        **_side("free", free.estimate),
        "free_ratio": f"{pair.ratio(free):.3f}",
        "free_gap": f"{free.gap:.4f}",
        "free_search_seconds": f"{free.seconds:.2f}",
    }


def _side(whose: str, priced: Estimate) -> dict[str, object]:
    return {
        f"{whose}_layout": priced.layout.brief,
        f"{whose}_seconds": f"{priced.step_seconds:.4f}",
        f"{whose}_mfu": f"{priced.mfu:.4f}",
        f"{whose}_peak_gib": f"{priced.peak_bytes / GIB:.2f}",
    }


_NO_SIDE = {f"recommended_{name}": "" for name in ("layout", "seconds", "mfu", "peak_gib")}
HEADERS = (
    *("model, GPUs, batch", "theirs", "measured", "priced", "MFU", "peak"),
    *(
        "ours",
        "priced",
        "MFU",
        "peak",
        "ratio",
        "why",
        "recommended",
        "peak",
        "ratio",
        "all covered",
        "ratio",
    ),
)


def page(rows: Sequence[dict[str, object]]) -> Iterator[str]:
    """The tables of `experts.md`, a section a source."""
    for source, title in SOURCES.items():
        mine = [row for row in rows if row["source"] == source]
        if mine:
            yield f"\n## {title}\n"
            yield f"| {' | '.join(HEADERS)} |"
            yield f"|{' --- |' * len(HEADERS)}"
            yield from map(_line, mine)


def _line(row: dict[str, object]) -> str:
    def short(layout: object) -> str:
        words = [word for word in str(layout).split() if not word.startswith("layers=") or len(word) < 24]
        return " ".join("recompute by stage" if len(word) > 40 else word for word in words)

    def side(whose: str) -> list[str]:
        return [
            f"{float(str(row[f'{whose}_seconds'])):.2f} s",
            f"{float(str(row[f'{whose}_mfu'])):.1%}",
            _gib(row[f"{whose}_peak_gib"]),
        ]

    measured = f"{row['measured_seconds']} s" if row["measured_seconds"] else "-"
    cells = [
        *(
            f"{row['model']}, {row['gpus']}, {row['global_batch']} x {row['sequence']}",
            short(row["their_layout"]),
        ),
        *(
            measured,
            *side("their"),
            short(row["our_layout"]),
            *side("our"),
            str(row["ratio"]),
            str(row["why"]),
        ),
        *(short(row["recommended_layout"]), _gib(row["recommended_peak_gib"]), str(row["recommended_ratio"])),
        *(short(row["free_layout"]), str(row["free_ratio"])),
    ]
    return f"| {' | '.join(cells)} |"


def _gib(size: object) -> str:
    return f"{float(str(size)):.0f} GiB" if size else "-"


def main() -> None:
    """Compare, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of one search")
    given = parser.parse_args()
    rows = []
    for row in chosen_rows(given.sources or list(SOURCES)):
        try:
            pair = compared(row, given.time_limit)
        except UnpredictableError as reason:
            print(f"{row.row_id}: left out, {reason}")
            continue
        rows.append(record(pair))
        ratios = f"{pair.recommended_ratio or 0:.3f} {pair.ratio(pair.best):.3f} {pair.ratio(pair.free):.3f}"
        print(f"{row.row_id:22} {pair.question.cluster.num_gpus:>6} GPUs  {ratios}  {pair.why}", flush=True)
    write_whole(HERE / "results.csv", as_csv(rows))
    written = HERE / "experts.md"
    head, mark, _ = written.read_text("utf-8").partition("<!-- tables -->\n")
    write_whole(written, head + mark + "\n".join(page(rows)) + "\n")


if __name__ == "__main__":
    main()
