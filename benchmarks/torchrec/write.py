"""Writes exported shardings for `read.py`: five small ones to train with, and 200 random ones for 16 GPUs."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path

from cost_models.files.loading import resolve_cluster
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from planner.formats.torchrec import export_sharding

SMALL = {
    "whole": "table:0-3=whole@0,1,0,1",
    "column": "table:0-3=column2@0,1,1,0,0,1,1,0",
    "row": "table:0-3=row",
    "copy": "table:0-3=copy",
    "mixed": "table:0=row table:1=column2@0,1 table:2=copy table:3=whole@1",
}
MODEL = RecommenderSpec(
    tables=(
        TableSpec(name="a", rows=1001, width=128, count=2),
        TableSpec(name="b", rows=7, width=128),
        TableSpec(name="c", rows=5000, width=128),
    ),
    interaction=Interaction(kind="none"),
)


@dataclass(frozen=True)
class Tables:
    """What an exporter asks of a plan."""

    model: RecommenderSpec
    cluster: ClusterSpec
    sharding: Sharding


def word(draw: random.Random) -> str:
    """A way to shard one table over 16 GPUs in two nodes."""
    one, other = draw.sample(range(16), 2)
    ways = ("row", "copy", f"whole@{one}", f"column2@{one},{other}", f"node-row@{one // 8}")
    return draw.choice(ways) if draw.random() < 0.8 else draw.choice(("row/host", f"whole@{one}/cached(0.1)"))


def main(folder: Path) -> None:
    """Write all files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, layout in SMALL.items():
        tables = Tables(MODEL, resolve_cluster("dgx-h100", 2), parse_sharding(layout, 4))  # type: ignore[arg-type]
        (folder / f"{name}.json").write_text(export_sharding(tables).text)
    draw = random.Random(0)
    for place in range(200):
        rows = [draw.randint(1, 10 ** draw.randint(1, 8)) for _ in range(12)]
        specs = tuple(TableSpec(name=f"t{n}", rows=count, width=64) for n, count in enumerate(rows))
        model = RecommenderSpec(tables=specs, interaction=Interaction(kind="none"))
        layout = " ".join(f"table:{n}={word(draw)}" for n in range(len(rows)))
        tables = Tables(model, resolve_cluster("dgx-h100", 16), parse_sharding(layout, len(rows)))  # type: ignore[arg-type]
        (folder / f"random{place:03}.json").write_text(export_sharding(tables).text)
        (folder / f"random{place:03}.rows").write_text(" ".join(map(str, rows)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
