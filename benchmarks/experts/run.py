"""Published expert layouts beside the recommended ones: step, interval, memory, and why they differ.

    python benchmarks/experts/run.py [--time-limit 60] [SOURCE ...]

Sources: `megatron_sc21` (Narayanan et al. 2021, table 1), `llama3` (table 4 of the Llama 3 paper, `llama3.csv` beside
this file), `megascale` (Jiang et al. 2024, 175B on 256 to 12,288 GPUs), `dgxc` (NVIDIA's recipes on H100: of each
model and trainer the latest release, on its fewest and its most GPUs, reduced models left out) and `mixtures` (Megatron
Core's and Megatron Bridge's recipes of mixtures of experts that `MIXTURES` names) and `deepseek` (DeepSeek-V3 on 2,048
H800 under its own trainer, `deepseek.csv`).

Theirs is priced as published, its blocks where its trainer puts them. Ours is what `plan` recommends for the same
model, GPUs, global batch, sequence, precision, stack, profile and memory limit, within what their trainer could do at
the time (`HAD`). Beside both stand the fastest on paper within the same, and the fastest of all that the search covers.
Writes `results.csv` and the tables of `experts.md`: the ten of `TEN` with their reasons, then all.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError, InputError, RunError
from cost_models.estimate import Estimate
from cost_models.expected import expected_step
from cost_models.files.whole import write_whole
from cost_models.measured.runs.cases import read_case, read_rows, shipped_rows
from cost_models.measured.runs.rows import Row
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.units import GIB, grouped
from meshwright.render.explanation import saves_and_pays, unplaced
from meshwright.terminal.output import as_csv
from planner.answers.recommend import recommend
from planner.explain.compare import difference
from planner.search.search import Budget, search
from planner.space.axes import divisors
from planner.space.restrictions import Restrictions, parse_restrictions

HERE = Path(__file__).parent
SOURCES = {
    "megatron_sc21": "SC21 table 1 (Narayanan et al. 2021), A100",
    "llama3": "Llama 3 405B (arXiv:2407.21783, table 4), H100",
    "megascale": "MegaScale and its baseline (Jiang et al. 2024), 175B on A100",
    "dgxc": "NVIDIA's recipes for H100 (dgxc-benchmarking)",
    "mixtures": "NVIDIA's recipes of mixtures of experts (Megatron Core, Megatron Bridge), H100 and GB300",
    "deepseek": "DeepSeek-V3 under its own trainer (arXiv:2412.19437), H800",
}
MIXTURES = ("moe_modelzoo-0002", "moe_modelzoo-0006", "megatron_bridge-0087", "megatron_bridge-0233")
TEN = (
    *("megatron_sc21-0007", "megascale-0016", "llama3-16k", "llama3-long", "dgxc-0266", "dgxc-0212"),
    *("dgxc-0255", "dgxc-0285", "moe_modelzoo-0006", "megatron_bridge-0087"),
)
"""Rows of `experts.md`'s first table."""
TABLE_1 = 10
"""Rows of SC21's table 1; the others are of its figures."""
SAME = 5e-3
"""Relative difference of step time that is not worth a sentence."""

HAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "megatron_sc21": (("zero=0",), ("sp", "recompute=selective"))
}
"""What to fix and forbid: Megatron of 2021 knew neither sharded optimizers nor sequence parallelism nor selective
recomputation (Korthikanti et al. 2022). It also split blocks evenly (`EVEN`)."""
EVEN = ("megatron_sc21",)


@dataclass(frozen=True)
class Pair:
    """Theirs and ours."""

    row: Row
    question: Question
    theirs: Estimate
    recommended: Estimate
    fastest: Estimate
    """On paper, within what their trainer could do."""
    free: Estimate
    """The fastest of all that the search covers."""
    gap: float

    def ratio(self, ours: Estimate) -> float:
        """Step of theirs over that of ours, on paper."""
        return self.theirs.step_seconds / ours.step_seconds

    @property
    def why(self) -> str:
        """What differs between theirs and the recommended layout, and what that saves and pays."""
        ours = self.recommended
        words = _changed(self.theirs.layout, ours.layout)
        if not words:
            return "the same layout"
        parts = saves_and_pays(difference(ours.time, self.theirs.time), ours.step_seconds)
        told = f"{words}: as fast" if abs(self.ratio(ours) - 1) <= SAME else f"{words}: {parts}"
        return told if self.gap == 0 else f"{told}; proved within {self.gap:.1%}"


def _changed(theirs: Layout, ours: Layout) -> str:
    """ "pp8 → pp4, full → none": the words in which two layouts differ."""
    before, after = (dict(_words(layout)) for layout in (theirs, ours))
    names = [name for name in {**before, **after} if before.get(name, "-") != after.get(name, "-")]
    return ", ".join(f"{before.get(name, f'no {name}')} → {after.get(name, f'no {name}')}" for name in names)


def _words(layout: Layout) -> Iterator[tuple[str, str]]:
    """(axis, word) of a layout, its placement aside."""
    for word in unplaced(layout).split():
        name = word.split("=")[0].rstrip("0123456789")
        yield name, "recompute by stage" if name == "recompute" and len(word) > 30 else word


def chosen_rows(sources: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """(source, row) of the published configurations that are compared."""
    shipped = shipped_rows()
    rows = {source: [row for row in shipped if row.source_id == source] for source in SOURCES}
    rows["megatron_sc21"] = rows["megatron_sc21"][:TABLE_1]
    for source in ("llama3", "deepseek"):
        rows[source] = list(read_rows(HERE / f"{source}.csv"))
    rows["dgxc"] = list(_latest_recipes(rows["dgxc"]))
    rows["mixtures"] = [row for row in shipped if row.row_id in MIXTURES]
    yield from ((source, row) for source in sources for row in rows[source])


def _latest_recipes(rows: Sequence[Row]) -> Iterator[Row]:
    """Of each model and trainer the last rows of each number of GPUs; of those the fewest and the most GPUs."""
    families: dict[tuple[str, str], dict[int, Row]] = {}
    most_layers: dict[str, int] = {}
    for row in rows:
        most_layers[row.model] = max(most_layers.get(row.model, 0), row.values["model.num_layers"])
    for row in rows:
        if row.layout is not None and row.values["model.num_layers"] == most_layers[row.model]:
            trainer = "jax" if "jax" in row.trainer.lower() else "nemo"
            families.setdefault((row.model, trainer), {})[row.layout.num_gpus] = row
    for by_gpus in families.values():
        yield from [by_gpus[gpus] for gpus in sorted({min(by_gpus), max(by_gpus)})]


def compared(row: Row, source: str, time_limit: float) -> Pair:
    """Theirs as published, ours as recommended."""
    case = read_case(row)
    question = case.question
    fix, forbid = HAD.get(source, ((), ()))
    trainer = None if question.stack.name == "jax" else "megatron"
    limits = parse_restrictions(fix, forbid, trainer=trainer)
    if source in EVEN:
        stages = frozenset(divisors(question.model.num_layers))
        limits = replace(limits, only={**limits.only, "pp": stages})
    free = search(question, top=1, restrictions=Restrictions(), time_limit=time_limit)
    found = free
    if limits != Restrictions():
        found = search(question, top=1, restrictions=limits, time_limit=time_limit)
    told = recommend(question, found, limits, Budget(time_limit=time_limit))
    return Pair(
        row=row,
        question=question,
        theirs=estimate(question, case.layout),
        recommended=found.best if told is None else told.estimate,
        fastest=found.best,
        free=free.best,
        gap=found.certificate.gap,
    )


def record(source: str, pair: Pair) -> dict[str, object]:
    """One row of `results.csv`."""
    question, measured = pair.question, pair.row.step_seconds
    return {
        "source": source,
        "row_id": pair.row.row_id,
        "model": pair.row.model,
        "gpus": question.cluster.num_gpus,
        "gpu": question.cluster.gpu.name,
        "global_batch": question.training.global_batch,
        "sequence": question.training.sequence_length,
        "precision": question.training.precision,
        "stack": question.stack.name,
        "profile": question.hardware.name,
        "measured_seconds": "" if measured is None else f"{measured:.4g}",
        **_side("their", question, pair.theirs),
        **_side("recommended", question, pair.recommended),
        "ratio": f"{pair.ratio(pair.recommended):.3f}",
        "fastest_layout": pair.fastest.layout.brief,
        "fastest_ratio": f"{pair.ratio(pair.fastest):.3f}",
        "free_layout": pair.free.layout.brief,
        "free_ratio": f"{pair.ratio(pair.free):.3f}",
        "gap": f"{pair.gap:.4f}",
        "why": pair.why,
    }


def _side(whose: str, question: Question, priced: Estimate) -> dict[str, object]:
    expected = expected_step(question, priced)
    assert expected is not None
    return {
        f"{whose}_layout": priced.layout.brief,
        f"{whose}_seconds": f"{priced.step_seconds:.4f}",
        f"{whose}_expected": f"{expected.seconds:.4f}",
        f"{whose}_low": f"{expected.low:.4f}",
        f"{whose}_high": f"{expected.high:.4f}",
        f"{whose}_mfu": f"{priced.mfu:.4f}",
        f"{whose}_peak_gib": f"{priced.peak_bytes / GIB:.2f}",
        f"{whose}_fits": f"{priced.fits_probability:.3f}",
    }


def reasons() -> dict[tuple[str, str], str]:
    """(row, recommended layout) → why that layout, in a sentence, as `reasons.csv` has it."""
    with (HERE / "reasons.csv").open(encoding="utf-8", newline="") as file:
        return {(row["row_id"], row["recommended_layout"]): row["reason"] for row in csv.DictReader(file)}


def page(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """The tables of `experts.md`: the ten with their reasons, then a line a source, then a table a source."""
    yield "\n## Ten expert layouts beside the recommended ones\n"
    yield "| | layout | step on paper | expected, 90 % interval | memory | P(fits) | measured, or why ours differs |"
    yield f"|{' --- |' * 7}"
    told, by_id = reasons(), {row["row_id"]: row for row in rows}
    for name in TEN:
        row = by_id[name]
        sequences = f"{grouped(int(row['global_batch']))} x {grouped(int(row['sequence']))}"
        where = f"{grouped(int(row['gpus']))} {row['gpu']}, {sequences}, {row['precision']}"
        yield f"| **{row['model']}**, {where}: theirs | {_cells('their', row)} | measured {row['measured_seconds']} s |"
        why = told.get((name, row["recommended_layout"]), row["why"])
        yield f"| recommended | {_cells('recommended', row)} | {why} |"
    yield "\n## All rows\n"
    yield "| source | rows | theirs within 3 % of ours | median ratio | least | most |"
    yield f"|{' --- |' * 6}"
    for source, title in SOURCES.items():
        ratios = [float(row["ratio"]) for row in rows if row["source"] == source]
        near = sum(ratio < 1.03 for ratio in ratios)
        yield f"| {title} | {len(ratios)} | {near} | {median(ratios):.3f} | {min(ratios):.3f} | {max(ratios):.3f} |"
    for source, title in SOURCES.items():
        yield f"\n### {title}\n"
        yield "| model, GPUs, batch | measured | theirs | step | memory | recommended | step | memory | ratio | why |"
        yield f"|{' --- |' * 10}"
        for row in rows:
            if row["source"] == source:
                what = f"{row['model']}, {row['gpus']}, {row['global_batch']} x {row['sequence']}"
                cells = [
                    what,
                    f"{row['measured_seconds']} s",
                    *_short("their", row),
                    *_short("recommended", row),
                ]
                yield f"| {' | '.join([*cells, row['ratio'], row['why']])} |"


def _cells(whose: str, row: dict[str, str]) -> str:
    middle, low, high = (f"{float(row[f'{whose}_{end}']):.2f}" for end in ("expected", "low", "high"))
    layout, step, memory = _short(whose, row)
    if whose == "recommended" and row["ratio"] != "1.000":
        step += f" ({1 / float(row['ratio']) - 1:+.1%})".replace("%", " %")
    return (
        f"`{layout}` | {step} | {middle} s, {low} to {high} s | {memory} | {float(row[f'{whose}_fits']):.0%}"
    )


def _short(whose: str, row: dict[str, str]) -> tuple[str, str, str]:
    """Layout, step and memory."""
    words = [
        word for word in row[f"{whose}_layout"].split() if not word.startswith("layers=") or len(word) < 24
    ]
    layout = " ".join("recompute by stage" if len(word) > 40 else word for word in words)
    return layout, f"{float(row[f'{whose}_seconds']):.2f} s", f"{float(row[f'{whose}_peak_gib']):.0f} GiB"


def main() -> None:
    """Compare, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="*", help=f"of {', '.join(SOURCES)}; default: all")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of one search")
    parser.add_argument("--page", action="store_true", help="write the tables from results.csv alone")
    given = parser.parse_args()
    results = HERE / "results.csv"
    if not given.page:
        rows = []
        for source, row in chosen_rows(given.sources or list(SOURCES)):
            try:
                pair = compared(row, source, given.time_limit)
            except (InputError, InfeasibleError, RunError) as reason:
                print(f"{row.row_id}: left out, {reason}")
                continue
            rows.append(record(source, pair))
            ratios = " ".join(f"{pair.ratio(one):.3f}" for one in (pair.recommended, pair.fastest, pair.free))
            print(
                f"{row.row_id:22} {pair.question.cluster.num_gpus:>6} GPUs  {ratios}  {pair.why}", flush=True
            )
        write_whole(results, as_csv(rows))
    written = HERE / "experts.md"
    with results.open(encoding="utf-8", newline="") as file:
        tables = "\n".join(page(list(csv.DictReader(file))))
    head, mark, _ = written.read_text("utf-8").partition("<!-- tables -->\n")
    write_whole(written, f"{head}{mark}{tables}\n")


if __name__ == "__main__":
    main()
