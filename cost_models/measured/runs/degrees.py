"""Counts of a row: a check for impossible values, and the degrees of parallelism.

A row with an impossible value is skipped, with the reason. Degrees left blank are as their author would have set them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cost_models.documents import printable
from cost_models.measured.runs.policies import names_hybrid
from cost_models.measured.runs.rows import Notes, Row, UnpredictableError
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec

LARGEST_COUNTS: dict[str, int] = {
    "layers": 10_000,
    "hidden": 1_000_000,
    "heads": 100_000,
    "head_dim": 100_000,
    "kv_heads": 100_000,
    "ffn_hidden": 10_000_000,
    "vocab": 100_000_000,
    "seq_len": 100_000_000,
    "moe_experts": 100_000,
    "moe_top_k": 100_000,
    "moe_ffn_hidden": 10_000_000,
    "moe_layers": 10_000,
    "gpus_per_node": 10_000,
    "num_gpus": 10_000_000,
    "tp": 100_000,
    "pp": 10_000,
    "vp": 10_000,
    "cp": 100_000,
    "ep": 100_000,
    "dp": 10_000_000,
    "hybrid_shard": 10_000_000,
    "micro_batch": 1_000_000,
    "global_batch": 100_000_000,
    "grad_accum": 10_000_000,
}
"""Column of whole numbers → largest plausible value, far above anything that was trained."""
MAX_ACTIONS = 10_000_000
"""Most stages × microbatches of a step that are laid out one by one."""

_NOT_SAID = re.compile(
    r"|[-–—?.]|0+(\.0*)?|-1|n/?a|nan|none|null|nil|unknown|unspecified|default|auto|off|false|no"
)
"""What tables write for no value; 0 and -1 switch an axis off."""


def check_counts(row: Row) -> None:
    """Check that every column of whole numbers holds one, or nothing.

    Raises:
        UnpredictableError: the first cell that is something else, with what it says.
    """
    for column, most in LARGEST_COUNTS.items():
        words = row.text(column)
        count = row.count(column)
        if (
            count is None
            and not _NOT_SAID.fullmatch(words.lower())
            and not _is_fraction_of_a_batch(row, column)
            and not (column == "hybrid_shard" and (row.flag(column) or names_hybrid(words)))
        ):
            raise UnpredictableError(f"`{column}` is `{printable(words, 20)}`, not a whole number above zero")
        if count is not None and count > most:
            raise UnpredictableError(f"`{column}` is {printable(words, 20)}, beyond anything that is trained")


def _is_fraction_of_a_batch(row: Row, column: str) -> bool:
    """Whether a batch is given in tokens, which need not be a whole number of sequences."""
    value = row.number(column)
    return column == "global_batch" and value is not None and value >= 1


_USUAL_GPUS = 128
"""GPUs assumed for a row that does not say: only a share of the optimizer's states depends on it."""
_USUAL_BUBBLE = 0.05
"""Share of a step that recipes leave idle where they choose the number of chunks (Llama 3, section 3.3.2)."""


@dataclass(slots=True)
class Degrees:
    """Number of ranks of each axis."""

    tp: int
    pp: int
    vp: int
    cp: int
    ep: int
    dp: int
    zero: int = 0

    @property
    def num_gpus(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


def degrees_of(row: Row, notes: Notes) -> Degrees:
    """Degrees of a row: axes left blank are 1; data parallelism is what remains of the GPUs."""
    tp, pp, vp, cp, ep = (row.count(axis) or 1 for axis in ("tp", "pp", "vp", "cp", "ep"))
    gpus, dp = row.count("num_gpus"), row.count("dp")
    each = tp * pp * cp
    if gpus is None:
        if dp is None:
            dp = _usual_replicas(row, each)
            notes.assume(f"{each * dp} GPUs: the row names none")
        else:
            notes.assume(f"{each * dp} GPUs: the product of the degrees")
    elif gpus % each:
        raise UnpredictableError(f"tp · pp · cp = {each} does not divide {gpus} GPUs")
    else:
        if dp is not None and dp * each != gpus:
            notes.assume(f"dp {gpus // each}: the row's {dp} does not fit {gpus} GPUs")
        dp = gpus // each
    return Degrees(tp=tp, pp=pp, vp=vp if pp > 1 else 1, cp=cp, ep=ep, dp=dp)


def _usual_replicas(row: Row, each: int) -> int:
    """Replicas, of `each` GPUs, that fill a usual number of GPUs, as far as the batch divides."""
    batch, micro = row.count("global_batch"), row.count("micro_batch") or 1
    if batch is None:
        raise UnpredictableError("neither `num_gpus` nor `dp` nor `global_batch` is given")
    samples = max(1, batch // micro)
    return next(dp for dp in range(max(1, _USUAL_GPUS // each), 0, -1) if samples % dp == 0)


def chunks_of(row: Row, model: TransformerSpec, stack: StackSpec, degrees: Degrees, notes: Notes) -> int:
    """Chunks a rank, as the row says; where blank, as few as keep the pipeline busy, if the stack interleaves."""
    if degrees.pp == 1 or row.count("vp"):
        return degrees.vp
    chunks = 1
    microbatches = _microbatches(row, degrees)
    if stack.usually_splits_sequence and microbatches % degrees.pp == 0:
        possible = _possible_chunks(model.num_layers, degrees.pp, ends=stack.ends_count_as_blocks)
        idle = (degrees.pp - 1) / microbatches
        chunks = next((count for count in possible if idle / count <= _USUAL_BUBBLE), possible[-1])
    notes.assume(f"{chunks} model chunk{'s' if chunks > 1 else ''} a rank (vp blank)")
    return chunks


def _possible_chunks(blocks: int, pp: int, *, ends: bool) -> tuple[int, ...]:
    """Numbers of chunks a rank that divide the blocks, or with `ends` the blocks, the embedding and the head."""
    slots = next((count for count in (blocks, blocks + 2 * ends) if count % pp == 0), pp)
    each = slots // pp
    return tuple(count for count in range(1, each + 1) if each % count == 0)


def _microbatches(row: Row, degrees: Degrees) -> int:
    """Microbatches of a step as the row says; as many as stages where it does not."""
    batch = row.count("global_batch")
    if accumulated := row.count("grad_accum"):
        return accumulated
    return max(1, batch // (degrees.dp * (row.count("micro_batch") or 1))) if batch else degrees.pp
