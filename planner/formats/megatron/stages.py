"""Pipeline stages of blocks in Megatron-LM's arguments, written and read.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/pipeline_parallel_layer_layout.py, core/transformer/transformer_block.py.
"""

from __future__ import annotations

import re

from cost_models.axes.words import MAX_STAGES
from cost_models.errors import InputError
from planner.formats.megatron.arguments import Arguments

_REPEATED = re.compile(r"\(([^()]*)\)\*(\d{1,4})|([A-Za-z])\*(\d{1,4})", re.ASCII)
_MOST_TEXT = 20_000


def pipeline_layout(layers: tuple[int, ...]) -> str:
    """Blocks of every virtual stage as `--pipeline-model-parallel-layout` writes them: `Ettt|tttt|tttL`."""
    stages = ["t" * count for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    return "|".join(stages)


def stages_of(said: Arguments, blocks: int, pp: int) -> tuple[int, tuple[int, ...]]:
    """Chunks of a rank, and blocks of every virtual stage in model order.

    Raises:
        InputError: blocks that do not divide, or a layout that cannot be read.
    """
    if (text := said.get("pipeline_model_parallel_layout")) is not None:
        layers = _written(text)
        if len(layers) % pp or sum(layers) != blocks:
            raise InputError(
                f"`{said.flags['pipeline_model_parallel_layout']}` has {len(layers)} stages with {sum(layers)} blocks: "
                f"`pp{pp}` and `--num-layers {blocks}` do not go with it"
            )
        return len(layers) // pp, layers
    first, last = (said.get(f"decoder_{one}_pipeline_num_layers") for one in ("first", "last"))
    vpp = _chunks(said, blocks, pp)
    if pp * vpp > MAX_STAGES:
        raise InputError(f"{pp * vpp:,} stages are more than any model has blocks for")
    counts_first = bool(said.get("account_for_embedding_in_pipeline_split"))
    counts_last = bool(said.get("account_for_loss_in_pipeline_split"))
    if first is None and last is None:
        places = blocks + counts_first + counts_last
        if places % (pp * vpp):
            raise InputError(
                f"`--num-layers {blocks}` does not divide by {pp * vpp} stages",
                hint="`--pipeline-model-parallel-layout` says uneven ones",
            )
        each = [places // (pp * vpp)] * (pp * vpp)
        each[0] -= counts_first
        each[-1] -= counts_last
        return vpp, tuple(each)
    between = pp - (first is not None) - (last is not None)
    rest = blocks - (first or 0) - (last or 0)
    ranks = [rest // between] * between if between and not rest % (between * vpp) else []
    each_rank = [*([first] if first is not None else []), *ranks, *([last] if last is not None else [])]
    if len(each_rank) != pp or sum(each_rank) != blocks or any(one % vpp for one in each_rank):
        raise InputError(
            f"`--num-layers {blocks}` does not divide over `pp{pp}` with such first and last ranks"
        )
    return vpp, tuple(one // vpp for one in each_rank) * vpp


def _chunks(said: Arguments, blocks: int, pp: int) -> int:
    if (chunks := said.get("num_virtual_stages_per_pipeline_rank")) is not None:
        return max(1, int(chunks))
    each = said.get("num_layers_per_virtual_pipeline_stage")
    if each is None or pp == 1:
        return 1
    if each < 1 or blocks % (pp * each):
        words = said.flags["num_layers_per_virtual_pipeline_stage"]
        raise InputError(f"`{words}` does not divide the {blocks / pp:g} blocks of a rank with `pp{pp}`")
    return int(blocks // pp // each)


def _written(text: str) -> tuple[int, ...]:
    """Blocks of the stages of `Ettt|(tt|)*6tttL`."""
    bare = re.sub(r"[,\s]", "", text)
    while (found := _REPEATED.search(bare)) is not None:
        inner, times, letter, count = found.groups()
        bare = bare[: found.start()] + (inner or letter) * int(times or count) + bare[found.end() :]
        if len(bare) > _MOST_TEXT:
            raise InputError(f"`{text[:40]}` names more blocks than any model has")
    if not re.fullmatch(r"[EtmL|]+", bare):
        raise InputError(f"`{text}` is no pipeline layout like `Ettt|tttt|tttL`")
    layers = tuple(stage.count("t") for stage in bare.split("|"))
    if len(layers) > MAX_STAGES:
        raise InputError(f"{len(layers):,} stages are more than any model has blocks for")
    return layers
