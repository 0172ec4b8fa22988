"""A transformer of blocks between embedding and head, with a vision tower where the spec has one.

**Towers.** Patches of images go through a vision tower's blocks, and what these return stands at the first places of
the decoder's sequence (LLaVA: Liu et al. 2023, arXiv 2304.08485).

Shape legend: B samples, N images of all samples, C channels, X rows and columns of pixels, P tokens of an image, E
width of the tower, F features that an image gives the decoder, D width of the decoder, S sequence.

**The model** is that of a `TransformerSpec`, or the slice of it that one pipeline stage holds. Under tensor parallelism
H, G, F and V are this rank's share; the module reads them off its tensors. Blocks are named by their place in the whole
model, so a parameter has one name in every layout. Initial weights depend on that name only, so every layout starts
from the same model.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K head width, F feed-forward, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.kinds import decoder_of, tower_of
from cost_models.specs.transformer import Tower, TransformerSpec
from executor.models.attention import Attention, Distances, LatentAttention
from executor.models.ends import (
    COPY,
    EMBEDDING,
    ChunkOfLogits,
    Embedding,
    HeadTransform,
    chunked_loss,
    make_norm,
    through,
)
from executor.models.experts import ACTIVATIONS, ExpertPlace, FeedForward, MoE
from executor.models.recurrence import StateMixer


def _norm(tower: Tower, width: int, *, is_used: bool) -> nn.Module | None:
    """Norm of a vision tower's kind; None if it is not used."""
    kind = nn.RMSNorm if tower.norm == "rmsnorm" else nn.LayerNorm
    return kind(width, eps=tower.norm_epsilon) if is_used else None


class Patches(nn.Module):
    """Embedding of images: a product for each square of pixels, a class token in front, and learned positions.

    The product is the convolution whose steps are as wide as its kernel.
    """

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        width, self.patch = tower.hidden_size, tower.patch
        self.matrix = nn.Linear(tower.pixels, width, bias=tower.patch_bias)
        self.class_token = nn.Parameter(torch.empty(width)) if tower.class_token else None
        self.positions = nn.Embedding(tower.tokens, width)
        self.norm = _norm(tower, width, is_used=tower.norm_before)

    def forward(self, images_BICXX: Tensor) -> Tensor:
        """Vectors (N, P, E) of images (B, images of a sample, C, X, X)."""
        rows = torch.unflatten(images_BICXX.flatten(0, 1), 3, (-1, self.patch))
        rows = torch.unflatten(rows, 2, (-1, self.patch))
        pixels = rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x_NPE: Tensor = self.matrix(pixels.to(self.matrix.weight.dtype))
        if self.class_token is not None:
            x_NPE = torch.cat([self.class_token.expand(len(x_NPE), 1, -1), x_NPE], dim=1)
        x_NPE = x_NPE + self.positions.weight
        return x_NPE if self.norm is None else self.norm(x_NPE)


class Projector(nn.Module):
    """Joins or averages neighbouring patches of a vision tower's output, and projects them to the decoder's width."""

    def __init__(self, tower: Tower, width: int) -> None:
        super().__init__()
        self.tower, bias = tower, tower.projector_bias
        inner = tower.projector_hidden_size or tower.projector_inputs
        self.norm = _norm(tower, tower.projector_inputs, is_used=tower.projector_norm)
        self.up = nn.Linear(tower.projector_inputs, inner, bias=bias) if tower.projector_hidden_size else None
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[tower.projector_activation]

    def forward(self, x_NPE: Tensor) -> Tensor:
        """Features (N, F, D) for the decoder, from the tower's outputs (N, P, E)."""
        x, side = x_NPE[:, int(self.tower.class_token) :], self.tower.merge
        if side > 1:
            squares = torch.unflatten(x, 1, (-1, side, self.tower.image // self.tower.patch // side, side))
            squares = squares.transpose(2, 3)
            x = (squares.mean((3, 4)) if self.tower.pools else squares.flatten(3)).flatten(1, 2)
        x = x if self.norm is None else self.norm(x)
        output: Tensor = self.down(x if self.up is None else self.activation(self.up(x)))
        return output


class Placing(nn.Module):
    """Puts features of images at the first places of a sequence, and marks where its text is."""

    def forward(self, features_NFD: Tensor, samples: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Features at their places in sequences, (B, S, D), zero at text; and a mask that is 1 at text, (1, S, 1)."""
        features_BFD = torch.unflatten(features_NFD, 0, (samples, -1)).flatten(1, 2)
        image_tokens = features_BFD.shape[1]
        text_S = torch.arange(tokens, device=features_BFD.device) >= image_tokens
        placed_BSD = F.pad(features_BFD, (0, 0, 0, tokens - image_tokens))
        return placed_BSD, text_S.to(placed_BSD.dtype).view(1, -1, 1)


def _nothing(child: str) -> None:
    """Do nothing: the default of `Transformer.on_part`, where weights are always on the device."""


class Block(nn.Module):
    """Block of attention or recurrence and an MLP, each added to the residual stream.

    The spec says for each layer whether attention or a recurrence mixes tokens; where halves are separate, a block has
    either a mixer or an MLP. Norms lie before the halves, after them, around them, or over the sums.

    With `parallel_block` both halves read the stream side by side, through one norm or two, and their outputs are added
    at once; `fork` and `join` do nothing but mark where the one norm's output is shared, and where outputs are added.

    In a decoder behind an encoder, attention to the encoder's output, the source, lies between the halves.

    With `experts`, the experts that are on this rank, the MLP is a mixture. `layer` is the block's place in the model,
    on which its window depends.
    """

    def __init__(
        self, spec: TransformerSpec, dropout: float, experts: ExpertPlace | None = None, layer: int = 0
    ) -> None:
        super().__init__()
        pre_norm, post_norm = (spec.norm_placement in ("before", "around"), spec.norm_placement != "before")
        mixer = spec.mixer_of(layer)
        mixes, feeds = mixer != "none", mixer == "none" or not spec.separate_halves
        self.attention_norm = make_norm(spec) if pre_norm and mixes else None
        self.attention: Attention | LatentAttention | None = None
        if mixer in ("attention", "both"):
            self.attention = LatentAttention(spec, layer) if spec.latent_attention else Attention(spec, layer)
        self.recurrence = StateMixer(spec) if mixer in ("recurrence", "both") else None
        self.attention_post_norm = make_norm(spec) if post_norm and mixes else None
        crosses = spec.stacks is not None and not spec.encodes(layer)
        self.cross_norm = make_norm(spec) if crosses else None
        self.cross = Attention(spec, layer, crosses=True) if crosses else None
        self.mlp_norm = make_norm(spec) if pre_norm and feeds and not spec.shares_norm else None
        self.mlp: FeedForward | MoE | None = None
        if feeds:
            self.mlp = FeedForward(spec) if experts is None else MoE(spec, experts)
        self.mlp_post_norm = make_norm(spec) if post_norm and feeds else None
        self.fork = nn.Identity() if spec.shares_norm else None
        self.join = nn.Identity() if spec.parallel_block else None
        self.norms_sums = spec.norm_placement == "after-sum"
        self.dropout, self.scale = dropout, spec.residual_scale

    def forward(self, x_BSD: Tensor, source: Tensor | None = None, *, table: Tensor | None = None) -> Tensor:
        """Residual stream after the block, (B, S, D). `source` is the encoder's output, `table` has biases of
        scores.
        """
        if self.norms_sums:
            assert self.attention is not None
            assert self.mlp is not None
            x_BSD = through(self.attention_post_norm, x_BSD + self._dropped(self.attention(x_BSD)))
            return through(self.mlp_post_norm, x_BSD + self._dropped(self.mlp(x_BSD)))
        if self.join is not None:
            return x_BSD + self._dropped(self._side_by_side(x_BSD))
        if self.attention is not None or self.recurrence is not None:
            # what it found has no name here, which would keep it until the end
            x_BSD = x_BSD + self._mixed(x_BSD, **({} if table is None else {"table": table}))
        if self.cross is not None:
            x_BSD = x_BSD + self._dropped(self.cross(through(self.cross_norm, x_BSD), source))
        if self.mlp is None:
            return x_BSD
        return x_BSD + self._dropped(through(self.mlp_post_norm, self.mlp(through(self.mlp_norm, x_BSD))))

    def _mixed(self, x_BSD: Tensor, **biased: Tensor) -> Tensor:
        """Output of attention, recurrence or both, to be added to the residual stream."""
        normed_BSD = through(self.attention_norm, x_BSD)
        halves = [mix(normed_BSD, **biased) for mix in (self.attention, self.recurrence) if mix is not None]
        found_BSD = halves[0] if len(halves) == 1 else halves[0] + halves[1]
        return self._dropped(through(self.attention_post_norm, found_BSD))

    def _side_by_side(self, x_BSD: Tensor) -> Tensor:
        """Sum of the outputs of attention and MLP, which both read the residual stream."""
        assert self.join is not None
        assert self.attention is not None
        assert self.mlp is not None
        normed_BSD = through(self.fork, through(self.attention_norm, x_BSD))
        sums_BSD = self.attention(normed_BSD)
        sums_BSD = sums_BSD + self.mlp(normed_BSD if self.mlp_norm is None else self.mlp_norm(x_BSD))
        joined: Tensor = self.join(sums_BSD)
        return joined

    def _dropped(self, x_BSD: Tensor) -> Tensor:
        """Output of a block's half after dropout and scaling, to be added to the residual stream."""
        x_BSD = F.dropout(x_BSD, self.dropout, self.training)
        return x_BSD if self.scale == 1.0 else x_BSD * self.scale


def _block(spec: TransformerSpec, layer: int, dropout: float, place: ExpertPlace) -> Block:
    """Block at place `layer` of the model, in its vision tower or its decoder."""
    first = spec.tower.layers if spec.tower else 0
    if layer < first:
        return Block(tower_of(spec), 0.0, None, layer)
    decoder = decoder_of(spec)
    return Block(decoder, dropout, place if decoder.is_mixture(layer - first) else None, layer - first)


class Transformer(nn.Module):
    """A transformer, or the slice of it on one pipeline stage: a run of blocks, with embedding or head if it has them.

    The first stage is given tokens of one sequence, or of an encoder's and a decoder's; a later one the hidden states
    of the stage before. With two stacks these are of both sequences on every stage, and the first stage embeds both;
    the encoder's norm is with its last block, and each slice has a table of biases for its blocks of a stack.

    `experts` says which experts of the mixtures are here; None is all of them. The head is tied to the embedding where
    both are here; a pipeline stage that holds only one of them keeps its own copy, which `executor.axes.pipeline` keeps
    equal. With a `loss_chunk` the last stage takes the targets as well and returns their loss.
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
        self.on_part: Callable[[str], None] = _nothing
        """Called with the name of the embedding, a block (`blocks.3`) or the head before that part computes."""
        place = experts or ExpertPlace()
        layers = range(spec.num_layers) if blocks is None else blocks
        self.decoding = spec.tower.layers if spec.tower else 0
        """Number of the first block behind a vision tower."""
        joins = spec.tower is not None and self.decoding in layers
        self.patches = Patches(spec.tower) if spec.tower and has_embedding else None
        tower = spec.tower if joins else None
        self.tower_norm = _norm(tower, tower.hidden_size, is_used=tower.norm_after) if tower else None
        self.projector = Projector(tower, spec.hidden_size) if tower else None
        self.placing = Placing() if joins else None
        self.has_tower = spec.tower is not None and layers.start <= self.decoding
        """Whether this slice receives images, or tokens of images."""
        has_embedding = joins if spec.tower else has_embedding
        self.embedding = Embedding(spec, vocabulary, dropout) if has_embedding else None
        self.blocks = nn.ModuleDict({str(layer): _block(spec, layer, dropout, place) for layer in layers})
        self.encoder_layers = spec.stacks.encoder_layers if spec.stacks else 0
        ends_encoder = self.encoder_layers > 0 and self.encoder_layers - 1 in layers
        self.encoder_norm = make_norm(spec) if ends_encoder else None
        self.distances = nn.ModuleDict()
        if spec.stacks is not None and spec.stacks.position_buckets:
            for stack, first in (("encoder", 0), ("decoder", self.encoder_layers)):
                if stack_layers := [layer for layer in layers if spec.encodes(layer) == (stack == "encoder")]:
                    name = stack if stack_layers[0] == first else f"{stack}{COPY}{stack_layers[0]}"
                    self.distances[name] = Distances(spec)
        self.norm = make_norm(spec) if has_head and spec.ends_in_norm else None
        transforms = has_head and spec.encoder is not None and spec.encoder.head_transform
        self.transform = HeadTransform(spec) if transforms else None
        self.logit_scale, self.vocabulary = spec.logit_scale, spec.vocab_size
        self.head = nn.Linear(spec.hidden_size, vocabulary, bias=spec.head_bias) if has_head else None
        if spec.tied_embeddings and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.tokens.weight

    def forward(
        self, *inputs: Tensor, tokens_BS: Tensor | None = None, targets_BS: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Hidden states (B, S, D) for the next stage, or on the last stage logits (B, S, V) or the mean loss.

        The first stage takes tokens (B, S) of each sequence, later ones hidden states (B, S, D). Before a vision tower
        images, then their tokens (`executor.models.transformer`); the text's tokens come by name. The last stage makes
        of targets their mean loss, `loss_chunk` tokens at a time; others have no use for them.
        """
        if self.has_tower:
            inputs = (self._through_tower(inputs[0], tokens_BS),)
        elif self.embedding is not None:
            self.on_part("embedding")
            inputs = tuple(self.embedding(one) for one in inputs)
        *source, x = inputs
        if source:
            source[0], x = self._two_stacks(source[0], x)
        else:
            for layer, block in self.blocks.items():
                if int(layer) >= self.decoding:
                    self.on_part(f"blocks.{layer}")
                    x = block(x)
        if self.head is None:
            return (*source, x) if source else x
        self.on_part("head")
        x = through(self.transform, through(self.norm, x))
        if self.logit_scale != 1.0:
            x = x * self.logit_scale
        if targets_BS is None or self.loss_chunk is None:
            logits_BSV: Tensor = self.head(x)
            return logits_BSV
        # here, not outside: only inside a forward pass does `fully_shard` promise that the weight is gathered
        rows_TD, targets_T, weight_VD = x.flatten(0, 1), targets_BS.flatten(), self.head.weight
        if len(weight_VD) > self.vocabulary:  # padded
            weight_VD = weight_VD[: self.vocabulary]
        return chunked_loss(rows_TD, weight_VD, targets_T, self.loss_chunk, self.of_logits)

    def _through_tower(self, x: Tensor, tokens_BS: Tensor | None) -> Tensor:
        """Pass images, or the image tokens of the stage before, through this slice's vision tower blocks. Where the
        decoder begins, place them in the sequence.
        """
        if self.patches is not None:
            self.on_part("embedding")
            x = self.patches(x)
        for layer, block in self.blocks.items():
            if int(layer) < self.decoding:
                self.on_part(f"blocks.{layer}")
                x = block(x)
        if self.embedding is None or self.projector is None or self.placing is None:
            return x
        assert tokens_BS is not None
        self.on_part("embedding")
        placed_features = self.placing(self.projector(through(self.tower_norm, x)), *tokens_BS.shape)
        embedded: Tensor = self.embedding(tokens_BS, placed_features)
        return embedded

    def _two_stacks(self, source: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pass the encoder's and the decoder's hidden states through this slice's blocks. Returned are new tensors, as
        a tensor returned as received has no gradient to be split.
        """
        tables = {name.partition(COPY)[0]: table() for name, table in self.distances.items()}
        inputs = source, x
        for layer, block in self.blocks.items():
            self.on_part(f"blocks.{layer}")
            if int(layer) < self.encoder_layers:
                source = block(source, table=tables.get("encoder"))
            else:
                x = block(x, source, table=tables.get("decoder"))
            if int(layer) == self.encoder_layers - 1:
                source = through(self.encoder_norm, source)
        if self.head is None:
            source = source.clone() if source is inputs[0] else source
            x = x.clone() if x is inputs[1] else x
        return source, x

    def shared(self, name: str) -> nn.Parameter:
        """This slice's copy of a parameter that several pipeline stages hold."""
        if name == EMBEDDING:
            owner: nn.Module | None = self.head if self.embedding is None else self.embedding.tokens
        else:
            owner = next(one for key, one in self.distances.items() if key.partition(COPY)[0] == name)
        assert owner is not None
        weight: nn.Parameter = owner.weight  # type: ignore[assignment]
        return weight
