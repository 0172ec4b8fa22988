"""Jobs of the worker processes that save and resume."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from planner.plan import Plan

STEPS, SAVED_AT = 5, 3


def train_and_save(
    plan: Plan, folder: Path, *, resume: bool, steps: int = STEPS, every: int = SAVED_AT, **how: Any
) -> tuple[list[tuple[float, float]], list[str], int | None]:
    """((loss, gradient norm) of each step trained here, notes, step of the newest checkpoint), as a run has them."""
    from executor.checkpoints.checkpointer import Checkpointer
    from executor.data.batches import Batches, SharedBatches
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions, Rate, RunConfig
    from executor.steps import Curve, Watcher, follow_steps
    from executor.transformer.train import TrainedTransformer, TransformerState

    rate = how.get("rate", Rate(peak=1e-3))
    options = EngineOptions(rate=rate, seed=how.get("seed", 0), clip=how.get("clip"))
    engine = Engine(plan, torch.device("cpu"), options, filled=False)
    model = plan.model
    batches = Batches(plan.training, vocabulary=model.vocab_size, seed=options.seed, tower=model.tower)
    saving = RunConfig(checkpoint=folder, every=every, keep=how.get("keep", 2), resume=resume)
    checkpointer, watcher = Checkpointer(TransformerState(engine), saving, "text"), Watcher()
    config = RunConfig(steps=steps, warm_up=0)
    trained = TrainedTransformer(engine, SharedBatches(batches, engine, plan.layout.num_stages, steps - 1))
    curve = follow_steps(trained, config, checkpointer, watcher, lambda: False)
    assert isinstance(curve, Curve)
    return list(zip(curve.losses, curve.norms, strict=True)), watcher.notes, checkpointer.saved


def refused(plan: Plan, folder: Path, *, resume: bool, **how: Any) -> tuple[str, str]:
    """(class, message) of the error with which `train_and_save` ends."""
    from cost_models.errors import MeshwrightError

    try:
        train_and_save(plan, folder, resume=resume, **how)
    except MeshwrightError as error:
        return type(error).__name__, str(error)
    return "", ""


def fill_the_disk(plan: Plan, folder: Path) -> tuple[str, str]:
    """As `refused`, on a rank 0 that cannot write a file of more than 64 KiB."""
    import torch.distributed as dist

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        return refused(plan, folder, resume=True, steps=STEPS + 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def change_byte(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def edit_manifest(path: Path) -> None:
    """Change one number of a manifest, leaving valid JSON."""
    document = json.loads(path.read_text("utf-8"))
    document["checkpoint"]["progress"]["step"] += 1
    path.write_text(json.dumps(document), "utf-8")


def change_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest and sign it again, as one would be that was written wrong."""
    document = json.loads(path.read_text("utf-8"))
    change(document["checkpoint"])
    text = json.dumps(document["checkpoint"], sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(document | {"sha256": hashlib.sha256(text.encode()).hexdigest()}), "utf-8")
