"""Measures hits of caches beside those that a plan predicts, on Zipf laws and on a recorded histogram, as CSV."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from cost_models.files.recommenders import steps_of
from cost_models.recommender.accesses import Accesses, accesses_of, lru_curve
from cost_models.specs.recommender.model import TableSpec
from executor.embeddings.bags import Bags, CachedSets, HottestRows

ROWS, WIDTH, BATCH = 200_000, 16, 512
SHARES = (0.01, 0.05, 0.2)
WARM, COUNTED = 300_000, 200_000
CPU = torch.device("cpu")


def replay(cache: HottestRows | CachedSets, ids: np.ndarray) -> None:
    """All ids in batches; those before the last COUNTED fill the cache."""
    batches = torch.from_numpy(ids).split(BATCH)
    for place, batch in enumerate(batches):
        if place == len(batches) - COUNTED // BATCH:
            cache.counts.clear()
        cache.look_up(Bags(batch, torch.ones(len(batch), dtype=torch.int32)))


def _spared(cache: CachedSets) -> float:
    """Share of lookups that caused no copy of a row."""
    return 1 - cache.counts["fetched"] / cache.counts["lookups"]


def measured(
    name: str, ids: np.ndarray, ranked: np.ndarray, accesses: Accesses
) -> Iterator[tuple[object, ...]]:
    """A row for each policy and size; `ranked` has the row numbers in the order of their accesses."""
    table, ids = torch.randn(ROWS, WIDTH), np.argsort(ranked)[ids]
    for share in SHARES:
        held = int(share * ROWS)
        hottest = HottestRows(table, held, CPU)
        replay(hottest, ids[-COUNTED:])
        hit_share = hottest.counts["hits"] / hottest.counts["lookups"]
        yield name, share, "hottest", float(accesses.hits(held)), hit_share
        last = CachedSets(table, held, "lru", CPU)
        replay(last, ids)
        yield name, share, "lru", float(lru_curve(accesses).hits(held)), _spared(last)
        most = CachedSets(table, held, "lfu", CPU)
        replay(most, ids)
        yield name, share, "lfu", float(accesses.hits(held)), _spared(most)


def main(out: Path) -> None:
    """Write the table."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rows: list[tuple[object, ...]] = []
    for exponent in (0.8, 0.9, 1.0, 1.1, 1.2):
        weights = np.arange(1.0, ROWS + 1) ** -exponent
        places = rng.permutation(ROWS)
        ids = places[rng.choice(ROWS, WARM + COUNTED, p=weights / weights.sum())]
        accesses = accesses_of(TableSpec(name="a", rows=ROWS, width=WIDTH, zipf=exponent))
        rows += measured(f"zipf {exponent:g}", ids, places, accesses)
    popularity = rng.lognormal(0.0, 2.0, ROWS)
    log = rng.choice(ROWS, 12_000_000, p=popularity / popularity.sum())
    counts = np.bincount(log[: -WARM - COUNTED], minlength=ROWS)
    accesses = accesses_of(TableSpec(name="a", rows=ROWS, width=WIDTH, histogram=steps_of(counts)))
    ranked = np.argsort(-counts, kind="stable")
    rows += measured("recorded", log[-WARM - COUNTED :], ranked, accesses)
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("accesses", "cached_share", "policy", "predicted_hits", "measured_hits"))
        writer.writerows((*row[:3], f"{row[3]:.4f}", f"{row[4]:.4f}") for row in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
