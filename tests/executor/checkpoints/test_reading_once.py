"""Ranks that hold the same read each byte of a checkpoint once between them, and have the same bits as without."""

from __future__ import annotations

import hashlib
from math import prod
from pathlib import Path
from typing import Any

import pytest
from effort import few
from saving_jobs import train_and_save
from training import GPT, MOE, plan_for

from cost_models.reliability import copies
from executor.checkpoints.manifest import Folder, ReadingClock, digest_of, read_manifest
from planner.plan import Plan


def _saved(plan: Plan, folder: Path) -> None:
    train_and_save(plan, folder, resume=False, steps=1, every=1)


def _loaded(plan: Plan, folder: Path, once: bool) -> tuple[int, list[str]]:
    """(bytes of matrices and vectors that this rank has read, digests of all that it then holds)."""
    import torch

    from executor.checkpoints.checkpointer import Checkpointer
    from executor.checkpoints.contents import PieceReader
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions, Saving
    from executor.transformer.train import TransformerState

    class Counting(TransformerState):
        def reads_once(self, rate: float) -> bool:
            assert rate > 0
            return once

    read, plainly = [], PieceReader.read_data

    def counting(reader: PieceReader, items: Any, planner: Any) -> Any:
        tensors = reader.manifest.tensors
        read.extend(
            prod(item.lengths) * getattr(torch, tensors[item.storage_index.fqn].dtype).itemsize
            for item in items.items
            if item.lengths and not item.storage_index.fqn.startswith("random")
        )
        return plainly(reader, items, planner)

    PieceReader.read_data = counting  # type: ignore[method-assign]
    try:
        state = Counting(Engine(plan, torch.device("cpu"), EngineOptions(seed=7), filled=False))
        saving = Saving(folder=folder, every=1, keep=2, resume=True)
        state.engine.options = EngineOptions()
        assert Checkpointer(state, saving, "text").resume().step == 1
    finally:
        PieceReader.read_data = plainly  # type: ignore[method-assign]
    held = [piece.tensor for one in state.contents().values() for piece in one.pieces]
    return sum(read), [hashlib.sha256(one.numpy().tobytes()).hexdigest() for one in held]


@few(1)
@pytest.mark.parametrize(
    ("layout", "model"),
    [("dp2 mbs2 zero0", GPT), ("dp4 mbs2 zero1 shard2", GPT), ("dp4 ep2 mbs2 zero2 shard2", MOE)],
)
def test_each_byte_is_read_once(layout: str, model: dict[str, Any], processes, tmp_path) -> None:
    plan = plan_for(layout, model)
    ranks = plan.layout.num_gpus
    processes.run(ranks, _saved, plan, tmp_path)
    every, once = (processes.run(ranks, _loaded, plan, tmp_path, how) for how in (False, True))
    manifest = read_manifest(Folder(tmp_path).at(1))
    sizes = {"float32": 4}
    whole = sum(
        prod(one.shape) * sizes[one.dtype]
        for name, one in manifest.tensors.items()
        if one.shape and not name.startswith("random")
    )
    assert sum(read for read, _ in once) == whole
    assert max(read for read, _ in once) < 1.5 * whole / ranks  # each has as much to read
    assert sum(read for read, _ in every) == pytest.approx(
        copies(plan.question, plan.layout) * whole, rel=1e-3
    )
    assert [held for _, held in once] == [held for _, held in every]


def test_the_clock_of_a_digest_has_all_bytes(tmp_path) -> None:
    clock = ReadingClock()
    (tmp_path / "file").write_bytes(bytes(3 << 20))
    assert digest_of(tmp_path / "file", clock) == hashlib.sha256(bytes(3 << 20)).hexdigest()
    assert clock.size == 3 << 20
    assert clock.seconds > 0
