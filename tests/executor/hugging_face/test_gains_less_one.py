"""Weight decay pulls gains that a model keeps less one as it does in that model: x (1 + g), and g towards 0.

The model is written by hand: our own modules, whose gains are 1 + g, and torch's AdamW on g.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from effort import first_of
from hub_folders import make_folder, plan_of, train_from, written
from torch import Tensor

from executor.boxes import Box
from executor.data.batches import Batches
from executor.hugging_face.reading import Folder, FromTensors
from executor.models.transformer import Transformer
from planner.plan import Plan

STEPS, RATE = 4, 1e-2
LAYOUTS = (
    "mbs2",
    "dp2 mbs2 zero3",
    "mbs2 offload=states/drive",
    "mbs2 offload=streamed:1/parked",
    "dp2 mbs2 zero1",
    "tp2 mbs2 sp",
    "pp2 mbs2",
    "dp2 mbs2 zero2 offload=parked",
)


def reference(
    plan: Plan, folder: Path, less_one: bool
) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
    """(loss, gradient norm) of each step, and the gains less one after them, by our names."""
    tensors, model = Folder(folder, plan.model), Transformer(plan.model, vocabulary=plan.model.vocab_size)
    values, kept = FromTensors(tensors.names, tensors), dict(model.named_parameters())
    gains = {name for name in kept if less_one and name.endswith("norm.weight")}
    with torch.no_grad():
        for name, one in kept.items():
            values.fill(name, tuple(one.shape), Box((0,) * one.dim(), tuple(one.shape)), one)
            one.sub_(1.0 if name in gains else 0.0)
    adam = torch.optim.AdamW(kept.values(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    batches, curve = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0), []
    for step in range(STEPS):
        tokens, targets = batches.between(step, 0, plan.training.global_batch)
        whole = {name: one + 1.0 if name in gains else one for name, one in kept.items()}
        logits = torch.func.functional_call(model, whole, (tokens,))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        adam.zero_grad()
        loss.backward()
        norms = [float(one.grad.norm()) for one in kept.values() if one.grad is not None]
        curve.append((loss.item(), sum(norm**2 for norm in norms) ** 0.5))
        adam.step()
    return curve, {name: kept[name].detach() for name in gains}


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [*(("gemma", layout) for layout in first_of(4, LAYOUTS)), ("nemotron", "mbs2"), ("llama", "mbs2")],
)
def test_decay_pulls_gains_to_where_their_family_does(
    model_type: str, layout: str, processes, tmp_path
) -> None:
    spec, _ = make_folder(tmp_path / "in", model_type)
    plan = plan_of(spec, layout)
    expected, gains = reference(plan, tmp_path / "in", less_one=model_type != "llama")
    ranks = processes.run(plan.layout.num_gpus, train_from, plan, tmp_path / "in", tmp_path / "out", STEPS)
    for (loss, norm), (known_loss, known_norm) in zip(ranks[0][0], expected, strict=True):
        assert loss == pytest.approx(known_loss, rel=1e-5)
        assert norm == pytest.approx(known_norm, rel=1e-4)
    names, kept = Folder(tmp_path / "out", spec).names, written(tmp_path / "out")
    for name, one in gains.items():
        (source,) = names.sources(name)
        # the norm, for AdamW magnifies the rounding of a gradient that is nearly zero: of one element now and then
        assert (kept[source.name] - one).norm() < 1e-5 * one.norm(), name


def drawn_and_read(plan: Plan, folder: Path) -> None:
    """Train from values that are drawn, and from a folder that has the same ones."""
    from executor.engine.engine import Engine
    from executor.hugging_face.writing import save_weights
    from executor.run_config import EngineOptions, RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    device = torch.device("cpu")
    save_weights(Engine(plan, device, EngineOptions()), folder / "in", None)
    for name, weights in (("drawn", None), ("read", folder / "in")):
        how = {"learning_rate": RATE, "measure_memory": False, "weights": weights}
        train(plan, device, RunConfig(steps=STEPS, save_weights=folder / name, **how), Watcher())


def test_a_run_whose_values_are_drawn_decays_as_one_that_reads_them(processes, tmp_path) -> None:
    """So does one that goes on from a checkpoint without them."""
    spec, _ = make_folder(tmp_path / "config", "gemma")
    processes.run(1, drawn_and_read, plan_of(spec, "mbs2"), tmp_path)
    drawn, read = written(tmp_path / "drawn"), written(tmp_path / "read")
    assert drawn.keys() == read.keys()
    for name, one in drawn.items():
        torch.testing.assert_close(one, read[name], msg=name)
