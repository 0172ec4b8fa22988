"""Groups of equal blocks (kinds) of a model, and for each kind a model with only such blocks.

Blocks differ in their token mixer, feed-forward (dense, a mixture of experts or none), attention window and
rotary positions; in their part of the model (a vision tower's, or the decoder's first block behind a tower,
which holds the projector and the token embedding); and in whether they are trained. Costs are computed for a
model whose blocks are all of one kind, and summed over the blocks of a stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.specs.training import FREEZE_TUNING, TrainingSpec, UntrainedPart
from cost_models.specs.transformer import Encoder, TransformerSpec

_CACHED = 64
"""Number of models whose parts and kinds are cached."""
State = Literal["", "passed", "still"]
Models = tuple[TransformerSpec, ...]
BlocksOfKind = tuple[int, TransformerSpec, TrainingSpec]
"""Number of blocks of one kind, a model with only such blocks, and the job with the sequences of these
blocks."""


@lru_cache(maxsize=_CACHED)
def tower_of(model: TransformerSpec) -> TransformerSpec:
    """Vision tower of a model as a separate model, which embeds patches and has no head."""
    tower = model.tower
    assert tower is not None
    shape = {name: value for name, value in tower if name in TransformerSpec.model_fields}
    shape |= {"name": model.name, "num_layers": tower.layers, "num_kv_heads": tower.num_heads}
    shape |= {"positions": "rotary" if tower.positions == "rotary" else "none", "vocab_size": 1}
    shape |= {"attention_bias": tower.bias, "mlp_bias": tower.bias, "encoder": Encoder(head_transform=False)}
    blocks = TransformerSpec.model_validate(shape)
    return blocks.model_copy(update={"tower": tower.model_copy(update={"part": "tower"})})


@lru_cache(maxsize=_CACHED)
def decoder_of(model: TransformerSpec) -> TransformerSpec:
    """Copy of the model without its vision tower, with block patterns counted from the decoder's first block;
    a model without a tower is returned unchanged."""
    if model.tower is None:
        return model
    return model.model_copy(update={"tower": None, "num_layers": model.num_layers - model.tower.layers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Whether each part of a model (patches, blocks, projector, embedding, head) is frozen in a job."""

    patches: bool = False
    """Whether the patch embedding is frozen, with positions and the norm before the tower's first block."""
    blocks: tuple[bool, ...]
    """Whether each block is frozen, one flag per block, the tower's blocks first."""
    projector: bool = False
    embedding: bool = False
    head: bool = False
    """Whether the last norm and the output matrix are frozen."""
    head_matrix: bool = False
    """Whether the output matrix is frozen. A tied matrix is frozen with the token embedding."""
    tower: int = 0
    """Number of blocks of the vision tower."""

    def trained_before(self, block: int) -> bool:
        """Whether any part of the model before a block is trained, so that gradients flow through the block."""
        enters = block >= self.tower and not (self.projector and self.embedding)
        return enters or not (all(self.blocks[:block]) and (self.patches or not self.tower))

    def state(self, block: int) -> State:
        """Training state of a block: trained (""), frozen but passed by gradients ("passed"), or frozen
        without gradients ("still")."""
        return "" if not self.blocks[block] else "passed" if self.trained_before(block) else "still"

    def untrained_parts(self, block: int) -> tuple[UntrainedPart, ...]:
        """Names of the untrained parts in a model whose blocks are all like block number `block`. The
        embedding of a tower is its patch embedding."""
        in_tower, joint = block < self.tower, self.tower and block == self.tower
        parts: dict[UntrainedPart, bool] = {
            "still": self.state(block) == "still",
            "block": self.blocks[block],
            "tower": bool(joint) and self.patches,
            "projector": bool(joint) and self.projector,
            "embedding": self.patches if in_tower else self.embedding,
            "head": self.head and not in_tower,
            "head matrix": self.head_matrix and not in_tower,
        }
        return tuple(name for name, frozen in parts.items() if frozen)

    @property
    def trains_nothing(self) -> bool:
        """Whether the job trains no part of the model."""
        return all((self.patches or not self.tower, *self.blocks, self.projector, self.embedding, self.head))


def frozen_parts(model: TransformerSpec, training: TrainingSpec) -> Frozen:
    """Parts of a model that a job's `freeze` excludes from training; parts that the model lacks count as
    frozen."""
    frozen_names, count = set(training.freeze), training.first_frozen
    tower = model.tower.layers if model.tower else 0
    language = "language" in frozen_names
    decoder = tuple(language or number < count for number in range(model.num_layers - tower))
    embedding = language or "embedding" in frozen_names
    return Frozen(
        patches=not tower or "tower" in frozen_names,
        blocks=("tower" in frozen_names,) * tower + decoder,
        projector=not tower or "projector" in frozen_names,
        embedding=embedding,
        head=language,
        head_matrix=language or (embedding and model.tied_embeddings),
        tower=tower,
    )


@dataclass(frozen=True)
class Kinds:
    """Kind of each of the L blocks of a model (`of_block`), as one of K numbers from 0, in order of first
    appearance."""

    of_block: tuple[int, ...]

    @cached_property
    def number(self) -> int:
        """Number of kinds of blocks in the model, K."""
        return max(self.of_block) + 1

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of blocks of each kind, (K,)."""
        return tuple(self.of_block.count(kind) for kind in range(self.number))

    @cached_property
    def blocks_before(self) -> Ints:
        """Number of blocks of each kind before every position, (K, L + 1); position i is directly before
        block i."""
        is_kind = np.array(self.of_block) == np.arange(self.number)[:, None]
        return np.pad(np.cumsum(is_kind, axis=1), ((0, 0), (1, 0)))

    @cached_property
    def _repeats(self) -> tuple[int, int]:
        """Pair (start, period) such that from block `start` on the kinds of blocks recur every `period`
        blocks; of all such pairs the one with the least sum."""
        kinds, best = np.array(self.of_block), (0, len(self.of_block))
        for period in range(1, len(kinds)):
            if period >= sum(best):
                break
            differ = np.flatnonzero(kinds[period:] != kinds[:-period])
            best = min(best, (int(differ[-1]) + 1 if len(differ) else 0, period), key=sum)
        return best

    @cached_property
    def class_at(self) -> Ints:
        """Equivalence class of each position between blocks, (L + 1,). All positions of a class are followed
        by the same sequence of kinds, as far as there are blocks."""
        return self.class_after(np.zeros(1, dtype=np.int64), np.arange(len(self.of_block) + 1))

    @property
    def classes(self) -> int:
        """Number of equivalence classes of positions between blocks (see `class_at`)."""
        return sum(self._repeats)

    def class_after(self, start: Ints, blocks: Ints) -> Ints:
        """Class (see `class_at`) of the position `blocks` blocks after a position of class `start`."""
        begin, period = self._repeats
        at = start + blocks
        return np.where(at < begin, at, begin + (at - begin) % period)

    def distinct_starts(self, blocks: int) -> tuple[Ints, Ints]:
        """First block of each distinct sequence of kinds that `blocks` consecutive blocks have, and for each
        class of positions the index of the sequence that follows, (classes,). It is arbitrary if too few
        blocks follow."""
        if blocks == 0:
            return np.zeros(1, dtype=np.int64), np.zeros(self.classes, dtype=np.int64)
        kinds, starts = np.array(self.of_block), min(self.classes, len(self.of_block) - blocks + 1)
        following = np.lib.stride_tricks.sliding_window_view(kinds, blocks)[:starts]
        _, first, group = np.unique(following, axis=0, return_index=True, return_inverse=True)
        return first, np.append(group.reshape(-1), np.zeros(self.classes - starts, dtype=np.int64))

    def mean(self, by_kind: Sequence[Array]) -> Array:
        """Mean of a value over all blocks of a model, from its value for each kind of block."""
        blocks = len(self.of_block)
        weighted = [count / blocks * value for count, value in zip(self.counts, by_kind, strict=True)]
        return np.asarray(sum(weighted[1:], start=weighted[0]))

    def lower_bound_of_fullest_rank(self, ranks: Ints, by_kind: Sequence[Array]) -> Array:
        """Lower bound on the sum of a value over the blocks of the pipeline rank where that sum is largest,
        given the value of a block of each kind.

        With one kind it is ceil(L / ranks) values. With several it is the largest of each kind's share and of
        a rank's share of all, but no more than ceil(L / ranks) mean blocks, by which some layouts are priced.
        """
        mean, blocks = self.mean(by_kind), len(self.of_block)
        even: Array = -(-blocks // ranks) * mean
        fullest = [-(-count // ranks) * value for count, value in zip(self.counts, by_kind, strict=True)]
        return np.asarray(np.minimum(even, np.max([*fullest, blocks / ranks * mean], axis=0)))

    def in_sorts(self, blocks_SP: Ints, start: Ints | None = None) -> Ints:
        """Number of blocks per stage, kind and recompute policy, (..., S, K·P), from the numbers per stage
        and policy, `blocks_SP`.

        Stages follow one another, unless `start` (..., S) gives where each begins. Within a stage the blocks
        that recompute most come first (`cost_models.axes.stages.policy_of_blocks`).
        """
        if self.number == 1:
            return blocks_SP
        sizes = blocks_SP.sum(axis=-1)
        begin = np.cumsum(sizes, axis=-1) - sizes if start is None else start
        end_SP = begin[..., None] + np.cumsum(blocks_SP[..., ::-1], axis=-1)[..., ::-1]
        last, counts = len(self.of_block), self.blocks_before
        sorts = counts[:, np.minimum(end_SP, last)] - counts[:, np.minimum(end_SP - blocks_SP, last)]
        return np.moveaxis(sorts, 0, -2).reshape(*end_SP.shape[:-1], -1)


@lru_cache(maxsize=_CACHED)
def kinds_of(model: TransformerSpec, sequence: int, frozen: Frozen | None = None) -> tuple[Kinds, Models]:
    """Kind of each block for sequences of `sequence` tokens, and for each kind a model with only such blocks.

    Blocks also differ in kind if a job leaves them `frozen` to a different extent.
    """
    decoder, tower, stacks, rotary = decoder_of(model), model.tower, model.stacks, model.rotary

    def describe(number: int) -> tuple[State, TransformerSpec]:
        """Training state of a block, and a model whose blocks are all like that block. In a mixture's block
        the always-active MLP is the shared expert."""
        state, layer = "" if frozen is None else frozen.state(number), number - (tower.layers if tower else 0)
        if layer < 0:
            return state, tower_of(model)
        window, mixer, mixture = decoder.window_of(layer), decoder.mixer_of(layer), decoder.is_mixture(layer)
        attends = mixer in ("attention", "both")
        changed: dict[str, Any] = {
            "num_moe_layers": decoder.num_layers if mixture else 0,
            "moe_layers": (),
            "attention_window": window if attends and window and window < sequence else None,
            "window_pattern": (),
            "mixers": (mixer,) if decoder.mixers else (),
        }
        if tower and not layer:
            changed["tower"] = tower.model_copy(update={"part": "joint"})
        if stacks and layer < stacks.encoder_layers:
            changed |= {"stacks": None, "encoder": Encoder(head_transform=False)}
        elif stacks:
            changed["stacks"] = stacks.model_copy(update={"encoder_layers": 0})
        if mixture and decoder.num_moe_layers < decoder.num_layers:
            changed["ffn_hidden_size"] = decoder.shared_expert_ffn_hidden_size
        if rotary and rotary.pattern:
            turns = not attends or rotary.pattern[layer % len(rotary.pattern)]
            changed["rotary"] = rotary.model_copy(update={"pattern": (turns,)})
        return state, decoder.model_copy(update=changed)

    numbers: dict[tuple[State, TransformerSpec], int] = {}
    of_block = tuple(numbers.setdefault(describe(number), len(numbers)) for number in range(model.num_layers))
    return Kinds(of_block), tuple(one for _, one in numbers) if len(numbers) > 1 else (model,)


def kinds_in(model: TransformerSpec, training: TrainingSpec) -> Kinds:
    """Kind of each block of a model in a training job."""
    frozen = frozen_parts(model, training) if training.freeze else None
    return kinds_of(model, training.sequence_length, frozen)[0]


def of_each_kind(model: TransformerSpec, training: TrainingSpec) -> tuple[BlocksOfKind, ...]:
    """For each kind of block in a training job: the number of its blocks, a model with only such blocks, and
    a job with the sequences and trained parts of these blocks.

    In an encoder-decoder the decoder's kinds carry the encoder tokens per decoder token. For a vision tower,
    an image is a sequence.
    """
    frozen = frozen_parts(model, training)
    kinds, models = kinds_of(model, training.sequence_length, frozen)
    source, images = training.sequence_length, training.images or 1
    target, jobs = training.target_length or source, list[BlocksOfKind]()
    for kind, (count, kind_model) in enumerate(zip(kinds.counts, models, strict=True)):
        job: dict[str, Any] = {"target_length": None, "freeze": ()}
        if kind_model.stacks is not None:
            share = kind_model.stacks.model_copy(update={"source_share": source / target})
            kind_model, job["sequence_length"] = kind_model.model_copy(update={"stacks": share}), target
        elif kind_model.is_tower and kind_model.tower is not None:
            batch = images * training.global_batch
            job |= {"sequence_length": kind_model.tower.tokens, "global_batch": batch, "dropout": 0.0}
        elif kind_model.tower is not None:
            joint = kind_model.tower.model_copy(update={"share": images * kind_model.tower.features / source})
            kind_model = kind_model.model_copy(update={"tower": joint})
        if untrained := frozen.untrained_parts(kinds.of_block.index(kind)):
            job["tuning"] = FREEZE_TUNING.model_copy(update={"left": untrained})
        jobs.append((count, kind_model, training.model_copy(update=job)))
    return tuple(jobs)
