"""Compare how much slower published runs were with offload than without, with what is predicted.

    python benchmarks/offload/slowdown.py            prints the table of slowdown.md
    python benchmarks/offload/slowdown.py TABLE.csv

A slowdown is the step of an offloaded run over that of the run of the same source, without offload, that is most like
it; what is wrong with both cancels. The host's seconds for a parameter are those that its logs state; where none does,
those at which the other pairs of that host come out right. Beside it the same with the seconds of the cluster's memory.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from cost_models.axes.layout import NOWHERE, Layout
from cost_models.axes.offload.channels import update_seconds
from cost_models.errors import InputError
from cost_models.measured.runs.cases import Case, read_case, read_rows
from cost_models.measured.runs.rows import Row
from cost_models.pipeline.pricing import estimate

TABLE = Path(__file__).with_name("runs.csv")
NOTED_PEAK = re.compile(r"GPU memory ([\d.]+)")
"""Where the table has no column for a peak that its source printed without a unit."""
NO_STACK = "l2l"
"""A trainer that no stack describes: weights kept and moved in a way of its own."""


class Pair:
    """An offloaded run and the one that it is compared with."""

    def __init__(self, case: Case, base: Case) -> None:
        self.case, self.base = case, base
        self.host = case.row.source_id
        self.stated = (
            update_seconds(case.question) if "hardware.host_update_seconds" in case.row.values else None
        )

    @property
    def measured(self) -> float:
        """How many times longer its step took."""
        return _step(self.case.row) / _step(self.base.row)

    def predicted(self, seconds: float | None = None) -> float:
        """The same from the model, on a host that updates a parameter in so long, or as its memory allows."""
        hardware = self.case.question.hardware.model_copy(update={"host_update_seconds": seconds})
        asked = replace(self.case.question, hardware=hardware)
        offloaded = estimate(asked, self.case.layout).step_seconds
        return offloaded / estimate(self.base.question, self.base.layout).step_seconds

    def solved(self) -> float:
        """Seconds a parameter at which it comes out right."""
        low, high = 1e-12, 1e-7
        for _ in range(60):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.predicted(middle) < self.measured else (low, middle)
        return low


def main(arguments: Sequence[str]) -> None:
    """Print the table and what of the rows it leaves out."""
    cases, left_out = _cases(read_rows(Path(arguments[0]) if arguments else TABLE))
    pairs = _pairs(cases)
    print("| run | layers | offload | measured | u, ns | predicted | error | at default u | error |")
    print("|--|--|--|--|--|--|--|--|--|")
    errors: list[float] = []
    defaults: list[float] = []
    for pair in pairs:
        seconds = _seconds(pair, pairs)
        found, default = pair.predicted(seconds), pair.predicted()
        errors.append(found / pair.measured - 1)
        defaults.append(default / pair.measured - 1)
        cells = (
            *_names(pair.case),
            *(
                f"{pair.measured:.2f}",
                f"{seconds * 1e9:.2f}",
                f"{found:.2f}",
                f"{errors[-1]:+.0%}",
                f"{default:.2f}",
                f"{defaults[-1]:+.0%}",
            ),
        )
        print(f"| {' | '.join(cells)} |")
    for name, each in (("u of the host", errors), ("default u", defaults)):
        worst = max(map(abs, each))
        print(f"\n{name}: median {median(map(abs, each)):.1%}, worst {worst:.1%} of {len(each)}")
    _print_peaks(cases)
    print("\nLeft out:")
    for row_id, why in left_out:
        print(f"- {row_id}: {why}")


def _print_peaks(cases: Sequence[Case]) -> None:
    print("\n| run | layers | offload | measured, GB | predicted | error |\n|--|--|--|--|--|--|")
    errors = []
    for case in cases:
        noted = NOTED_PEAK.search(case.row.notes)
        peak = case.row.peak_gb or (float(noted[1]) if noted else None)
        if peak:
            found = estimate(case.question, case.layout).peak_bytes / 1e9
            errors.append(found / peak - 1)
            print(f"| {' | '.join(_names(case))} | {peak:.1f} | {found:.1f} | {errors[-1]:+.0%} |")
    within = sum(abs(error) <= 0.1 for error in errors)
    print(f"\npeaks: median {median(map(abs, errors)):.1%}, {within} of {len(errors)} within 10 %")


def _cases(rows: Sequence[Row]) -> tuple[list[Case], list[tuple[str, str]]]:
    cases, left_out = [], []
    for row in rows:
        try:
            if NO_STACK in row.trainer.lower():
                raise InputError("no stack describes its trainer")
            if row.step_seconds is None:
                raise InputError("not timed")
            cases.append(read_case(row))
        except InputError as error:
            left_out.append((row.row_id, str(error)))
    return cases, left_out


def _pairs(cases: Sequence[Case]) -> list[Pair]:
    pairs = []
    for case in cases:
        bases = [
            one for one in cases if one.row.source_id == case.row.source_id and one.layout.offload == NOWHERE
        ]
        if case.layout.offload != NOWHERE and bases:
            pairs.append(Pair(case, max(bases, key=_likeness(case))))
    return pairs


def _names(case: Case) -> tuple[str, str, str]:
    """Run, blocks and offload of a case."""
    words = [word for word in str(case.layout).split() if word.startswith(("offload=", "ring="))]
    return (
        case.row.row_id,
        str(case.question.model.num_layers),
        " ".join(words).removeprefix("offload=") or "none",
    )


def _likeness(case: Case) -> Callable[[Case], tuple[bool, ...]]:
    """What a run without offload shares with the case, as far as one does; the most important first."""

    def compared(one: Case) -> tuple[object, ...]:
        layout: Layout = one.layout
        return one.question.model.num_layers, layout.zero, layout.recompute, layout.mbs

    return lambda other: tuple(a == b for a, b in zip(compared(other), compared(case), strict=True))


def _seconds(pair: Pair, pairs: Sequence[Pair]) -> float:
    """Seconds a parameter on the pair's host."""
    if pair.stated is not None:
        return pair.stated
    same = [one for one in pairs if one.host == pair.host and one is not pair]
    stated = [one.stated for one in same if one.stated is not None]
    return median(stated or [one.solved() for one in same])


def _step(row: Row) -> float:
    return row.step_seconds or 0.0


if __name__ == "__main__":
    main(sys.argv[1:])
