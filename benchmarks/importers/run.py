"""Published commands, imported and priced beside their published steps.

    python -m benchmarks.importers.run

Writes `results.csv` beside this file, and the table of `docs/guides/other-trainers.md` to stdout. Clusters are those of
the rows (GPU, nodes and network as their authors say); prices are of the profile that is nearest to GPU and stack, as
for anyone. Profiles have seen most of these rows, so the table shows that commands are read as they ran, not that runs
which nobody saw are predicted.
"""

from __future__ import annotations

import csv
import io
import statistics
from pathlib import Path

from benchmarks.importers.commands import Published, commands
from cost_models.defaults import complete_question
from cost_models.files.whole import write_whole
from cost_models.measured.runs.cases import read_case, read_rows
from cost_models.measured.runs.rows import Row
from cost_models.pipeline.pricing import estimate
from planner.formats.launches import launch_of
from planner.formats.megatron import read_megatron
from planner.formats.nemo import overrides, read_nemo
from planner.formats.settings import Reading, ReadOptions, also_settings
from planner.formats.torchtitan import read_torchtitan

HERE = Path(__file__).parent
TABLES = Path("cost_models/data/published")


def reading_of(one: Published) -> Reading:
    """What a command says."""
    if isinstance(one.text, dict):
        return read_nemo(one.text, ReadOptions(gpus=one.gpus, stack=one.stack, also=overrides(one.also)))
    if one.reader == "torchtitan":
        options = ReadOptions(gpus=one.gpus, stack=one.stack, also=also_settings(one.also))
        return read_torchtitan(one.text, "job.toml", None, options)
    return read_megatron(launch_of(one.text, one.also), gpus=one.gpus, stack=one.stack)


def published(rows: list[str]) -> dict[str, Row]:
    """Rows of the published tables by their names."""
    tables = {name.rpartition("-")[0] for name in rows}
    found = {row.row_id: row for table in tables for row in read_rows(next(TABLES.glob(f"*/{table}.csv")))}
    return {name: found[name] for name in rows}


def priced() -> list[dict[str, str]]:
    """A line for each command."""
    known = list(commands())
    rows = published([one.row for one in known])
    lines = []
    for one in known:
        row, reading = rows[one.row], reading_of(one)
        case = read_case(row)
        question = complete_question(
            reading.model, case.question.cluster, reading.training, stack=reading.stack
        )
        ours, theirs = (estimate(question, reading.layout).step_seconds, float(row.step_seconds or 0))
        lines.append(
            {
                "source": one.source,
                "command": one.name,
                "row": one.row,
                "layout": reading.layout.brief,
                "profile": question.hardware.name,
                "published_seconds": f"{theirs:.4g}",
                "predicted_seconds": f"{ours:.4g}",
                "error": f"{ours / theirs - 1:+.4f}",
                "assumptions": "; ".join(reading.assumptions),
            }
        )
    return lines


def table(lines: list[dict[str, str]]) -> str:
    """By source, as Markdown."""
    out = ["| commands | read from | runs | median | largest |", "| --- | --- | --: | --: | --: |"]
    for source in dict.fromkeys(line["source"] for line in lines):
        errors = [float(line["error"]) for line in lines if line["source"] == source]
        reader = next(one.reader for one in commands() if one.source == source)
        middle = statistics.median(abs(error) for error in errors)
        out.append(f"| {source} | {reader} | {len(errors)} | {middle:.1%} | {max(errors, key=abs):+.1%} |")
    middle = statistics.median(abs(float(line["error"])) for line in lines)
    return "\n".join([*out, f"| all | | {len(lines)} | {middle:.1%} | |"])


def main() -> None:
    """Price all and write both tables."""
    lines = priced()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_whole(HERE / "results.csv", text.getvalue())
    for line in lines:
        print(f"{line['row']:20} {line['command']:34} {line['layout']:52} {line['profile']:22} {line['published_seconds']:>7} {line['predicted_seconds']:>7} {float(line['error']):+7.1%}")  # fmt: skip  # noqa: E501
    print(table(lines))


if __name__ == "__main__":
    main()
