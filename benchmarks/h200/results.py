"""What a folder has of results, kept after every run, so that whoever is killed loses only what was running.

results.json   {"runs": {name: row}, "sweeps": {name: what the planner chose}, "left_out": {name: why}}
               A row that was measured gives way only to another that was. `again`: it waits for that one;
               `repetition_failed`: why there is none.
results.csv    the rows
results.md     predicted beside measured, for people
results.svg    the parts of a step, predicted above measured
kernels.csv    of each run's forward and backward passes the kernels that took most
running.json   what a process that has not ended yet has to tell; taken over by whoever looks next
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cases import Calibration, Case, Job, Sweep, Tables

from cost_models.files.whole import write_whole

Row = dict[str, Any]
PROFILE = "profile.yaml"
_RESULTS, _TABLE, _WORDS, _RUNNING = "results.json", "results.csv", "results.md", "running.json"
_FIGURE, _KERNELS = "results.svg", "kernels.csv"
_GIB, _MILLISECOND = 2**30, 1e-3
_PREDICTED = {"compute": ("compute", "recompute"), "other": ("jitter",)}
"""What a run tells apart → parts of a prediction, where they are called otherwise."""
_KINDS = ("products", "attention")


class Results:
    """Of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, Row] = {}
        self.sweeps: dict[str, Row] = {}
        self.left_out: dict[str, str] = {}
        if (folder / _RESULTS).exists():
            known = json.loads((folder / _RESULTS).read_text("utf-8"))
            self.runs, self.sweeps = known["runs"], known["sweeps"]
        self.take()

    def has(self, job: Job) -> bool:
        """Whether there is nothing left to do: all runs are done, and the choice was made by the profile, if any."""
        if isinstance(job, Calibration):
            return self.calibrated
        if isinstance(job, (Case, Tables)):
            return self.done(job.name)
        found = self.sweeps.get(job.name, {"complete": False})
        return found["complete"] and self.chose(job) and all(map(self.done, found["runs"]))

    @property
    def calibrated(self) -> bool:
        """Whether there is a profile."""
        return (self.folder / PROFILE).exists()

    def done(self, run: str) -> bool:
        """Whether a run need not be repeated: it ran, and not before there was a profile, or failed of itself."""
        row = self.runs.get(run, {"again": True})
        if "again" in row:
            return False
        failed = "failed" in row or "repetition_failed" in row
        return failed or not self.calibrated or "measured_step_seconds" in row

    def chose(self, sweep: Sweep) -> bool:
        """Whether the planner's choice stays: it was made by the best profile there is."""
        found = self.sweeps.get(sweep.name, {})
        return found.get("tier") == "measured" or (not self.calibrated and found.get("tier") is not None)

    def seconds(self, job: Job) -> float:
        """What is left of it is expected to take."""
        return job.seconds(sum(map(self.done, self.sweeps.get(job.name, {}).get("runs", ()))))

    def keep(self, name: str, row: Row) -> None:
        """The row of a run that ended; one that measured nothing leaves what was measured before."""
        old = self.runs.get(name, {})
        if "step_seconds" in old and "step_seconds" not in row:
            old.pop("again", None)
            row = old | {"repetition_failed": row["failed"]}
        self.runs[name] = row

    def take(self) -> str | None:
        """Take over what a process told, to the last run that it ended; returns the one that it did not, if any."""
        running, began = self.folder / _RUNNING, None
        if running.exists():
            told = json.loads(running.read_text("utf-8"))
            for name, row in told["runs"].items():
                self.keep(name, row)
            self.sweeps |= told["sweeps"]
            began = told.get("began")
            running.unlink()
            self.save()
        return began

    def repeat(self, job: Job) -> None:
        """It is to be done again; what there is of it stays until then."""
        found = self.sweeps.get(job.name, {"runs": []})
        found |= {"complete": False, "tier": None}
        for name in {job.name, *found["runs"]} & self.runs.keys():
            self.runs[name]["again"] = True
        self.save()

    def save(self) -> None:
        """All files, each whole or as it was."""
        sweeps = {name: sweep | regret(sweep, self.runs) for name, sweep in self.sweeps.items()}
        together = {"runs": self.runs, "sweeps": sweeps, "left_out": self.left_out}
        write_json(self.folder / _RESULTS, together)
        write_csv(self.folder / _TABLE, [{"name": name} | row for name, row in self.runs.items()])
        lines = [*_table(self.runs), "", *_parts(self.runs), *_chosen(self.sweeps, self.runs)]
        lines += [f"- left out: {name}, {why}" for name, why in self.left_out.items()]
        write_whole(self.folder / _WORDS, "\n".join(lines) + "\n")

    def draw(self) -> str:
        """Draw results.svg: of each run the parts of a step, predicted above measured; why not, else."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return "matplotlib is not there; the same command draws it where it is"
        rows = {name: row for name, row in self.runs.items() if parts_of(row)}
        if not rows:
            return "no run told the parts of its step"
        figure = Figure(figsize=(9, 1 + 0.6 * len(rows)), layout="constrained")
        axes = figure.subplots()
        names = dict.fromkeys(
            part for row in rows.values() for part, *_ in parts_of(row) if part not in _KINDS
        )
        colours = {name: f"C{number}" for number, name in enumerate(names)}
        for place, row in enumerate(rows.values()):
            for side, height in ((1, -0.2), (2, 0.2)):
                left = 0.0
                for line in parts_of(row):
                    if (name := line[0]) not in _KINDS:
                        share = line[side] / row["step_seconds"]
                        axes.barh(place + height, share, 0.38, left=left, color=colours[name])
                        left += share
        for name, colour in colours.items():
            axes.barh(0, 0, color=colour, label=name)
        axes.set_yticks(range(len(rows)), list(rows), fontsize=7)
        axes.set_xlabel("share of the measured step; predicted above, measured below")
        axes.invert_yaxis()
        figure.legend(loc="outside upper right", ncols=len(colours), fontsize=7)
        figure.savefig(self.folder / _FIGURE)
        return ""


def tell(folder: Path, runs: dict[str, Row], sweeps: dict[str, Row], began: str | None = None) -> None:
    """For a process to say what it has so far, and which run comes now."""
    write_json(folder / _RUNNING, {"runs": runs, "sweeps": sweeps, "began": began})


def regret(sweep: Row, runs: dict[str, Row]) -> Row:
    """Of what has run: the best, and how much longer the planner's choice takes; empty where that one did not run."""
    ran = {name: runs[name]["step_seconds"] for name in sweep["runs"] if "step_seconds" in runs.get(name, {})}
    if sweep["chosen"] not in ran:
        return {}
    best = min(ran, key=ran.__getitem__)
    return {"best": best, "regret": ran[sweep["chosen"]] / ran[best] - 1, "ran": len(ran)}


def keep_kernels(folder: Path, run: str, kernels: Sequence[Row]) -> None:
    """Write the kernels of a run to kernels.csv, in place of what the file has of it."""
    others = [row for row in read_csv(folder / _KERNELS) if row["run"] != run]
    write_csv(folder / _KERNELS, [*others, *({"run": run} | row for row in kernels)])


def write_json(path: Path, value: Any) -> None:
    """Whole, or as it was."""
    write_whole(path, json.dumps(value, indent=1))


def read_csv(path: Path) -> list[dict[str, str]]:
    """Rows of a file; none where there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Likewise, with the columns of all rows."""
    stream = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(stream, fieldnames=list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, stream.getvalue())


def _table(runs: dict[str, Row]) -> Iterable[str]:
    yield "| run | step (ms) | predicted | error | by the datasheet | MFU | peak (GiB) | predicted | error |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, row in runs.items():
        if "step_seconds" not in row:
            yield f"| {name} | {row.get('failed', 'nothing was measured')} | | | | | | | |"
            continue
        tier = "measured" if "measured_step_seconds" in row else "datasheet"
        seconds, predicted = row["step_seconds"], row[f"{tier}_step_seconds"]
        size, held = _peak(row), row["predicted_peak_bytes"]
        yield (
            f"| {name} | {seconds / _MILLISECOND:.1f} | {predicted / _MILLISECOND:.1f} | {_error(predicted, seconds)}"
            f" | {row['datasheet_error']:+.1%} | {_mfu(row)}"
            f" | {size / _GIB:.2f} | {held / _GIB:.2f} | {_error(held, size)} |"
        )


def parts_of(row: Row) -> list[tuple[str, float, float]]:
    """(part, predicted, measured) of a step, in seconds; kinds of kernels, which are in `compute`, come last."""
    tier = "measured" if "measured_step_seconds" in row else "datasheet"
    told = [name.removeprefix("spent_").removesuffix("_seconds") for name in row if name.startswith("spent_")]
    found = []
    for part in told:
        names = _PREDICTED.get(part, (part,))
        predicted = sum(row.get(f"{tier}_{name}_seconds") or 0.0 for name in names)
        measured = row[f"spent_{part}_seconds"]
        if predicted or (measured and part not in _KINDS):
            found.append((part, predicted, measured))
    return found


def _parts(runs: dict[str, Row]) -> Iterable[str]:
    yield "| run | part of a step | predicted (ms) | measured (ms) | of the step |"
    yield "| --- | --- | --- | --- | --- |"
    for name, row in runs.items():
        for part, predicted, measured in parts_of(row):
            share = (predicted - measured) / row["step_seconds"]
            yield (
                f"| {name} | {part} | {predicted / _MILLISECOND:.1f} | {measured / _MILLISECOND:.1f} | {share:+.1%} |"
            )
    yield ""


def _peak(row: Row) -> float:
    """The allocator's; on a CPU the storages that were followed; 0: neither."""
    followed = sum(
        row.get(f"measured_{part}_bytes", 0) for part in ("weights", "gradients", "optimizer", "rest")
    )
    return float(row.get("peak_bytes", followed))


def _mfu(row: Row) -> str:
    return f"{row['mfu']:.1%}" if "mfu" in row else "-"


def _error(predicted: float, measured: float) -> str:
    return f"{predicted / measured - 1:+.1%}" if measured else "-"


def _chosen(sweeps: dict[str, Row], runs: dict[str, Row]) -> Iterable[str]:
    for name, sweep in sweeps.items():
        found = regret(sweep, runs)
        of = f"of {len(sweep['runs'])} choices {found.get('ran', 0)} ran"
        if found:
            of += f", the best {found['best']}; the choice takes {found['regret']:+.1%} of its time more"
        yield f"- {name}: {sweep['by']} chose {sweep['chosen']}; {of}"
