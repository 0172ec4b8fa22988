"""Number of blocks on each pipeline stage of a layout, and the recompute policies of these blocks (one
policy, or a mix).

A mix is written `full:3` (three blocks in full, the others nothing), or `full:3/selective` (three in full,
all others selectively). Blocks that recompute most come first in a stage, as in Megatron-LM's
`--recompute-method block`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator

from cost_models.arrays import Bools, Ints
from cost_models.errors import InputError
from cost_models.schedules.registry import SPLIT_BACKWARD
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute

ENDS = 2
"""Number of stages that may have no block: the first has the embedding, the last the head."""
_NONE, _FULL = (RECOMPUTE_POLICIES.index(policy) for policy in ("none", "full"))
_PART = re.compile(rf"({'|'.join(RECOMPUTE_POLICIES)})(?::(\d{{1,6}}))?", re.ASCII)


def even_layers(num_layers: int, stages: int) -> tuple[int, ...]:
    """Number of blocks of each pipeline stage, as equal as possible; larger stages are in the middle, away
    from embedding and head."""
    share, remainder = divmod(num_layers, stages)
    first = (stages - remainder) // 2
    return tuple(share + (first <= stage < first + remainder) for stage in range(stages))


def layers_in_turn(num_layers: int, stages: int) -> tuple[int, ...]:
    """Number of blocks of each stage if every stage takes ceil(blocks / stages), first to last; the last
    stage, with the head, has fewer."""
    stage_layers = -(-num_layers // stages)
    return tuple(max(0, min(stage_layers, num_layers - stage_layers * stage)) for stage in range(stages))


def layers_up_to_shares(num_layers: int, stages: int, head: float) -> tuple[int, ...]:
    """Number of blocks of each stage if each stage in turn takes blocks until the stages so far have more
    than their equal shares of the work.

    The head counts as `head` blocks and follows the last block, so the last stages may have none.
    """
    share = (num_layers + head) / stages
    ends = [min(num_layers, int(share * (stage + 1)) + 1) for stage in range(stages - 1)] + [num_layers]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def allowed_recompute(schedule: str) -> tuple[Recompute, ...]:
    """Recompute policies that stages may use under a pipeline schedule.

    PyTorch recomputes a checkpointed region for every piece of its backward pass. A split backward pass has a
    piece for each parameter: whole blocks would be recomputed about seven times, and per-operator policies
    refuse the second time.
    """
    return ("none",) if schedule in SPLIT_BACKWARD else RECOMPUTE_POLICIES


def policy_mask(policies: Container[str]) -> Bools:
    """Whether each of `RECOMPUTE_POLICIES` is among `policies`, (P,)."""
    return np.array([policy in policies for policy in RECOMPUTE_POLICIES])


def policies_by_schedule(policies: Iterable[str]) -> Bools:
    """Whether stages may use each of `RECOMPUTE_POLICIES` under each of `SCHEDULES`, (schedules, P); False
    for policies not in `policies`."""
    return np.array([policy_mask({*policies}.intersection(allowed_recompute(one))) for one in SCHEDULES])


def _checked_mix(text: str) -> str:
    """Check that a text is a recompute policy or mix of policies; returns the text, or raises ValueError."""
    _parts(text)
    return text


StageRecompute = Annotated[str, AfterValidator(_checked_mix)]
"""Text of a stage's recompute policy or mix of policies, such as `full` or `full:3/selective`."""


def _parts(text: str) -> dict[Recompute, int | None]:
    """Parse the text of a recompute mix into the number of blocks by policy; None stands for all remaining
    blocks."""
    parts: dict[Recompute, int | None] = {}
    for word in text.split("/"):
        match = _PART.fullmatch(word)
        if match is None:
            policies = " / ".join(RECOMPUTE_POLICIES)
            raise ValueError(f"`{word}` is not {policies}, or one with a count like `full:3`")
        policy = RECOMPUTE_POLICIES[RECOMPUTE_POLICIES.index(match[1])]
        if policy in parts:
            raise ValueError(f"`{text}` names {policy} twice")
        parts[policy] = None if match[2] is None else int(match[2])
    open_ended = [policy for policy, count in parts.items() if count is None]
    if len(open_ended) > 1:
        raise ValueError(f"`{text}` leaves the number of blocks open for {' and '.join(open_ended)}")
    return parts


def policies_in(text: str) -> tuple[Recompute, ...]:
    """Recompute policies that blocks have under the text of a mix; `none` is among them if the text does not
    cover all blocks."""
    parts = _parts(text)
    return (*parts,) if None in parts.values() or "none" in parts else (*parts, "none")


def named_blocks(text: str) -> int:
    """Number of blocks that the text of a recompute mix covers by explicit counts."""
    return sum(count or 0 for count in _parts(text).values())


def blocks_by_policy(layers: Sequence[int], recompute: Sequence[str]) -> Ints:
    """Number of blocks of each stage under each recompute policy, (S, P), from each stage's number of blocks
    (`layers`) and the text of its mix (`recompute`).

    Raises:
        InputError: a mix names more blocks than its stage has.
    """
    counts_SP = np.zeros((len(layers), len(RECOMPUTE_POLICIES)), dtype=np.int64)
    for stage, (blocks, text) in enumerate(zip(layers, recompute, strict=True)):
        parts, unnamed = _parts(text), blocks - named_blocks(text)
        if unnamed < 0:
            raise InputError(f"recompute `{text}` names more blocks than the {blocks} of stage {stage}")
        default: Recompute = next((policy for policy, count in parts.items() if count is None), "none")
        for policy, count in (*parts.items(), (default, unnamed)):
            counts_SP[stage, RECOMPUTE_POLICIES.index(policy)] += count or 0
    return counts_SP


def mix_of(counts_P: Sequence[int]) -> str:
    """Text of a stage's recompute mix, such as `full:3/selective`, from its number of blocks under each
    policy, (P,). The policy that recomputes most is first."""
    policies = zip(RECOMPUTE_POLICIES[::-1], counts_P[::-1], strict=True)
    blocks = {policy: count for policy, count in policies if count}
    *first, last = blocks or RECOMPUTE_POLICIES[:1]
    parts = [f"{policy}:{blocks[policy]}" for policy in first]
    return "/".join(parts if parts and last == "none" else [*parts, last])


def first_in_full(sizes: Ints, number: Ints | int) -> Ints:
    """Number of blocks under each recompute policy in stages that recompute their first `number` blocks in
    full, (..., P). The stages have `sizes` (...) blocks; those with fewer than `number` recompute all."""
    full = np.minimum(sizes, number)
    counts = np.zeros((*full.shape, len(RECOMPUTE_POLICIES)), dtype=np.int64)
    counts[..., _FULL], counts[..., _NONE] = full, sizes - full
    return counts


def number_in_full(layers: Sequence[int], recompute: Sequence[str]) -> int | None:
    """Number n for which every stage recomputes n blocks (or all, if it has fewer) in full and no others;
    None if there is none."""
    counts_SP = blocks_by_policy(layers, recompute)
    number = int(counts_SP[:, _FULL].max())
    return number if (counts_SP == first_in_full(np.array(layers), number)).all() else None


def mixes_of(counts_SP: Ints) -> tuple[str, ...]:
    """Text of each stage's recompute mix, from its number of blocks under each policy, (S, P). A first or
    last stage without blocks repeats its neighbour's last policy."""
    mixes = [mix_of(stage) for stage in counts_SP.tolist()]
    for end, neighbour in ((0, 1), (-1, -2)):
        if not counts_SP[end].sum():
            mixes[end] = policies_in(mixes[neighbour])[-1]
    return tuple(mixes)


def policy_of_blocks(blocks: int, text: str) -> tuple[Recompute, ...]:
    """Recompute policy of each block of a stage, in model order. Blocks that recompute most come first."""
    counts_P = blocks_by_policy((blocks,), (text,))[0].tolist()
    ordered = zip(RECOMPUTE_POLICIES[::-1], counts_P[::-1], strict=True)
    return tuple(policy for policy, count in ordered for _ in range(count))
