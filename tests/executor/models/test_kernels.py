"""Attention from positions: masks against their definition, kernels against autograd, tiles against the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention.flex_attention import BlockMask

from executor.axes.context import Merged, tile_of_ring, tiles_of_whole, zigzag_places
from executor.models import positions as sequences
from executor.models.attention import AttentionInputs, AttentionResult, WrittenOut, kernel_for
from executor.models.positions import Visibility, WholeSequence, positions

SIGHTS = [
    Visibility(),
    Visibility(window=5),
    Visibility(window=1),
    Visibility(slopes=8, first_head=2),
    Visibility(window=3, slopes=4),
    Visibility(window=5, chunked=True),
    Visibility(window=3, chunked=True, slopes=4),
    Visibility(both_ways=True),
]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")),
]


def seen(query: int, key: int, visibility: Visibility) -> bool:
    if visibility.both_ways:
        return True
    if visibility.window is None or key > query:
        return key <= query
    if visibility.chunked:
        return key // visibility.window == query // visibility.window
    return query - key < visibility.window


@pytest.mark.parametrize("visibility", SIGHTS)
@pytest.mark.parametrize("queries", [(range(4),), (range(2, 4), range(8, 10)), (range(6, 9),)])
@pytest.mark.parametrize("keys", [(range(4),), (range(2, 4), range(8, 10)), (range(9),), (range(10, 12),)])
def test_a_query_sees_what_is_before_it_as_far_as_the_window(visibility, queries, keys) -> None:
    like = torch.zeros(())
    bias = visibility.bias(queries, keys, 4, like)
    at, of = positions(queries, like.device).tolist(), positions(keys, like.device).tolist()
    visible = [[seen(query, key, visibility) for key in of] for query in at]
    assert (bias[0, 0] > -1e30).tolist() == visible
    assert visibility.blind(queries, keys) == (not any(map(any, visible)))
    if visibility.sees_all(queries, keys):
        assert all(map(all, visible))
        assert not visibility.slopes
    if visibility.is_causal(queries, keys):
        late = len(of) - len(at)
        assert visible == [[column <= row + late for column in range(len(of))] for row in range(len(at))]
    for head in range(4 if visibility.slopes else 0):
        slope = 2.0 ** (-8.0 * (visibility.first_head + head + 1) / visibility.slopes)
        distances = [[slope * (key - query) for key in of] for query in at]
        shown = bias[0, head] > -1e30
        assert torch.allclose(bias[0, head][shown], torch.tensor(distances)[shown])


def written_out(query: Tensor, key: Tensor, value: Tensor, visibility: Visibility) -> Tensor:
    """Softmax of masked scores, for autograd to go through."""
    heads, length = query.shape[1], query.shape[2]
    groups = heads // key.shape[1]
    places = (range(length),)
    scores = query @ key.repeat_interleave(groups, 1).transpose(-1, -2) * query.shape[-1] ** -0.5
    scores = scores + visibility.bias(places, places, heads, query)
    return scores.softmax(-1) @ value.repeat_interleave(groups, 1)


def tensors(
    length: int, *, device: str = "cpu", value_width: int = 8
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value (two of four heads) and a gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, length, 8), (2, 2, length, 8), (2, 2, length, value_width), (2, 4, length, value_width)]
    query, key, value, gradient = (torch.randn(shape, generator=generator).to(device) for shape in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), gradient


def attends_as_written(sequence: WholeSequence, visibility: Visibility, length: int) -> None:
    """Output and gradients of a sequence's attention are those of the dense mask."""
    query, key, value, gradient = tensors(length)
    out = sequence.attend(query, key, value, visibility)
    expected = written_out(query, key, value, visibility)
    assert torch.allclose(out, expected, atol=1e-5)
    got = torch.autograd.grad(out, (query, key, value), gradient)
    for one, other in zip(got, torch.autograd.grad(expected, (query, key, value), gradient), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_torchs_kernel_gets_the_mask() -> None:
    """The same object for every visibility and length in turn, which keeps the last mask."""
    shared = WholeSequence()
    for visibility, length in product([*SIGHTS, *SIGHTS], (12, 12, 6)):
        attends_as_written(shared, visibility, length)


def as_defined(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_mask: BlockMask,
    enable_gqa: bool,
    score_mod: Any = None,
) -> Tensor:
    """FlexAttention by torch's own definition of it: its kernels of a CPU have no backward pass."""
    assert enable_gqa
    as_it_is = score_mod or (lambda score, *places: score)
    out: Tensor
    out, *_ = math_attention(query, key, value, as_it_is, block_mask.as_tuple(), query.shape[-1] ** -0.5, {})
    return out


def flexible(monkeypatch: pytest.MonkeyPatch, kernel: Callable[..., Tensor]) -> WholeSequence:
    """A sequence with a kernel in place of the compiled one, which wants a GPU."""
    monkeypatch.setattr(sequences, "suits_flex", lambda query: True)
    monkeypatch.setattr(sequences, "_compiled_flex", lambda: kernel)
    return WholeSequence()


def test_flex_attention_gets_the_window_and_the_slopes(monkeypatch) -> None:
    """What a GPU's kernels are told, one after the other: output and gradients are those of the dense mask."""
    sequence = flexible(monkeypatch, as_defined)
    for visibility, length in product(SIGHTS[1:-1], (12, 150)):
        attends_as_written(sequence, visibility, length)


def test_a_mask_of_blocks_leaves_out_what_a_window_hides(monkeypatch) -> None:
    """Of 1024 tokens in 8 x 8 blocks of 128, a window of 128 leaves the diagonal and the blocks beside it."""
    seen: list[BlockMask] = []

    def kernel(query: Tensor, *_: Tensor, block_mask: BlockMask, enable_gqa: bool) -> Tensor:
        seen.append(block_mask)
        return query

    query, key, value, _ = tensors(1024)
    sequence = flexible(monkeypatch, kernel)
    for _ in range(2):
        sequence.attend(query, key, value, Visibility(window=128))
    assert seen[0] is seen[1]
    assert int(seen[0].to_dense().sum()) == 8 + 7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("visibility", SIGHTS[1:])
def test_flex_attention_on_a_gpu(visibility: Visibility) -> None:
    """The compiled kernels, with 16 bits of rounding, against the dense mask."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 300, 64), (2, 2, 300, 64), (2, 2, 300, 64), (2, 4, 300, 64)]
    given = [torch.randn(shape, generator=generator).cuda().bfloat16().requires_grad_() for shape in shapes]
    *leaves, gradient = given
    out = WholeSequence().attend(leaves[0], leaves[1], leaves[2], visibility)
    wide = [leaf.detach().float().requires_grad_() for leaf in leaves]
    expected = written_out(wide[0], wide[1], wide[2], visibility)
    assert torch.allclose(out.float(), expected, atol=3e-2)
    got = torch.autograd.grad(out, leaves, gradient)
    for one, other in zip(got, torch.autograd.grad(expected, wide, gradient.float()), strict=True):
        assert torch.allclose(one.float(), other, atol=3e-2 * float(other.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value_width", [8, 4])
@pytest.mark.parametrize(("queries", "causal"), [(12, True), (5, True), (5, False)])
def test_both_passes_of_a_kernel_are_autograds(queries, causal, value_width, device) -> None:
    """Square or not, grouped heads, values as wide as keys or not: the kernel chosen and the one written out."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    near = 2e-2 if device == "cuda" else 1e-5
    query, key, value, gradient = (
        one.detach() for one in tensors(12, device=device, value_width=value_width)
    )
    query, gradient = query[:, :, -queries:], gradient[:, :, -queries:]
    leaves = [one.clone().requires_grad_() for one in (query, key, value)]
    mask = torch.ones(queries, 12, dtype=torch.bool, device=device).tril(12 - queries) if causal else None
    expected = F.scaled_dot_product_attention(*leaves, attn_mask=mask, enable_gqa=True)
    wanted = torch.autograd.grad(expected, leaves, gradient)
    met = AttentionInputs(query.to(dtype), key.to(dtype), value.to(dtype), None, causal)
    for kernel in (kernel_for(met), WrittenOut()):
        out, lse = kernel.forward(met)
        assert torch.allclose(out.float(), expected, atol=near)
        assert lse.shape == query.shape[:-1]
        found = kernel.backward(met, AttentionResult(out, lse, gradient.to(dtype)))
        for one, other in zip(found, wanted, strict=True):
            assert torch.allclose(one.float(), other, atol=10 * near)


@pytest.mark.parametrize("visibility", SIGHTS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_tiles_of_a_ring_and_of_a_gathered_sequence_make_up_the_whole(visibility, ranks) -> None:
    """Every rank's rows, merged over the tiles of either way, without any communication."""
    query, key, value, _ = (one.detach() for one in tensors(4 * ranks))
    expected = written_out(query, key, value, visibility)
    for rank in range(ranks):
        mine = positions(zigzag_places(rank, ranks, 4), query.device)
        own = query[:, :, mine]
        ring, gathered = Merged(own, value), Merged(own, value)
        for source in range(ranks):
            theirs = positions(zigzag_places(source, ranks, 4), query.device)
            tile = tile_of_ring(rank, source, ranks, 4, visibility.both_ways)
            ring.add(tile, tile.attend(visibility, own, (key[:, :, theirs], value[:, :, theirs])))
        for tile in tiles_of_whole(zigzag_places(rank, ranks, 4), visibility, 4 * ranks):
            gathered.add(tile, tile.attend(visibility, own, (key, value)))
        assert torch.allclose(ring.out, expected[:, :, mine], atol=1e-5)
        assert torch.allclose(gathered.out, expected[:, :, mine], atol=1e-5)


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_dealt_sequence_is_the_same_work_for_every_rank(ranks: int) -> None:
    """Pairs of a query and a key that it sees."""
    work = [
        sum(place + 1 for place in positions(zigzag_places(rank, ranks, 8), torch.device("cpu")).tolist())
        for rank in range(ranks)
    ]
    assert len(set(work)) == 1
    dealt_out = [place for rank in range(ranks) for run in zigzag_places(rank, ranks, 8) for place in run]
    assert sorted(dealt_out) == list(range(8 * ranks))
