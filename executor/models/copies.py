"""Parameters of which several stages hold copies: a tied embedding, bias tables that the blocks of a stack share."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from cost_models.specs.transformer import TransformerSpec

EMBEDDING, COPY = "embedding", "_from_"
"""Name of a tied embedding that two stages hold, and the infix in names of copied tables before the first block that
uses the copy."""
TIED = {"head.weight": "embedding.tokens.weight"}
"""Copies and their originals under tied embeddings."""


def original(name: str, *, tied: bool) -> str:
    """Name of the parameter that `name` is another stage's copy of, else `name`."""
    stem, copied, _ = name.partition(COPY)
    return f"{stem}.weight" if copied else TIED.get(name, name) if tied else name


def held_by_several(spec: TransformerSpec, layers: tuple[int, ...]) -> dict[str, list[int]]:
    """Stages, in order, that hold each shared parameter (a tied embedding, tables of biases), if there are several."""
    embeds = bisect_right([*accumulate(layers)], spec.tower.layers) if spec.tower else 0
    stages_by_name = {EMBEDDING: [embeds, len(layers) - 1]} if spec.tied_embeddings else {}
    if spec.stacks is not None and spec.stacks.position_buckets:
        first, ends = spec.stacks.encoder_layers, list(accumulate(layers))
        filled = [
            (stage, end - count, end)
            for stage, (count, end) in enumerate(zip(layers, ends, strict=True))
            if count
        ]
        stages_by_name["encoder"] = [stage for stage, begin, _ in filled if begin < first]
        stages_by_name["decoder"] = [stage for stage, _, end in filled if end > first]
    return {name: stages for name, stages in stages_by_name.items() if len({*stages}) > 1}
