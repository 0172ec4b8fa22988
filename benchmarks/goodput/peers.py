"""What two public models of failures make of the same inputs, and why they say something else.

    python benchmarks/goodput/peers.py OUT.csv

**mlsysim** (harvard-edge/cs249r_book, `ReliabilityModel.solve`): failures of GPUs, NICs and power supplies of a node
add up, of nodes likewise; interval √(2δM); goodput 1 - δ/τ - R/M. The work since the last save, τ/2 of each failure on
average, is in none of its terms.

**AIReSim** (Lin, Pattabiraman, Patel 2026, arXiv 2603.07041; karthikp-ubc/airesim, `airesim/params.py`, the 30 runs of
`docs/SIMULATION_REPORT.md`): 4,096 servers that fail 0.01 times a day, 15 % of them five times as often besides until
a repair cures them, each failure answered by a recovery of 20 minutes. It has no saves and no work done again, which
are to be in the 20 minutes, and nothing fails while the job recovers.

Each is written down here from these facts, beside ours with the same inputs, and beside ours without what theirs leaves
out: then both agree.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from cost_models.files.whole import write_whole
from cost_models.reliability import Segment, best_work, young
from meshwright.terminal.output import as_csv

HOUR, DAY, MINUTE = 3600.0, 86400.0, 60.0
GPU_HOURS, NIC_HOURS, POWER_HOURS = 50_000.0, 150_000.0, 100_000.0
"""Mean time to failure of the components of mlsysim's node: 8 GPUs, 8 NICs, 2 power supplies."""
SERVERS, RATE, JOB = 4096, 0.01 / DAY, 256 * DAY
BAD, TIMES, RECOVERY = 0.15, 5.0, 20 * MINUTE
AUTO_FAILS, ESCALATES, MANUAL_FAILS = 0.40, 0.80, 0.20
"""AIReSim's table 1, of its catalogue of parameters."""
REPORTED_FAILURES, REPORTED_RATIO = 11_062.0, 0.6249
"""Means of 30 runs in its report."""
Row = dict[str, object]


def main() -> None:
    """Write the table."""
    rows = [*_mlsysim(), *_airesim()]
    for row in rows:
        print(row)
    write_whole(Path(sys.argv[1]), as_csv(rows))


def _mlsysim() -> list[Row]:
    nodes = {
        f"{8 * count} GPUs, δ 60 s, R 300 s": (_node() / count, 60.0, 300.0) for count in (64, 256, 2048)
    }
    by_hand = {"M 3.09 h, δ 60 s, R 600 s": (3.09 * HOUR, 60.0, 600.0)}
    rows = []
    for case, (between, saving, restart) in {**nodes, **by_hand}.items():
        interval = young(saving, between)
        ours = Segment(work=best_work(saving, between), saving=saving, restart=restart, mtbf=between)
        theirs = 1 - saving / interval - restart / between
        rows.append(
            {
                "peer": "mlsysim",
                "case": case,
                "between_hours": round(between / HOUR, 3),
                "theirs": round(theirs, 4),
                "ours": round(ours.goodput, 4),
                "ours_without": round(theirs - 0.5 * interval / between, 4),
                "why": "theirs lacks work done again, half an interval a failure: with it, to first order",
            }
        )
    return rows


def _node() -> float:
    """Seconds between failures of a node."""
    return HOUR / (8 / GPU_HOURS + 8 / NIC_HOURS + 2 / POWER_HOURS)


def _airesim() -> list[Row]:
    """A bad server fails until a repair cures it; five of six of its failures are of the bad kind."""
    cured = 1 - AUTO_FAILS * (ESCALATES * MANUAL_FAILS + 1 - ESCALATES)
    failures = SERVERS * RATE * JOB + BAD * SERVERS / cured * TIMES / (TIMES + 1)
    between = JOB / failures
    ours = math.exp(-RECOVERY / between)  # of a segment of hardly any work, without saves
    segment = Segment(work=1.0, saving=0.0, restart=RECOVERY, mtbf=between)
    assert abs(segment.goodput - ours) < 1e-3
    return [
        {
            "peer": "AIReSim",
            "case": f"its table 1: {failures:,.0f} failures by hand, {REPORTED_FAILURES:,.0f} in its runs",
            "between_hours": round(between / HOUR, 3),
            "theirs": REPORTED_RATIO,
            "ours": round(ours, 4),
            "ours_without": round(1 / (1 + RECOVERY / between), 4),
            "why": "in theirs nothing fails while the job recovers: without that, ours is M / (M + R)",
        }
    ]


if __name__ == "__main__":
    main()
