"""Random questions with hardly any room: the layouts that need least memory are few, and none may be lost."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from asking import ask
from brute import Everything, everything
from questions import Query, cluster_of, without_context

from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.transformer import TransformerSpec
from planner.space.restrictions import parse_restrictions


@cache
def tight(seed: int) -> Everything:
    """The whole space of six blocks on two nodes of three GPUs, where tensors on their way between stages fill much of
    the memory: long sequences, few microbatches, a small vocabulary."""
    rng = np.random.default_rng(seed)
    experts = {"num_experts": 2, "experts_per_token": 1, "moe_ffn_hidden_size": 128}
    shape: dict[str, Any] = {"name": "tight", "num_layers": 6, "num_heads": 4, "max_positions": 8192}
    shape |= {
        "hidden_size": 64 * int(rng.choice([1, 2, 4])),
        "ffn_hidden_size": 64 * int(rng.choice([1, 2, 8])),
    }
    shape |= {"vocab_size": int(rng.choice([100, 1000])), "tied_embeddings": bool(rng.integers(2))}
    model = TransformerSpec(**shape, **(experts if rng.random() < 0.5 else {}))
    policies = rng.permutation(np.array(RECOMPUTE_POLICIES))[: int(rng.choice([1, 1, 1, 2]))]
    batch, length = int(rng.choice([1, 2, 2, 4])), int(rng.choice([127, 128, 1023, 8192]))
    job = {"global_batch": batch, "sequence_length": length, "recompute": tuple(policies.tolist())}
    stack = str(rng.choice(["meshwright", "torchtitan"]))
    return everything(without_context(ask(model, cluster_of(rng, 3, 2), stack=stack, **job)))


def tight_queries(seed: int) -> list[Query]:
    """One such question, with room for the layout that needs least, for one or two more, and for none."""
    found = tight(seed)
    allowed = sum(1 << RECOMPUTE_POLICIES.index(policy) for policy in found.question.training.recompute)
    rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
    within = [(found.placed[row].policies & ~allowed) == 0 for row in rows.tolist()]
    peaks = [found.placed[row].peak[own] for row, own in zip(rows.tolist(), within, strict=True)]
    least = np.unique([own.min() for own in peaks if len(own)])[:4]
    queries = []
    for limit in (0.999 * least[0], *(least[:-1] + least[1:]) / 2):
        seconds, layouts = found.best(rows, allowed, float(limit))
        limits = parse_restrictions((), (), max_memory=float(limit))
        told = {"seconds": seconds, "layouts": layouts}
        queries.append(Query(question=found.question, restrictions=limits, top=3, **told))
    return queries
