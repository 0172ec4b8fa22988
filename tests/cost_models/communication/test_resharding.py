"""What moves between two layouts, held against every element of a small model, one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from asking import ask

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.resharding import ReshardBytes, StoredTensor, reshard
from cost_models.specs.transformer import TransformerSpec

H, FFN, VOCABULARY, EXPERTS = 16, 32, 64, 4
PER_NODE = 4
DENSE = {"name": "small", "num_layers": 4, "hidden_size": H, "num_heads": 4, "ffn_hidden_size": FFN}
DENSE |= {"vocab_size": VOCABULARY, "gated_mlp": True, "norm": "rmsnorm", "norm_bias": False}
DENSE |= {"positions": "rotary", "attention_bias": False, "mlp_bias": False}
MIXTURE = DENSE | {"num_experts": EXPERTS, "experts_per_token": 2, "moe_ffn_hidden_size": FFN}
MIXTURE |= {"tied_embeddings": False}
COLUMNS = [(H, H)] * 3
ROWS = [(H, H)]


def tensors(model: TransformerSpec) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """(how ranks share it, shape, block or None for the embedding, -1 for the head, -2 for the last norm, -3 for
    an embedding that is the head, too)."""
    for block in range(model.num_layers):
        yield from (("columns", shape, block) for shape in COLUMNS)
        yield from (("rows", shape, block) for shape in ROWS)
        yield from (("whole", (H, 1), block) for _ in range(2))
        if model.num_experts:
            yield "whole", (EXPERTS * H, 1), block  # of the router, as many rows as ranks cut evenly
            for shape in [(EXPERTS, FFN, H)] * 2 + [(EXPERTS, H, FFN)]:
                yield "experts", shape, block
        else:
            yield from (("columns", (FFN, H), block) for _ in range(2))
            yield "rows", (H, FFN), block
    yield "whole", (H, 1), -2
    yield "columns", (VOCABULARY, H), -3 if model.tied_embeddings else None
    if not model.tied_embeddings:
        yield "columns", (VOCABULARY, H), -1


def places(layout: Layout) -> list[dict[str, int]]:
    """Of every rank, counted through the axes from the inside out."""
    inside_out = layout.order.split("-")
    found = []
    for rank in range(layout.num_gpus):
        left, at = rank, {}
        for axis in inside_out:
            left, at[axis] = divmod(left, getattr(layout, axis))
        found.append(at)
    for rank, at in enumerate(found):
        same = [one for one, other in enumerate(found) if (other["pp"], other["tp"]) == (at["pp"], at["tp"])]
        stage = [one for one, other in enumerate(found) if other["pp"] == at["pp"]]
        at["replica"], at["seat"] = same.index(rank), stage.index(rank)
    return found


def cut(mask: np.ndarray, dim: int, part: int, parts: int) -> None:
    """Keep one of equal parts of what is left along a dimension."""
    left = np.flatnonzero(mask.any(axis=tuple(at for at in range(mask.ndim) if at != dim)))
    size = len(left) / parts
    keep = np.zeros(mask.shape[dim], dtype=bool)
    keep[left[round(part * size) : round((part + 1) * size)]] = True
    mask &= np.moveaxis(np.broadcast_to(keep, (*np.delete(mask.shape, dim), len(keep))), -1, dim)


def owners(
    layout: Layout, how: str, shape: tuple[int, ...], block: int | None, *, sharded: bool
) -> np.ndarray:
    """(R, ...) which elements every rank has."""
    stages = np.repeat(np.arange(layout.pp), layout.layers).tolist()
    last = layout.pp - 1
    there = {None: {0}, -1: {last}, -2: {last}, -3: {0, last}}.get(block) or {stages[block or 0]}
    found = np.zeros((layout.num_gpus, *shape), dtype=bool)
    expert_shard = int(LayoutColumns.of([layout]).expert_shard[0])
    for rank, at in enumerate(places(layout)):
        if at["pp"] not in there:
            continue
        mine = np.ones(shape, dtype=bool)
        if how == "experts":
            cut(mine, 0, at["seat"] // layout.expert_tp % layout.ep, layout.ep)
            if sharded:
                cut(mine, 1, at["seat"] // (layout.expert_tp * layout.ep) % expert_shard, expert_shard)
        else:
            if how != "whole":
                cut(mine, 0 if how == "columns" else 1, at["tp"], layout.tp)
            if sharded:
                cut(mine, 0, at["replica"] % layout.shard_group, layout.shard_group)
        found[rank] = mine
    return found


def moved(
    model: TransformerSpec, first: str, second: str, kept: tuple[StoredTensor, ...]
) -> tuple[ReshardBytes, np.ndarray]:
    """What is priced, and (R, 4) elements there, needed, received by each rank and received by its node from others."""
    question = ask(model, "dgx-h100", stack="meshwright", global_batch=16, sequence_length=32)
    layouts = [parse_layout(first), parse_layout(second)]
    ranks = max(one.num_gpus for one in layouts)
    found = np.zeros((ranks, 4))
    for one in kept:
        for how, shape, block in tensors(model):
            masks = []
            for layout in layouts:
                mask = np.zeros((ranks, *shape), dtype=bool)
                mask[: layout.num_gpus] = owners(
                    layout, how, shape, block, sharded=layout.zero >= one.from_stage
                )
                masks.append(mask.reshape(ranks, -1))
            have, want = masks
            need = want & ~have
            found[:, :3] += one.bytes_each * np.stack([have.sum(1), want.sum(1), need.sum(1)], axis=1)
            for start in range(0, ranks, PER_NODE):
                node = slice(start, start + PER_NODE)
                found[start, 3] += one.bytes_each * (need[node].any(0) & ~have[node].any(0)).sum()
    return reshard(question, layouts[0], layouts[1], kept, PER_NODE), found


WEIGHTS = (StoredTensor(bytes_each=2.0, from_stage=3),)
STATES = (*WEIGHTS, StoredTensor(bytes_each=12.0, from_stage=1))


@pytest.mark.parametrize("kept", [WEIGHTS, STATES])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("tp2 dp4 mbs1 zero3 layers=4", "tp2 dp4 mbs1 zero3 layers=4"),  # moves nothing
        ("tp2 pp2 dp2 mbs1 zero1 layers=2,2", "dp8 mbs1 zero3 layers=4"),
        ("dp8 mbs1 zero3 layers=4", "tp4 dp2 mbs1 zero0 layers=4"),
        ("pp4 dp2 mbs1 zero2 layers=1*4", "tp2 pp2 dp2 mbs1 zero3 layers=3,1"),
        ("tp2 cp2 dp4 mbs1 zero3 shard4 layers=4 order=tp-dp-cp-pp", "tp4 dp2 mbs1 zero1 layers=4"),
        ("dp4 mbs1 zero3 layers=4", "tp2 dp8 mbs1 zero3 layers=4"),
    ],
)
def test_every_element_of_a_dense_model(first: str, second: str, kept: tuple[StoredTensor, ...]) -> None:
    hold(*moved(TransformerSpec.model_validate(DENSE), first, second, kept))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("dp8 ep4 mbs1 zero3 layers=4", "tp2 dp4 ep2 etp1 mbs1 zero0 layers=4"),
        ("pp2 dp4 ep2 mbs1 zero1 layers=2,2", "dp8 ep4 mbs1 zero3 layers=4"),
    ],
)
def test_every_element_of_a_mixture(first: str, second: str) -> None:
    hold(*moved(TransformerSpec.model_validate(MIXTURE), first, second, STATES))


def hold(found: ReshardBytes, counted: np.ndarray) -> None:
    there, needed, received, crossed = counted.T
    assert found.there == pytest.approx(there)
    assert found.needed == pytest.approx(needed)
    assert found.received_total == pytest.approx(received)
    of_nodes = found.received.reshape(-1, PER_NODE).sum(axis=1)
    assert of_nodes == pytest.approx(crossed[::PER_NODE])
    assert found.sent.sum() == pytest.approx(found.received.sum())
    inside = [one.reshape(-1, PER_NODE).sum(axis=1) for one in (found.sent_inside, found.received_inside)]
    assert inside[0] == pytest.approx(inside[1])
