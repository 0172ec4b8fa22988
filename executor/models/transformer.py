"""The transformer of a `TransformerSpec`, or the slice of it that one pipeline stage holds.

Under tensor parallelism H, G, F and V are this rank's share; the module reads them off its tensors. Blocks are named by
their place in the whole model, so a parameter has one name in every layout. Initial weights depend on that name only,
so every layout starts from the same model.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K head width, F feed-forward, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec
from executor.models.attention import Attention, LatentAttention
from executor.models.chunked_loss import ChunkOfLogits, chunked_loss
from executor.models.experts import ExpertPlace, MoE
from executor.models.feed_forward import ACTIVATIONS, FeedForward
from executor.models.recurrence import StateMixer
from executor.models.sequence import Sequence, WholeSequence


def _nothing(child: str) -> None:
    """Do nothing: all weights are on the device."""


def make_norm(spec: TransformerSpec) -> nn.Module:
    """The spec's normalisation, over the residual stream."""
    width, epsilon = spec.hidden_size, spec.norm_epsilon
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon, bias=spec.norm_bias)


class Block(nn.Module):
    """What mixes tokens and feed-forward, each added to the residual stream, with norms before, after or around, or
    over the sums.

    Attention mixes them, or a recurrence, as the spec says of the layer; where halves are separate a block has one.

    With `parallel_block` both read the stream side by side, through one norm or two, and what they found is added at
    once; `fork` and `join` do nothing but mark where the one norm's output is shared, and where it is added.

    With `experts`, which says what of them is on this rank, the feed-forward is a mixture. `layer` is its place in the
    model, on which its window depends.
    """

    def __init__(
        self, spec: TransformerSpec, dropout: float, experts: ExpertPlace | None = None, layer: int = 0
    ) -> None:
        super().__init__()
        before, after = spec.norm_placement in ("before", "around"), spec.norm_placement != "before"
        mixer = spec.mixer_of(layer)
        mixes, feeds = mixer != "none", mixer == "none" or not spec.separate_halves
        self.attention_norm = make_norm(spec) if before and mixes else None
        self.attention: Attention | LatentAttention | None = None
        if mixer in ("attention", "both"):
            self.attention = LatentAttention(spec, layer) if spec.latent_attention else Attention(spec, layer)
        self.recurrence = StateMixer(spec) if mixer in ("recurrence", "both") else None
        self.attention_post_norm = make_norm(spec) if after and mixes else None
        self.mlp_norm = make_norm(spec) if before and feeds and not spec.forked else None
        self.mlp: FeedForward | MoE | None = None
        if feeds:
            self.mlp = FeedForward(spec) if experts is None else MoE(spec, experts)
        self.mlp_post_norm = make_norm(spec) if after and feeds else None
        self.fork = nn.Identity() if spec.forked else None
        self.join = nn.Identity() if spec.parallel_block else None
        self.norms_sums = spec.norm_placement == "after-sum"
        self.dropout, self.scale = dropout, spec.residual_scale

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        if self.norms_sums:
            assert self.attention is not None
            assert self.mlp is not None
            x_BSD = _through(self.attention_post_norm, x_BSD + self._dropped(self.attention(x_BSD)))
            return _through(self.mlp_post_norm, x_BSD + self._dropped(self.mlp(x_BSD)))
        if self.join is not None:
            return x_BSD + self._dropped(self._side_by_side(x_BSD))
        if self.attention is not None or self.recurrence is not None:
            # what it found has no name here, which would keep it until the end
            x_BSD = x_BSD + self._mixed(x_BSD)
        if self.mlp is None:
            return x_BSD
        return x_BSD + self._dropped(_through(self.mlp_post_norm, self.mlp(_through(self.mlp_norm, x_BSD))))

    def _mixed(self, x_BSD: Tensor) -> Tensor:
        normed_BSD = _through(self.attention_norm, x_BSD)
        halves = [mix(normed_BSD) for mix in (self.attention, self.recurrence) if mix is not None]
        found_BSD = halves[0] if len(halves) == 1 else halves[0] + halves[1]
        return self._dropped(_through(self.attention_post_norm, found_BSD))

    def _side_by_side(self, x_BSD: Tensor) -> Tensor:
        assert self.join is not None
        assert self.attention is not None
        assert self.mlp is not None
        normed_BSD = _through(self.attention_norm, x_BSD)
        if self.fork is not None:
            normed_BSD = self.fork(normed_BSD)
        found_BSD = self.attention(normed_BSD)
        found_BSD = found_BSD + self.mlp(normed_BSD if self.mlp_norm is None else self.mlp_norm(x_BSD))
        joined: Tensor = self.join(found_BSD)
        return joined

    def _dropped(self, x_BSD: Tensor) -> Tensor:
        x_BSD = F.dropout(x_BSD, self.dropout, self.training)
        return x_BSD if self.scale == 1.0 else x_BSD * self.scale


def _through(norm: nn.Module | None, x_BSD: Tensor) -> Tensor:
    """The input, through the norm where there is one."""
    return x_BSD if norm is None else norm(x_BSD)


class Positions(nn.Module):
    """A learned table of positions, of which `sequence` says those that this rank has tokens of."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.max_positions, spec.hidden_size))
        self.sequence: Sequence = WholeSequence()
        self.first = spec.encoder.first_position if spec.encoder else 0

    def forward(self, tokens: int) -> Tensor:
        """(1, S, D)."""
        rows = [
            self.weight[self.first + run.start : self.first + run.stop]
            for run in self.sequence.places(tokens)
        ]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).unsqueeze(0)


class TokenTypes(nn.Module):
    """A table of types of tokens, of which each token is of the first."""

    def __init__(self, spec: TransformerSpec, types: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, spec.hidden_size))

    def forward(self, tokens: int) -> Tensor:
        """(1, S, D)."""
        return self.weight[:1].expand(tokens, -1).unsqueeze(0)


class Embedding(nn.Module):
    """Tokens, and learned positions and types of tokens where the spec has them."""

    def __init__(self, spec: TransformerSpec, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, spec.hidden_size)
        self.positions = Positions(spec) if spec.positions == "learned" else None
        types = spec.encoder.token_types if spec.encoder else 0
        self.types = TokenTypes(spec, types) if types else None
        self.norm = make_norm(spec) if spec.embedding_norm else None
        self.scale = spec.embedding_scale
        self.dropout = dropout

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """(B, S) token numbers → (B, S, D)."""
        x_BSD: Tensor = self.tokens(tokens_BS)
        if self.scale != 1.0:
            x_BSD = x_BSD * self.scale
        if self.positions is not None:
            x_BSD = x_BSD + self.positions(tokens_BS.shape[1])
        if self.types is not None:
            x_BSD = x_BSD + self.types(tokens_BS.shape[1])
        return F.dropout(_through(self.norm, x_BSD), self.dropout, self.training)


class HeadTransform(nn.Module):
    """A square matrix, the activation and a norm before the output matrix of an encoder."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.dense = nn.Linear(spec.hidden_size, spec.hidden_size, bias=spec.mlp_bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = make_norm(spec)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        normed: Tensor = self.norm(self.activation(self.dense(x_BSD)))
        return normed


class Transformer(nn.Module):
    """A run of blocks, all by default; the embedding with the first block, norm and head with the last.

    `experts` says which experts of the mixtures are here (all of them unless said). The head is tied to the embedding
    where both are here; a pipeline stage that holds only one of them keeps its own copy, which `executor.axes.pipeline`
    keeps equal. With a `loss_chunk` the last stage takes the targets too and answers with their loss.
    """

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        vocabulary: int,
        dropout: float = 0.0,
        blocks: range | None = None,
        has_embedding: bool = True,
        has_head: bool = True,
        experts: ExpertPlace | None = None,
        loss_chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.loss_chunk = loss_chunk
        self.of_logits = ChunkOfLogits() if has_head and loss_chunk is not None else None
        self.before: Callable[[str], None] = _nothing
        """Called with the name of the embedding, each block (`blocks.3`) and the head before it computes.
        """
        place = experts or ExpertPlace()
        self.embedding = Embedding(spec, vocabulary, dropout) if has_embedding else None
        self.blocks = nn.ModuleDict(
            {
                str(layer): Block(spec, dropout, place if spec.is_mixture(layer) else None, layer)
                for layer in (range(spec.num_layers) if blocks is None else blocks)
            }
        )
        self.norm = make_norm(spec) if has_head and spec.ends_in_norm else None
        transforms = has_head and spec.encoder is not None and spec.encoder.head_transform
        self.transform = HeadTransform(spec) if transforms else None
        self.logit_scale, self.vocabulary = spec.logit_scale, spec.vocab_size
        self.head = nn.Linear(spec.hidden_size, vocabulary, bias=spec.head_bias) if has_head else None
        if spec.tied_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        """(B, S) tokens on the first stage, else (B, S, D); returns (B, S, D), on the last stage (B, S, V).

        The last stage makes of targets their mean loss, `loss_chunk` tokens at a time; others have no use for them.
        """
        if self.embedding is not None:
            self.before("embedding")
            x = self.embedding(x)
        for layer, block in self.blocks.items():
            self.before(f"blocks.{layer}")
            x = block(x)
        if self.head is None:
            return x
        self.before("head")
        x = _through(self.transform, _through(self.norm, x))
        if self.logit_scale != 1.0:
            x = x * self.logit_scale
        if targets_BS is None or self.loss_chunk is None:
            logits_BSV: Tensor = self.head(x)
            return logits_BSV
        # here, not outside: only inside a forward pass does `fully_shard` promise that the weight is gathered
        rows_TD, targets_T = x.flatten(0, 1), targets_BS.flatten()
        weight_VD = self.head.weight
        if len(weight_VD) > self.vocabulary:  # padded
            weight_VD = weight_VD[: self.vocabulary]
        return chunked_loss(rows_TD, weight_VD, targets_T, self.loss_chunk, self.of_logits)
