"""A rank builds what it keeps: initial weights are the same in every layout; those of others take no memory here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from effort import few
from saving_jobs import train_and_save
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from training import GPT, LATENT, LLAMA, SHARED, plan_for

from executor.boxes import Box
from executor.emulate.stand_ins import fake_process_group, without_values
from executor.engine.engine import Engine
from executor.engine.weights import box_here, owned
from executor.measure.memory import StorageTracker
from executor.models import initial
from executor.models.ends import TIED
from executor.models.initial import InitialValues
from executor.run_config import EngineOptions
from executor.transformer.train import TransformerState
from planner.plan import Plan

CPU = torch.device("cpu")
LAYOUTS = [
    ("gpt", "dp2 mbs2 zero1"),
    ("gpt", "dp4 mbs1 zero1 shard2"),
    ("gpt", "tp2 dp2 mbs2 zero3 recompute=full"),
    ("gpt", "tp2 pp2 vpp2 dp2 mbs1 zero1"),
    ("gpt", "dp2 mbs2 zero1 overlap=dp"),
    ("gpt", "dp2 mbs2 zero3 offload=states"),
    ("gpt", "mbs2 offload=states:1/streamed:2"),
    ("gpt", "mbs2 offload=states/drive"),
    ("experts", "dp4 ep2 mbs2 zero3"),
    ("experts", "tp2 dp2 ep2 sp mbs2 zero1"),
]
MODELS: dict[str, dict[str, Any]] = {"gpt": GPT, "experts": SHARED | LATENT}


@contextmanager
def built(plan: Plan, rank: int, **how: Any) -> Iterator[Engine]:
    """A rank of a plan, alone."""
    try:
        with fake_process_group(rank, plan.layout.num_gpus):
            yield Engine(plan, CPU, EngineOptions(), **how)
    finally:
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # it takes other ranks' meshes for this one's


def whole_weights(plan: Plan) -> dict[str, Tensor]:
    """Every parameter, put together from the weights that each rank updates, each rank built alone."""
    found: dict[str, Tensor] = {}
    for rank in range(plan.layout.num_gpus):
        with built(plan, rank) as engine:
            for one in owned(engine.optimizer, engine.names):
                whole = found.setdefault(one.place.name, torch.full(one.place.shape, torch.nan))
                for box, piece in one.pieces(one.slice.updated):
                    whole[slices(box)] = piece
    return found


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))


@pytest.fixture(scope="module")
def alone_weights() -> dict[str, dict[str, Tensor]]:
    """Those of one process."""
    return {name: whole_weights(plan_for("mbs8", model)) for name, model in MODELS.items()}


@pytest.mark.parametrize(("model", "layout"), LAYOUTS, ids=[f"{one} {other}" for one, other in LAYOUTS])
def test_every_layout_starts_from_the_same_bits(model: str, layout: str, alone_weights) -> None:
    """Whatever splits, shards or keeps them elsewhere; in bf16, too, as what is updated is in fp32."""
    precision = "fp32" if "pp2" in layout else "bf16"
    weights = whole_weights(plan_for(layout, MODELS[model], precision=precision))
    expected = alone_weights[model]
    for name, whole in weights.items():
        tied = TIED.get(name, name)
        assert torch.equal(whole, expected[name if name in expected else tied]), name
    assert expected.keys() <= weights.keys()


def test_weights_are_normal_and_of_no_two_names_alike(alone_weights) -> None:
    values = InitialValues(seed=1, tied=False)
    one, other = torch.empty(2, 512, 512).unbind(0)
    for name, into in (("blocks.0.mlp.up.weight", one), ("blocks.1.mlp.up.weight", other)):
        values.fill(name, (512, 512), Box((0, 0), (512, 512)), into)
    flat = (one / 0.02).double().flatten()
    error = 5 / flat.numel() ** 0.5  # of a mean, at five standard deviations
    assert abs(float(flat.mean())) < error
    assert abs(float((flat**2).mean()) - 1) < error * 2**0.5
    assert abs(float((flat**4).mean()) - 3) < error * 96**0.5
    assert abs(float((flat * (other / 0.02).flatten()).mean())) < error
    for lag in (1, 2, 511, 512):
        assert abs(float((flat[lag:] * flat[:-lag]).mean())) < error
    below = torch.special.ndtr(flat).sort().values
    distance = (below - torch.linspace(0, 1, len(below), dtype=torch.float64)).abs().max()
    assert float(distance) < 1.95 / flat.numel() ** 0.5  # Kolmogorov and Smirnov, p = 0.001
    assert float(alone_weights["gpt"]["norm.weight"].min()) == 1.0
    assert float(alone_weights["gpt"]["norm.bias"].abs().max()) == 0.0


def test_any_box_is_that_part_of_the_whole() -> None:
    """Boxes that begin and end at odd places of odd rows, drawn in groups of a few elements."""
    shape, name, values = (7, 5, 9), "blocks.0.mlp.up.weight", InitialValues(seed=0, tied=False)
    whole = torch.empty(shape)
    values.fill(name, shape, Box((0, 0, 0), shape), whole)
    generator = torch.Generator().manual_seed(0)
    for trial in range(100):
        begin = [int(torch.randint(size, (1,), generator=generator)) for size in shape]
        sizes = [
            int(torch.randint(1, size - at + 1, (1,), generator=generator))
            for at, size in zip(begin, shape, strict=True)
        ]
        box, part = Box(tuple(begin), tuple(sizes)), torch.empty(sizes)
        with mock.patch.dict(initial._AT_ONCE, cpu=1 + trial % 11):
            values.fill(name, shape, box, part)
        assert torch.equal(part, whole[slices(box)])


WIDE = GPT | {"hidden_size": 128, "vocab_size": 1024}
CHUNK = 1 << 10
TEMPORARY = 16 * 8 * CHUNK
"""Bytes of one group of elements while they are drawn: fewer than so many numbers of 8 bytes for each."""


@pytest.mark.parametrize(
    ("layout", "passing"),
    [
        ("mbs2", 0),
        ("dp8 mbs1 zero3", 0),
        ("tp2 dp4 mbs1 zero2", 0),
        ("mbs2 offload=streamed", 12),
        ("dp2 mbs2 zero3 offload=streamed", 4),
    ],
)
def test_building_needs_what_is_kept_and_no_more(layout: str, passing: int) -> None:
    """And one group of elements; of blocks that will live on the host one at a time, `passing` bytes an element."""
    plan = plan_for(layout, WIDE)
    with (
        mock.patch.dict(initial._AT_ONCE, cpu=CHUNK),
        fake_process_group(0, plan.layout.num_gpus),
        StorageTracker() as tracker,
    ):
        engine = Engine(plan, CPU, EngineOptions())
    peak, kept = (sum(parts.values()) for parts in (tracker.peak, tracker.now))
    block = sum(one.numel() for one in engine.parts[0].blocks["0"].parameters())
    assert peak <= kept + TEMPORARY + passing * block
    assert kept > 20 * TEMPORARY / plan.layout.num_gpus


def test_one_rank_of_a_thousand_builds_its_thousandth() -> None:
    """Without values: the fp32 shard that it updates, and of what is too small for all ranks one row."""
    wide = LLAMA | {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "ffn_hidden_size": 4096}
    plan = plan_for("tp2 dp512 mbs1 zero3", wide | {"vocab_size": 1024}, global_batch=512)
    with fake_process_group(514, 1024), without_values(), StorageTracker() as tracker:
        engine = Engine(plan, CPU, EngineOptions())
    elements = sum(one.numel() for one in engine.parts[0].parameters())
    assert sum(tracker.peak.values()) == pytest.approx(elements * 4 / 1024, rel=0.02)


@few(1)
@pytest.mark.parametrize("rank", [0, 4, 8, 12])
def test_every_stage_of_dense_blocks_and_mixtures_keeps_what_its_plan_says(rank: int) -> None:
    """Of a mixture whose first blocks are dense a stage has what lies on it, not as many mean blocks."""
    wide = {"hidden_size": 512, "num_heads": 8, "num_kv_heads": 8, "ffn_hidden_size": 2048, "vocab_size": 512}
    mixture = SHARED | LATENT | wide | {"num_layers": 8, "num_moe_layers": 5, "moe_ffn_hidden_size": 256}
    plan = plan_for("pp4 dp4 ep4 mbs1 zero1 layers=3,1,2,2", mixture | {"num_experts": 64}, global_batch=16)
    with fake_process_group(rank, 16), without_values(), StorageTracker() as tracker:
        engine = Engine(plan, CPU, EngineOptions(), filled=False)
        TransformerState(engine).contents()
    told = plan.prediction.rank_memory[plan.layout.place_along("pp", rank)]
    planned = told["weights"] + told["gradients"] + told["optimizer"]
    assert sum(tracker.now.values()) == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("layout", ["tp2 dp4 mbs1 zero3", "dp8 mbs1 zero2", "tp4 mbs1"])
def test_the_box_of_a_shard_is_the_one_that_torch_finds(layout: str) -> None:
    plan = plan_for(layout, GPT | {"vocab_size": 250, "vocab_multiple": 2})
    for rank in range(8 if "dp" in layout else 4):
        with built(plan, rank, filled=False) as engine:
            for parameter in engine.optimizer.parameters:
                if isinstance(parameter, DTensor):
                    shape, offset = compute_local_shape_and_global_offset(
                        parameter.shape, parameter.device_mesh, parameter.placements
                    )
                    assert box_here(parameter) == Box(tuple(offset), tuple(shape))


def counted_resume(plan: Plan, folder: Path, steps: int) -> int:
    """Elements drawn by this rank of a run that resumes."""
    drawn = []
    fill = InitialValues.fill

    def counting(self: InitialValues, name: str, shape: tuple[int, ...], box: Box, into: Tensor) -> None:
        drawn.append(box.elements)
        fill(self, name, shape, box, into)

    with mock.patch.object(InitialValues, "fill", counting):
        train_and_save(plan, folder, resume=True, steps=steps)
    return sum(drawn)


def fresh(plan: Plan, folder: Path) -> None:
    train_and_save(plan, folder, resume=False, steps=1)


def test_what_is_loaded_is_not_drawn(processes, tmp_path) -> None:
    """On another layout neither, but for rows that only pad the vocabulary; where there is nothing, all of it."""
    odd = LLAMA | {"vocab_size": 257, "vocab_multiple": 1}
    saved, width = plan_for("mbs2", odd), odd["hidden_size"]
    assert processes.run(1, counted_resume, saved, tmp_path / "none", 1)[0] > 257 * width
    processes.run(1, fresh, saved, tmp_path)
    assert processes.run(2, counted_resume, plan_for("dp2 mbs2 zero3", odd), tmp_path, 2) == [0, 0]
    assert processes.run(2, counted_resume, plan_for("tp2 mbs2", odd), tmp_path, 3) == [0, 2 * width]


def test_the_first_step_looks_at_shards_once() -> None:
    """Of one fused update torch looks through all `DTensor`s for each of them; here 24 blocks have 196 matrices and
    vectors, of which some at a time are updated together."""
    plan = plan_for("dp2 mbs2 zero3", GPT | {"num_layers": 24})
    with built(plan, 0, filled=False) as engine:
        together = [len(group["params"]) for one in engine.optimizer.optimizers for group in one.param_groups]
        assert sum(together) == len(engine.names) > 64
        assert max(together) <= 64
