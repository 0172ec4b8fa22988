"""Parts of a model that has a vision tower, each as a model of its own, and what of a model a job leaves frozen."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from cost_models.specs.model.blocks import Encoder
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.tuning import Left

_CACHED = 64
State = Literal["", "passed", "still"]


@lru_cache(maxsize=_CACHED)
def tower_of(model: TransformerSpec) -> TransformerSpec:
    """The blocks of a model's tower as a model, whose embedding is that of patches and which has no head."""
    tower = model.tower
    assert tower is not None
    return TransformerSpec(
        name=model.name,
        num_layers=tower.layers,
        hidden_size=tower.hidden_size,
        num_heads=tower.num_heads,
        num_kv_heads=tower.num_heads,
        head_dim=tower.head_dim,
        ffn_hidden_size=tower.ffn_hidden_size,
        vocab_size=1,
        gated_mlp=tower.gated_mlp,
        activation=tower.activation,
        norm=tower.norm,
        norm_epsilon=tower.norm_epsilon,
        positions="rotary" if tower.positions == "rotary" else "none",
        attention_bias=tower.bias,
        mlp_bias=tower.bias,
        encoder=Encoder(head_transform=False),
    ).model_copy(update={"tower": tower.model_copy(update={"part": "tower"})})


@lru_cache(maxsize=_CACHED)
def decoder_of(model: TransformerSpec) -> TransformerSpec:
    """The decoder alone, whose patterns of blocks count from its first; a model without a tower as it is."""
    if model.tower is None:
        return model
    return model.model_copy(update={"tower": None, "num_layers": model.num_layers - model.tower.layers})


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Which parameters of a model a job leaves as they are."""

    patches: bool = False
    """What makes tokens of patches, with positions and the norm before the tower's first block."""
    blocks: tuple[bool, ...]
    """Of every block, a tower's first."""
    projector: bool = False
    embedding: bool = False
    head: bool = False
    """The last norm and the output matrix."""
    head_matrix: bool = False
    """The output matrix alone: where it is the token embedding, as that."""
    tower: int = 0
    """Blocks of the tower."""

    @property
    def moved(self) -> tuple[bool, ...]:
        """Of every block whether anything before it is trained, so that gradients go through it."""
        joins = not (self.projector and self.embedding)
        own = [not frozen for frozen in self.blocks]
        entering = [joins and number == self.tower for number in range(len(own))]
        # what a block gets is trained where the ends before it are, or a block before it is
        before = accumulate(
            (a or b for a, b in zip([False, *own[:-1]], entering, strict=True)),
            lambda had, more: had or more,
            initial=self.tower > 0 and not self.patches,
        )
        return tuple(before)[1:]

    def state(self, block: int) -> State:
        """Of a block: trained, or frozen with gradients that go through it, or with none to come back."""
        return "" if not self.blocks[block] else "passed" if self.moved[block] else "still"

    def left(self, block: int) -> tuple[Left, ...]:
        """What is left as it is of a model all of whose blocks are as this one; a tower embeds patches."""
        own, joint = block < self.tower, self.tower and block == self.tower
        parts: dict[Left, bool] = {
            "still": self.state(block) == "still",
            "block": self.blocks[block],
            "tower": bool(joint) and self.patches,
            "projector": bool(joint) and self.projector,
            "embedding": self.patches if own else self.embedding,
            "head": self.head and not own,
            "head matrix": self.head_matrix and not own,
        }
        return tuple(name for name, frozen in parts.items() if frozen)

    @property
    def everything(self) -> bool:
        """Whether nothing is trained."""
        return all((self.patches or not self.tower, *self.blocks, self.projector, self.embedding, self.head))


def frozen_parts(model: TransformerSpec, training: TrainingSpec) -> Frozen:
    """What `freeze` of a job names of a model; parts that a model has not count as frozen."""
    named, count = set(training.freeze), training.first_frozen
    tower = model.tower.layers if model.tower else 0
    language = "language" in named
    decoder = tuple(language or number < count for number in range(model.num_layers - tower))
    embedding = language or "embedding" in named
    return Frozen(
        patches=not tower or "tower" in named,
        blocks=("tower" in named,) * tower + decoder,
        projector=not tower or "projector" in named,
        embedding=embedding,
        head=language,
        head_matrix=language or (embedding and model.tied_embeddings),
        tower=tower,
    )
