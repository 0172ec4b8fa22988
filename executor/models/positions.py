"""Positions of tokens in their sequences: masks of attention, biases and rotation that depend on them.

Positions decide which keys a query sees, the bias on its scores, and its rotation (Su et al. 2021). Rotation works on
the two halves of a head, as Llama pairs them.

A rank has all tokens of a sequence here; shared sequences are in `executor.axes.context`. Windows and ALiBi run on a
GPU by FlexAttention, which skips the blocks of scores that a window hides. There is no mask of S × S: a mask of blocks
says where to look, and a slope is subtracted as scores are made. So the cost model prices a window where a stack has a
flash kernel. The numbers are tested without a GPU, where the same functions run written out; neither the time nor the
memory of its GPU kernels has been measured for this project.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S tokens of a sequence (keys, where queries are
apart), K head width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cost_models.specs.transformer import Rotary, RotaryScaling, TransformerSpec

Position = TypeVar("Position", int, Tensor)
Places = tuple[range, ...]
"""Positions that some tokens have in the sequence, as runs in ascending order."""


def positions(places: Places, device: torch.device) -> Tensor:
    """All positions in these runs of positions, in order, (S,)."""
    return torch.cat([torch.arange(run.start, run.stop, device=device) for run in places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """Mask of attention: a query sees its own and earlier keys, as far back as `window` allows, or all with
    `both_ways`.
    """

    both_ways: bool = False
    """Whether a query sees every key, later ones included, without a bias, as in an encoder."""

    window: int | None = None
    """Number of keys that a query sees, its own included; None: all earlier ones."""
    chunked: bool = False
    """Whether the sequence is cut into chunks of `window` tokens, and a query sees only its own chunk."""
    slopes: int = 0
    """Number of heads of the full model over which ALiBi spreads its slopes (Press et al. 2021); 0: no ALiBi."""
    first_head: int = 0
    """Number, in the full model, of the first head of the tensors that are masked."""

    def first_seen(self, position: int) -> int:
        """Position of the earliest key that the query at `position` sees."""
        return 0 if self.window is None else max(0, self._edge(position, self.window))

    def blind(self, queries: Places, keys: Places) -> bool:
        """Whether no query at these places sees any key at these places."""
        if self.both_ways:
            return False
        return keys[0].start > queries[-1].stop - 1 or keys[-1].stop - 1 < self.first_seen(queries[0].start)

    def is_causal(self, queries: Places, keys: Places) -> bool:
        """Whether a causal mask is enough: the last key is the last query's own, and nothing else hides or biases
        keys.
        """
        first, last = queries[0], keys[-1]
        ends_alike = len(queries) == 1 and last.start <= first.start < last.stop == first.stop
        return not self.both_ways and self._unbiased(queries, keys) and (keys == queries or ends_alike)

    def sees_all(self, queries: Places, keys: Places) -> bool:
        """Whether every query sees every key, without a bias."""
        return self.both_ways or (self._unbiased(queries, keys) and keys[-1].stop - 1 <= queries[0].start)

    def bias(self, queries: Places, keys: Places, heads: int, like: Tensor) -> Tensor:
        """Bias that is added to the scores, (1, H or 1, Q, S), of the type and on the device of `like`.

        What must not be seen gets a number so low that nothing is left of it, but a finite one: a row that sees nothing
        here is no row of NaN, and counts for nothing beside the same row elsewhere.
        """
        at, of = (positions(places, like.device).int() for places in (queries, keys))
        distance = at[:, None] - of[None, :]
        hidden = (distance < 0) & (not self.both_ways)
        if self.window is not None:
            hidden = hidden | self.hides(at[:, None], of[None, :])
        bias = torch.zeros((), device=like.device)
        if self.slopes:
            bias = -self.slopes_of(heads, like.device)[:, None, None] * distance
        low = torch.finfo(like.dtype).min / 2
        hidden = hidden.expand(heads if self.slopes else 1, -1, -1)
        return torch.where(hidden, low, bias).to(like.dtype).unsqueeze(0)

    def hides(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the window hides a key that the causal mask does not hide, given both positions."""
        assert self.window is not None
        return key < self._edge(query, self.window)

    def slopes_of(self, heads: int, device: torch.device) -> Tensor:
        """ALiBi slopes of `heads` heads from `first_head` on, (H,)."""
        index = torch.arange(self.first_head + 1, self.first_head + heads + 1, device=device)
        return torch.as_tensor(2.0 ** (-8.0 * index.float() / self.slopes))

    def _edge(self, position: Position, window: int) -> Position:
        """First position of a query's window, which may lie before the sequence."""
        return position - position % window if self.chunked else position - window + 1

    def _unbiased(self, queries: Places, keys: Places) -> bool:
        """Whether neither a slope nor the window changes scores of these queries and keys."""
        return not self.slopes and self.first_seen(queries[-1].stop - 1) <= keys[0].start


def turning_of(spec: TransformerSpec, layer: int) -> Rotary | None:
    """Rotation of the heads of block `layer`, counted from 0, by the positions of their tokens; None: there is none."""
    rotary = spec.rotary or Rotary()
    if spec.positions != "rotary" or (rotary.pattern and not rotary.pattern[layer % len(rotary.pattern)]):
        return None
    if rotary.windowed_base is not None and spec.window_of(layer) is not None:
        return Rotary(base=rotary.windowed_base, dim=rotary.dim)
    return rotary


class Turns:
    """Rotates heads by the positions of their tokens; blocks that share a `Turns` share its cosines and sines."""

    def __init__(self) -> None:
        self._last: dict[Rotary, tuple[object, tuple[Tensor, Tensor]]] = {}

    def __call__(self, x_BHSK: Tensor, places: Places, turning: Rotary) -> Tensor:
        """Queries or keys, (B, H, S, K), rotated by the positions of their tokens."""
        turned, unturned = x_BHSK, None
        if turning.dim is not None and turning.dim < x_BHSK.shape[-1]:
            turned, unturned = x_BHSK[..., : turning.dim], x_BHSK[..., turning.dim :]
        cos_SK, sin_SK = self._tables(turned, places, turning)
        left, right = turned.chunk(2, dim=-1)
        halves = [left * cos_SK - right * sin_SK, right * cos_SK + left * sin_SK]
        return torch.cat(halves if unturned is None else [*halves, unturned], dim=-1)

    def _tables(self, like: Tensor, places: Places, turning: Rotary) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotation, (S, K/2) each, cached while positions and type stay the same. A compiled
        block computes them anew, fused with their use.
        """
        if torch.compiler.is_compiling():
            return _tables(like, places, turning)
        key = (places, like.shape[-1], like.dtype, like.device)
        last = self._last.get(turning)
        if last is None or last[0] != key:
            self._last[turning] = last = (key, _tables(like, places, turning))
        return last[1]


def _tables(like: Tensor, places: Places, turning: Rotary) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles at each position, (S, K/2) each."""
    width = like.shape[-1]
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    speeds_K = turning.base ** (-steps / width)
    if turning.scaling is not None:
        speeds_K = slowed(speeds_K, turning.scaling)
    angle = torch.outer(positions(places, like.device).float(), speeds_K)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def slowed(speeds_K: Tensor, scaling: RotaryScaling) -> Tensor:
    """Rotation speeds in radians a token, (K/2,), scaled for longer sequences as `scaling` says."""
    if scaling.kind == "linear":
        return speeds_K / scaling.factor
    turns_K = speeds_K * scaling.first_positions / (2 * math.pi)
    ramp = scaling.high_turns - scaling.low_turns
    kept_K = ((turns_K - scaling.low_turns) / ramp).clamp(0, 1) if ramp else turns_K >= scaling.low_turns
    return torch.lerp(speeds_K / scaling.factor, speeds_K, kept_K.to(speeds_K.dtype))


class Sequence(Protocol):
    """Interface of those tokens of a sequence that a rank has, for modules that depend on positions."""

    @property
    def rank(self) -> int:
        """Index of this rank among the ranks that share the sequence."""

    @property
    def ranks(self) -> int:
        """Number of ranks that share the sequence, and split its heads during a recurrence's scan."""

    def places(self, count: int) -> Places:
        """Positions of the `count` tokens that this rank has."""

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visible: Visibility) -> Tensor:
        """Attention output, (B, H, S, K), of this rank's queries over keys and values of the whole sequence."""

    def to_heads(self, *tensors_BSUW: Tensor) -> tuple[Tensor, ...]:
        """Exchange tokens for heads: each tensor (B, S / ranks, U, W) → (B, S, U / ranks, W)."""

    def to_tokens(self, mixed_BSHP: Tensor) -> Tensor:
        """Exchange heads for tokens: (B, S, H / ranks, P) → (B, S / ranks, H, P)."""


class WholeSequence:
    """A sequence of which this rank has every token; blocks that share this object share its mask."""

    rank, ranks = 0, 1

    def __init__(self) -> None:
        self._last: tuple[object, Any] = None, None
        """What a mask depends on, and the mask that was last made."""

    def places(self, count: int) -> Places:
        """Positions of all `count` tokens, from 0 on."""
        return (range(count),)

    def to_heads(self, *tensors_BSUW: Tensor) -> tuple[Tensor, ...]:
        """The tensors: this rank has all heads of all tokens."""
        return tensors_BSUW

    def to_tokens(self, mixed_BSHP: Tensor) -> Tensor:
        """The tensor: this rank has all heads of all tokens."""
        return mixed_BSHP

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visible: Visibility) -> Tensor:
        """Attention output by torch's own kernel, or on a GPU by FlexAttention for windows and ALiBi. A compiled block
        makes FlexAttention's mask anew, as a kept one would have each block compiled for itself.
        """
        places, grouped = self.places(query_BHSK.shape[2]), query_BHSK.shape[1] != key_BGSK.shape[1]
        heads = query_BHSK, key_BGSK, value_BGSK
        causal, all_seen = visible.is_causal(places, places), visible.sees_all(places, places)
        if causal or all_seen or not suits_flex(query_BHSK):
            mask = None if causal or all_seen else self._mask(_bias, visible, query_BHSK)
            how: dict[str, Any] = {"attn_mask": mask, "is_causal": causal and not all_seen}
            return F.scaled_dot_product_attention(*heads, **how, enable_gqa=grouped)
        out: Tensor
        if torch.compiler.is_compiling():
            out = flex_attention(*heads, enable_gqa=grouped, **_flexible(visible, query_BHSK))
        else:
            how = self._mask(_flexible, visible, query_BHSK)
            out = _compiled_flex()(*heads, enable_gqa=grouped, **how)
        return out

    def _mask(
        self, make: Callable[[Visibility, Tensor], Any], visible: Visibility, query_BHSK: Tensor
    ) -> Any:
        """Result of `make`, kept until the mask, the shape, the type or the device changes."""
        key = (make, visible, query_BHSK.shape[1:3], query_BHSK.dtype, query_BHSK.device)
        if self._last[0] != key:
            self._last = key, make(visible, query_BHSK)
        return self._last[1]


def _bias(visible: Visibility, query_BHSK: Tensor) -> Tensor:
    """Bias of all scores of a sequence, (1, H or 1, S, S)."""
    _, heads, tokens, _ = query_BHSK.shape
    return visible.bias((range(tokens),), (range(tokens),), heads, query_BHSK)


_NARROWEST = 16
"""Smallest width of heads that FlexAttention's kernels take."""
_DEVICES = ("cuda",)
"""Devices on which FlexAttention has kernels for both passes."""


def suits_flex(query_BHSK: Tensor) -> bool:
    """Whether to use FlexAttention: on a GPU, unless a mode watches operators, which needs a dense mask.

    A compiled block cannot ask, and torch compiles nothing that is watched.
    """
    watched = not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None
    return fits_flex(query_BHSK.device, query_BHSK.shape[-1]) and not watched


def fits_flex(device: torch.device, width: int) -> bool:
    """Whether FlexAttention has kernels for heads of this width on a device."""
    return device.type in _DEVICES and width >= _NARROWEST


@cache
def _compiled_flex() -> Callable[..., Any]:
    """FlexAttention's function, compiled at its first call and for new shapes."""
    return torch.compile(flex_attention, dynamic=False)


def _flexible(visible: Visibility, query_BHSK: Tensor) -> dict[str, Any]:
    """Arguments of FlexAttention: the block mask, and the function that biases scores."""
    _, heads, tokens, _ = query_BHSK.shape

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether a query sees a key, by causal mask and window."""
        return key <= query if visible.window is None else (key <= query) & ~visible.hides(query, key)

    mask = create_block_mask(sees, None, None, tokens, tokens, device=query_BHSK.device)
    if not visible.slopes:
        return {"block_mask": mask}
    slopes_H = visible.slopes_of(heads, query_BHSK.device)

    def biased(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Score less ALiBi's slope times the distance."""
        return score - slopes_H[head] * (query - key)

    return {"block_mask": mask, "score_mod": biased}
