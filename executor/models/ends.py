"""Ends of a model: embedding, head, and the loss in chunks.

**Loss in chunks.** The cross-entropy of the output layer takes some tokens at a time. A chunk's logits become
probabilities, these the gradient of its logits, and that is multiplied into the gradients of its hidden states and of
the output matrix before the next chunk's are made: nothing of the size of the logits is left for the backward pass,
which only scales, and no product is run twice. So do Liger-Kernel and torch 2.13's `linear_cross_entropy`; why this is
neither: docs/concepts/executor.md.

Shape legend: B batch, S sequence, T tokens, D model, V vocabulary, C tokens of a chunk.

**Copies.** Several stages hold a tied embedding, and the bias tables that the blocks of a stack share.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cost_models.specs.transformer import TransformerSpec
from executor.models.experts import ACTIVATIONS
from executor.models.positions import Sequence, WholeSequence

EMBEDDING, COPY = "embedding", "_from_"
"""Name of a tied embedding that two stages hold, and the infix in names of copied tables before the first block that
uses the copy."""
TIED = {"head.weight": "embedding.tokens.weight"}
"""Names of copies → names of their originals under tied embeddings."""


def original(name: str, *, tied: bool) -> str:
    """Name of the parameter of which `name` is another stage's copy; `name` itself if it is no copy."""
    stem, copied, _ = name.partition(COPY)
    return f"{stem}.weight" if copied else TIED.get(name, name) if tied else name


def held_by_several(spec: TransformerSpec, layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Shared parameter (tied embedding or bias table) → stages that hold it, in order; only those held by several."""
    embeds = bisect_right([*accumulate(layers)], spec.tower.layers) if spec.tower else 0
    stages_by_name = {EMBEDDING: [embeds, len(layers) - 1]} if spec.tied_embeddings else {}
    if spec.stacks is not None and spec.stacks.position_buckets:
        first, ends = spec.stacks.encoder_layers, list(accumulate(layers))
        filled = [(stage, ends[stage] - count, ends[stage]) for stage, count in enumerate(layers) if count]
        stages_by_name["encoder"] = [stage for stage, begin, _ in filled if begin < first]
        stages_by_name["decoder"] = [stage for stage, _, end in filled if end > first]
    return {name: stages for name, stages in stages_by_name.items() if len({*stages}) > 1}


class ChunkOfLogits(nn.Module):
    """Computes the logits of a chunk of tokens, their loss, and the loss's gradient with respect to them. Without
    compilation there are two fp32 copies of the logits for a moment.
    """

    def forward(self, x_CD: Tensor, weight_VD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the tokens' losses in fp32, and its gradient with respect to the logits, (C, V) in the type of the
        weights.
        """
        scores_CV = F.log_softmax(F.linear(x_CD, weight_VD).float(), dim=-1)
        targets_C1 = targets_C.unsqueeze(1)
        if torch.compiler.is_compiling():  # it fuses what is not done in place
            hits_CV = targets_C1 == torch.arange(len(weight_VD), device=targets_C.device)
            return -scores_CV.gather(1, targets_C1).sum(), (scores_CV.exp() - hits_CV.float()).to(x_CD.dtype)
        total = F.nll_loss(scores_CV, targets_C, reduction="sum")
        less_C1 = scores_CV.new_full(targets_C1.shape, -1.0)
        return total, scores_CV.exp_().scatter_add_(1, targets_C1, less_C1).to(x_CD.dtype)


def chunked_loss(
    x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, chunk: int, of_logits: ChunkOfLogits | None = None
) -> Tensor:
    """Mean cross-entropy of `x @ weight.T` in fp32, from the logits of `chunk` tokens at a time.

    `of_logits` may have been compiled. Takes one backward pass; a second one of the same graph raises RuntimeError.
    """
    how = of_logits or ChunkOfLogits()
    value: Tensor = _ChunkedLoss.apply(x_TD, weight_VD, targets_T, chunk, how)  # type: ignore[no-untyped-call]
    return value


class _ChunkedLoss(torch.autograd.Function):
    """Loss in chunks as an autograd function. Gradients wait undivided by the number of tokens: in 16 bits the
    quotients would lose the small ones.
    """

    @staticmethod
    def forward(
        ctx: Any, x_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, chunk: int, of_logits: ChunkOfLogits
    ) -> Tensor:
        """Mean loss; gradients of hidden states and output matrix are computed chunk by chunk and saved."""
        learns = any(ctx.needs_input_grad)
        total = torch.zeros((), device=x_TD.device)
        if learns:
            dx_TD, dweight_VD = torch.empty_like(x_TD), torch.zeros_like(weight_VD)
        for first in range(0, len(x_TD), chunk):
            rows = slice(first, first + chunk)
            x_CD, targets_C = x_TD[rows], targets_T[rows]
            of_chunk, gradient_CV = of_logits(x_CD, weight_VD, targets_C)
            total += of_chunk
            if learns:
                torch.mm(gradient_CV, weight_VD, out=dx_TD[rows])
                torch.addmm(dweight_VD, gradient_CV.t(), x_CD, out=dweight_VD)
            del gradient_CV  # before the next chunk's logits are made
        if learns:
            ctx.save_for_backward(dx_TD, dweight_VD)
        return total / len(x_TD)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Saved gradients of hidden states and output matrix, scaled by the loss's gradient."""
        share = gradient / len(ctx.saved_tensors[0])
        dx_TD, dweight_VD = (
            one.mul_(share) if needed else None
            for one, needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=False)
        )
        return dx_TD, dweight_VD, None, None, None


def make_norm(spec: TransformerSpec) -> nn.Module:
    """Norm of the residual stream, of the spec's kind."""
    width, epsilon = spec.hidden_size, spec.norm_epsilon
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon, bias=spec.norm_bias)


def is_gain(name: str) -> bool:
    """Whether a parameter of this name is the gain of a norm other than a gated one. Some families store those less
    one.
    """
    return name.endswith("norm.weight") and not name.endswith("gated_norm.weight")


def through(norm: nn.Module | None, x_BSD: Tensor) -> Tensor:
    """The input passed through `norm`; unchanged if it is None."""
    return x_BSD if norm is None else norm(x_BSD)


class Positions(nn.Module):
    """Learned embeddings of positions. `sequence` has the positions of this rank's tokens."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.max_positions, spec.hidden_size))
        self.sequence: Sequence = WholeSequence()
        self.first = spec.encoder.first_position if spec.encoder else 0

    def forward(self, tokens: int) -> Tensor:
        """Embeddings of the positions of this rank's `tokens` tokens, (1, S, D)."""
        runs = self.sequence.places(tokens)
        rows = [self.weight[self.first + run.start : self.first + run.stop] for run in runs]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).unsqueeze(0)


class TokenTypes(nn.Module):
    """Learned embeddings of token types; every token has the first type."""

    def __init__(self, spec: TransformerSpec, types: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, spec.hidden_size))

    def forward(self, tokens: int) -> Tensor:
        """Embedding of the first type for each token, (1, S, D)."""
        return self.weight[:1].expand(tokens, -1).unsqueeze(0)


class Embedding(nn.Module):
    """Embedding of tokens, with learned positions and token types if the spec has them."""

    def __init__(self, spec: TransformerSpec, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, spec.hidden_size)
        self.positions = Positions(spec) if spec.positions == "learned" else None
        types = spec.encoder.token_types if spec.encoder else 0
        self.types = TokenTypes(spec, types) if types else None
        self.norm = make_norm(spec) if spec.embedding_norm else None
        self.scale = spec.embedding_scale
        self.dropout = dropout

    def forward(self, tokens_BS: Tensor, images: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Vectors of tokens, (B, S) → (B, S, D). `images`: vectors of images, zero at text, and a mask that is 1 at
        text.
        """
        x_BSD: Tensor = self.tokens(tokens_BS)
        if self.scale != 1.0:
            x_BSD = x_BSD * self.scale
        if images is not None:
            x_BSD = images[0] + x_BSD * images[1]
        if self.positions is not None:
            x_BSD = x_BSD + self.positions(tokens_BS.shape[1])
        if self.types is not None:
            x_BSD = x_BSD + self.types(tokens_BS.shape[1])
        return F.dropout(through(self.norm, x_BSD), self.dropout, self.training)


class HeadTransform(nn.Module):
    """Square matrix, activation and norm before the output matrix of an encoder."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.dense = nn.Linear(spec.hidden_size, spec.hidden_size, bias=spec.mlp_bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = make_norm(spec)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Transformed hidden states, (B, S, D) → (B, S, D)."""
        normed: Tensor = self.norm(self.activation(self.dense(x_BSD)))
        return normed
