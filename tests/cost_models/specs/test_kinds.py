"""Blocks of several kinds: which are alike, where they repeat, and that a stage has those that lie on it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.stages import blocks_by_policy, policy_of_blocks
from cost_models.files.loading import resolve_model
from cost_models.operators.parameters import total_parameters
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.kinds import Kinds, kinds_of

LISTS = st.lists(st.integers(0, 2), min_size=1, max_size=12)


def kinds(drawn: list[int]) -> Kinds:
    numbers: dict[int, int] = {}
    return Kinds(tuple(numbers.setdefault(one, len(numbers)) for one in drawn))


@pytest.mark.parametrize(
    ("name", "sequence", "counts", "classes"),
    [
        ("llama3-8b", 8192, (32,), 1),
        ("deepseek-v3", 4096, (3, 58), 4),  # three dense blocks, then mixtures
        ("gemma2-2b", 8192, (13, 13), 2),  # every second block has a window of 4,096
        ("gemma2-2b", 4096, (26,), 1),
        ("gemma3-1b", 4096, (22, 4), 6),
        ("llama4-maverick", 16384, (24, 12, 12), 4),
    ],
)
def test_blocks_by_kind(name: str, sequence: int, counts: tuple[int, ...], classes: int) -> None:
    model = resolve_model(name).spec
    known, each = kinds_of(model, sequence)
    assert known.counts == counts
    assert known.classes == classes
    alone = [(total_parameters(one) - total_parameters(model)) / model.num_layers for one in each]
    assert sum(count * more for count, more in zip(counts, alone, strict=True)) == pytest.approx(0, abs=1)


@given(LISTS)
def test_positions_of_a_class_are_followed_by_the_same_kinds(drawn: list[int]) -> None:
    own, last = kinds(drawn), len(drawn)
    assert set(own.class_at.tolist()) <= set(range(own.classes))
    for one in range(last + 1):
        for other in np.flatnonzero(own.class_at == own.class_at[one]).tolist():
            left = last - max(one, other)
            assert own.of_block[one : one + left] == own.of_block[other : other + left]
        for size in range(last - one + 1):
            assert own.class_after(own.class_at[one], np.array(size)) == own.class_at[one + size]


@given(LISTS, st.randoms(use_true_random=False))
def test_a_stage_has_the_next_blocks_of_the_model(drawn: list[int], random: object) -> None:
    own, rng = kinds(drawn), np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    stages = int(rng.integers(1, len(drawn) + 1))
    cuts = np.sort(rng.integers(0, len(drawn) + 1, stages - 1)).tolist()
    layers = np.diff([0, *cuts, len(drawn)]).tolist()
    mixes = [
        ["none", "full", "selective", f"full:{rng.integers(size + 1)}"][rng.integers(4)] for size in layers
    ]
    sorts = own.in_sorts(blocks_by_policy(layers, mixes)).reshape(stages, own.number, -1)
    begin = 0
    for stage, (size, mix) in enumerate(zip(layers, mixes, strict=True)):
        found = np.zeros_like(sorts[stage])
        for kind, policy in zip(own.of_block[begin : begin + size], policy_of_blocks(size, mix), strict=True):
            found[kind, RECOMPUTE_POLICIES.index(policy)] += 1
        assert (sorts[stage] == found).all()
        begin += size


def test_stages_are_weighed_from_where_their_kinds_differ_alone() -> None:
    """A thousand blocks of which the last four are mixtures: 501 stages of half of them are of five compositions, and
    stand for the classes of positions in order; where too few blocks follow, any stands."""
    kinds = Kinds(of_block=(0,) * 996 + (1,) * 4)
    starts, own = kinds.distinct_starts(500)
    assert starts.tolist() == [0, 497, 498, 499, 500]
    assert starts[own].tolist() == [0] * 497 + [497, 498, 499, 500] + [0] * (kinds.classes - 501)
    assert kinds.distinct_starts(1000)[0].tolist() == [0]
    assert kinds.distinct_starts(0)[0].tolist() == [0]
