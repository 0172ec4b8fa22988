"""What ranks tell one another: anything JSON can say, of any length, and nothing that would run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch.distributed as dist

import executor
from executor.messages import gather_json, json_from_first


def _tell() -> tuple[list[Any], Any]:
    rank = dist.get_rank()
    said = {"rank": rank, "words": "é" * 1000 * rank, "none": None, "loss": float("inf")}
    return gather_json(said), json_from_first({"first": [rank, "ü"]} if rank == 0 else None)


def test_every_rank_hears_what_each_says(processes) -> None:
    everyone = [
        {"rank": rank, "words": "é" * 1000 * rank, "none": None, "loss": float("inf")} for rank in range(3)
    ]
    for gathered, first in processes.run(3, _tell):
        assert gathered == everyone
        assert first == {"first": [0, "ü"]}


def test_no_rank_tells_pickles() -> None:
    """Torch's collectives of objects unpickle what they get, which runs whatever it says."""
    sources = sorted(Path(executor.__path__[0]).rglob("*.py"))
    assert len(sources) > 50
    told = re.compile(r"\b(\w+_object|\w+_object_list|pickle\.\w+|torch\.load)\(")
    assert not [(path.name, found[0]) for path in sources if (found := told.search(path.read_text("utf-8")))]
