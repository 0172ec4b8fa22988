"""Degrees of parallelism of a row: as printed, and where blank as its author would have set them."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.measured.runs.notes import Notes, UnpredictableError
from cost_models.measured.runs.row import Row
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec

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
    if stack.usually_interleaves and microbatches % degrees.pp == 0:
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
