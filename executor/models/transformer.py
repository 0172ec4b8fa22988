"""The transformer of a `TransformerSpec`, or the slice of it that one pipeline stage holds.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K head width, F feed-forward,
V vocabulary.
Under tensor parallelism H, G, F and V are this rank's share; the module reads them off its tensors.
Blocks are named by their place in the whole model, so a parameter has one name in every layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec
from executor.models.attention import Attention
from executor.models.chunked_loss import chunked_loss
from executor.models.experts import ExpertPlace, Mixture
from executor.models.feed_forward import FeedForward
from executor.models.latent import LatentAttention
from executor.models.sequence import Sequence, WholeSequence

NORM_EPSILON = 1e-5


def make_norm(spec: TransformerSpec, width: int) -> nn.Module:
    """The spec's normalisation."""
    kind = nn.LayerNorm if spec.norm == "layernorm" else nn.RMSNorm
    return kind(width, eps=NORM_EPSILON)


class Block(nn.Module):
    """Pre-norm block: attention and feed-forward, each added to the residual stream.

    With `parallel_block` both read the one norm's output and what they found is added at once; `fork` and `join` do
    nothing but mark where.

    With `experts`, which says what of them is on this rank, the feed-forward is a mixture. `layer` is its place in the
    model, on which its window depends.
    """

    def __init__(
        self, spec: TransformerSpec, dropout: float, experts: ExpertPlace | None = None, layer: int = 0
    ) -> None:
        super().__init__()
        self.attention_norm = make_norm(spec, spec.hidden_size)
        self.attention = LatentAttention(spec, layer) if spec.latent_attention else Attention(spec, layer)
        self.mlp_norm = None if spec.parallel_block else make_norm(spec, spec.hidden_size)
        self.mlp = FeedForward(spec) if experts is None else Mixture(spec, experts)
        self.fork = nn.Identity() if spec.parallel_block else None
        self.join = nn.Identity() if spec.parallel_block else None
        self.dropout = dropout

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        if self.mlp_norm is None:
            return self._side_by_side(x_BSD)
        x_BSD = x_BSD + F.dropout(self.attention(self.attention_norm(x_BSD)), self.dropout, self.training)
        return x_BSD + F.dropout(self.mlp(self.mlp_norm(x_BSD)), self.dropout, self.training)

    def _side_by_side(self, x_BSD: Tensor) -> Tensor:
        assert self.fork is not None
        assert self.join is not None
        normed_BSD = self.fork(self.attention_norm(x_BSD))
        found_BSD: Tensor = self.join(self.attention(normed_BSD) + self.mlp(normed_BSD))
        return x_BSD + F.dropout(found_BSD, self.dropout, self.training)


class Positions(nn.Module):
    """A learned table of positions, of which `sequence` says those that this rank has tokens of."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.max_positions, spec.hidden_size))
        self.sequence: Sequence = WholeSequence()

    def forward(self, tokens: int) -> Tensor:
        """(1, S, D)."""
        rows = [self.weight[run.start : run.stop] for run in self.sequence.places(tokens)]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).unsqueeze(0)


class Embedding(nn.Module):
    """Tokens, and learned positions where the spec has them."""

    def __init__(self, spec: TransformerSpec, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, spec.hidden_size)
        self.positions = Positions(spec) if spec.positions == "learned" else None
        self.dropout = dropout

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """(B, S) token numbers → (B, S, D)."""
        x_BSD: Tensor = self.tokens(tokens_BS)
        if self.positions is not None:
            x_BSD = x_BSD + self.positions(tokens_BS.shape[1])
        return F.dropout(x_BSD, self.dropout, self.training)


class Transformer(nn.Module):
    """Blocks `first` to `first + count − 1`; the embedding with the first block, norm and head with the last.

    `experts` says which experts of the mixtures are here (all of them unless said). The head is tied to the embedding
    where both are here; a pipeline stage that holds only one of them keeps its own copy, which `executor.apply.tied`
    keeps equal. With a `loss_chunk` the last stage takes the targets too and answers with their loss.
    """

    def __init__(
        self,
        spec: TransformerSpec,
        *,
        vocabulary: int,
        dropout: float = 0.0,
        first: int = 0,
        count: int | None = None,
        has_embedding: bool = True,
        has_head: bool = True,
        experts: ExpertPlace | None = None,
        loss_chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.loss_chunk = loss_chunk
        count = spec.num_layers if count is None else count
        place = experts or ExpertPlace()
        self.embedding = Embedding(spec, vocabulary, dropout) if has_embedding else None
        self.blocks = nn.ModuleDict(
            {
                str(layer): Block(spec, dropout, place if spec.is_mixture(layer) else None, layer)
                for layer in range(first, first + count)
            }
        )
        self.norm = make_norm(spec, spec.hidden_size) if has_head else None
        self.head = nn.Linear(spec.hidden_size, vocabulary, bias=False) if has_head else None
        if spec.tied_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, x: Tensor, targets_BS: Tensor | None = None) -> Tensor:
        """(B, S) tokens on the first stage, else (B, S, D); returns (B, S, D), on the last stage (B, S, V).

        The last stage makes of targets their mean loss, `loss_chunk` tokens at a time; others have no use for them.
        """
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is None or self.head is None:
            return x
        x = self.norm(x)
        if targets_BS is None or self.loss_chunk is None:
            logits_BSV: Tensor = self.head(x)
            return logits_BSV
        # here, not outside: only inside a forward pass does `fully_shard` promise that the weight is gathered
        return chunked_loss(x.flatten(0, 1), self.head.weight, targets_BS.flatten(), self.loss_chunk)
