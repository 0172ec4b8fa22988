"""The instances: five public sets of tables (instances.csv), and random ones."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "instances.csv"

SIZES: dict[str, tuple[int, int]] = {
    "dcnv2_26": (8, 8192),
    "hctr_7": (32, 512),
    "hctr_180": (8, 512),
    "hctr_200": (8, 512),
    "hctr_510": (8, 512),
}
"""GPUs and samples of each that the public sets are planned for."""
RANDOM: tuple[tuple[int, int], ...] = (
    (100, 8),
    (100, 32),
    (150, 16),
    (200, 8),
    (200, 16),
    (200, 64),
    (300, 16),
    (400, 8),
    (400, 32),
    (600, 16),
    (800, 8),
    (800, 16),
)
"""Tables and GPUs of the random instances; the seed is the number in this list."""


@dataclass(frozen=True, slots=True)
class Table:
    """One embedding table."""

    rows: int
    width: int
    pooling: float


@dataclass(frozen=True, slots=True)
class Instance:
    """Tables on GPUs, in nodes of eight."""

    name: str
    tables: tuple[Table, ...]
    gpus: int
    batch: int
    """Samples of each GPU."""


def instances() -> list[Instance]:
    """All of them."""
    return [*public(), *(synthetic(seed, *size) for seed, size in enumerate(RANDOM))]


def public() -> list[Instance]:
    """MLPerf DLRM-DCNv2 and four of HugeCTR's benchmark."""
    tables: dict[str, list[Table]] = defaultdict(list)
    with FILE.open() as file:
        for row in csv.DictReader(file):
            table = Table(int(row["rows"]), int(row["embedding_dim"]), float(row["pooling_factor"]))
            tables[row["instance"]].append(table)
    return [Instance(name, tuple(tables[name]), *size) for name, size in SIZES.items()]


def synthetic(seed: int, count: int, gpus: int) -> Instance:
    """Rows over four decades, widths of 16 to 256, poolings of 1 to 100 most of which are small.

    Tables fill a third of the GPUs as they are, so that large ones have to be split or to lie apart.
    """
    random = np.random.default_rng(seed)
    width = random.choice([16, 32, 64, 128, 256], size=count, p=[0.15, 0.2, 0.3, 0.3, 0.05])
    rows = 10 ** random.uniform(3, 7.3, size=count)
    rows *= min(1.0, gpus * 80 * 1024**3 / 3 / float((rows * width * 4).sum()))
    pooling = np.maximum(1, np.rint(np.minimum(random.lognormal(1.0, 1.3, size=count), 100)))
    tables = (Table(max(10, int(r)), int(w), float(p)) for r, w, p in zip(rows, width, pooling, strict=True))
    return Instance(f"random_{count}x{gpus}", tuple(tables), gpus, 4096)
