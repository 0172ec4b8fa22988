"""Prices published fine-tunes and writes what was found: `python benchmarks/fine_tunes/run.py`.

Reads `runs.csv` beside it (what was published, how it was run, what had to be assumed), writes `results.csv` and the
table of `docs/fine-tunes.md`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import meshwright as mw

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "fine-tunes.md"
GIB = 2**30
BEGIN, END = "<!-- table: benchmarks/fine_tunes/run.py -->\n", "<!-- end of the table -->"
QUANTITIES = ("memory_gib", "tokens_per_second", "minutes")
HEADERS = ("source", "what", "on", "memory, GiB", "tokens/s", "minutes", "assumed")


def priced(run: dict[str, str]) -> dict[str, float]:
    """What the model says of a run, by quantity."""
    options: dict[str, Any] = dict(word.split("=", 1) for word in run["options"].split())
    if "rank" in options:
        options["rank"] = int(options["rank"])
    if "optimizer_in_backward" in options:
        options["optimizer_in_backward"] = True
    if run["tokens"]:
        options["tokens"] = float(run["tokens"])
    answer = mw.estimate(
        run["model"],
        run["cluster"],
        gpus=int(run["gpus"]),
        global_batch=int(run["batch"]),
        sequence=int(run["sequence"]),
        layout=run["layout"],
        training=None,
        **options,
    )
    found = answer.estimate
    ours = {"memory_gib": found.peak_bytes / GIB, "tokens_per_second": found.tokens_per_second}
    if answer.training is not None:
        ours["minutes"] = answer.training.on_paper / 60
    return ours


def cell(run: dict[str, str], ours: dict[str, float], quantity: str) -> str:
    """ "16.2, 17.3 (+7 %)": published, ours, how far that is off."""
    if not run[quantity]:
        return ""
    published = float(run[quantity])
    return f"{published:,g}, {ours[quantity]:,.4g} ({ours[quantity] / published - 1:+.0%})".replace("%", " %")


def main() -> None:
    """Price all runs and write both files."""
    with (HERE / "runs.csv").open(encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    each = [priced(run) for run in runs]
    with (HERE / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["source", "what", "model", "quantity", "published", "priced", "error"])
        for run, ours in zip(runs, each, strict=True):
            for name in QUANTITIES:
                if run[name]:
                    error = ours[name] / float(run[name]) - 1
                    said = (run["source"], run["what"], run["model"], name, run[name])
                    writer.writerow([*said, f"{ours[name]:.4g}", f"{error:+.3f}"])
    lines = [f"| {' | '.join(HEADERS)} |", f"| {' | '.join(['---'] * len(HEADERS))} |"]
    for run, ours in zip(runs, each, strict=True):
        on = f"{run['model']}, {run['gpus']} x {run['cluster']}, `{run['layout']}`"
        cells = [
            run["source"],
            run["what"],
            on,
            *(cell(run, ours, name) for name in QUANTITIES),
            run["assumed"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + rest[rest.index(END) :], encoding="utf-8")


if __name__ == "__main__":
    main()
