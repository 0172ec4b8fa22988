"""Small data frames of every plot, made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cost_models.schedules.actions import KINDS
from cost_models.schedules.registry import build
from cost_models.schedules.timeline import compile_timeline

GIB = 2.0**30


def frontier_points() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "layout": ["tp8 pp8 dp2", "tp8 pp4 dp4", "tp4 pp4 dp8", "tp4 pp2 dp16", "tp2 pp2 dp32"],
            "peak_bytes": np.array([10.0, 30.0, 70.0, 90.0, 400.0]) * GIB,
            "tokens_per_second": [80e3, 100e3, 130e3, 140e3, 150e3],
            "mfu": [0.3, 0.4, 0.5, 0.52, 0.55],
        }
    )
    frame["fits"] = frame["peak_bytes"] <= 74 * GIB
    frame["pareto"] = frame["proven"] = frame["fits"]
    frame["chosen"] = frame["layout"] == "tp4 pp4 dp8"
    return frame


def scaling_points() -> pd.DataFrame:
    rows = [
        {
            "kind": kind,
            "gpus": gpus,
            "global_batch": 64 if kind == "strong" else 8 * gpus,
            "layout": f"tp8 pp1 dp{gpus // 8} mbs1",
            "tokens_per_second": 100.0 * gpus**0.9,
            "mfu": 0.5,
            "gap": 0.0,
        }
        for kind in ("strong", "weak")
        for gpus in (8, 16, 32)
    ]
    return pd.DataFrame(rows)


def timeline_points(schedule: str, pp: int, vpp: int, microbatches: int) -> pd.DataFrame:
    table = build(schedule, pp, vpp, microbatches)
    halves = table.schedule.splits != "never"
    start, end = compile_timeline(table).spans(
        np.full(pp * vpp, 1.0), np.full(pp * vpp, 1.0 if halves else 2.0), 0.0, float(halves)
    )
    frame = pd.DataFrame(
        {
            "rank": np.repeat(np.arange(pp), table.stage.shape[1]),
            "kind": np.array([*KINDS, ""])[table.kind].ravel(),
            "chunk": table.chunk.ravel(),
            "microbatch": table.microbatch.ravel(),
            "start_seconds": start.ravel(),
            "end_seconds": end.ravel(),
        }
    )
    return frame[frame["kind"] != ""]


def accuracy_points() -> pd.DataFrame:
    rows = [
        {"label": name, "quantity": quantity, "predicted": 1.05 * value, "measured": value}
        for name, value in (("tp2", 1.0), ("pp2", 3.0))
        for quantity in ("step_seconds", "peak_bytes")
    ]
    return pd.DataFrame(rows)
