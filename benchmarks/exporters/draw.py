"""Random legal layouts that nobody picked, of models and clusters that each trainer has words for."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from cost_models.axes.layout import Layout, parse_layout
from cost_models.axes.stages import blocks_by_policy, even_layers, mixes_of
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import check

DENSE = ("gpt3-175b", "llama3-70b", "llama3.1-8b", "qwen3-8b")
MIXTURES = ("mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b")
_TRIES = 200_000


@cache
def question(model: str, stack: str, *, gpus: int, precision: str = "bf16") -> Question:
    """A question about so many H100, in sequences that the model takes."""
    shape = resolve_model(model).spec
    length = min(4096, shape.max_positions)
    training = TrainingSpec.model_validate(
        {"global_batch": 4 * gpus, "sequence_length": length, "precision": precision}
    )
    return complete_question(shape, resolve_cluster("dgx-h100", gpus), training, stack=stack)


def draw(
    stack: str, count: int, seed: int, trainer: str | None, models: tuple[str, ...]
) -> Iterator[tuple[Question, Layout]]:
    """So many layouts that are legal, for the trainer if one is named; each of a model in turn."""
    random_ = random.Random(seed)
    found = 0
    for _ in range(_TRIES):
        if found == count:
            return
        asked = question(models[found % len(models)], stack, gpus=random_.choice((8, 16, 64)))
        try:
            layout = parse_layout(_words(random_, asked))
        except InputError:
            continue
        if not check(asked, layout, trainer, hosts=False):
            found += 1
            # a search writes `full:2` of two blocks as `full`
            mixes = mixes_of(blocks_by_policy(layout.layers, layout.stage_recompute))
            yield asked, Layout(**layout.model_dump() | {"recompute": mixes})
    raise AssertionError(f"{count} legal layouts of {stack} in {_TRIES} draws")


def _words(random_: random.Random, asked: Question) -> str:
    gpus, stack, model = asked.cluster.num_gpus, asked.stack, asked.model
    tp = random_.choice([one for one in (1, 2, 4, 8) if one <= gpus])
    pp = random_.choice([one for one in (1, 1, 2, 4, 8) if tp * one <= gpus])
    cp = random_.choice([one for one in (1, 1, 1, 2, 4) if tp * pp * one <= gpus])
    dp = gpus // (tp * pp * cp)
    vpp = random_.choice((1, 1, 2, 3, 4)) if pp > 1 else 1
    words = [f"tp{tp} pp{pp} cp{cp} dp{dp} mbs{random_.choice((1, 1, 2, 4))}"]
    words += [f"zero{random_.choice(stack.zero_stages)}"]
    if tp > 1 and random_.random() < 0.7:
        words.append("sp")
    if dp * cp > 2 and random_.random() < 0.2:
        words.append(f"shard{random_.choice([2, 4, dp])}")
    if cp > 1 and random_.random() < 0.7 and stack.context_kinds:
        words.append(f"context={random_.choice(stack.context_kinds)}")
    if random_.random() < 0.2:
        words.append(f"order={random_.choice(stack.axis_orders)}")
    if model.has_experts:
        words.append(f"ep{random_.choice((1, 2, 4, 8))}")
        words += random_.choice([[], ["etp1"], [f"etp{tp}"]])
    if pp > 1:
        schedules = (
            [one for one in stack.schedules if one != "interleaved"] if vpp == 1 else list(stack.schedules)
        )
        usual = "1f1b" if vpp == 1 else "interleaved"
        schedule = random_.choice([usual, usual, *schedules])
        vpp = 2 if schedule in ("zbv", "dualpipev") else vpp
        words += [f"vpp{vpp}", *([f"schedule={schedule}"] if schedule != usual else [])]
    layers = _layers(random_, model.num_layers, pp * vpp)
    words.append(f"layers={','.join(map(str, layers))}")
    most = min(min(layers), max(layers) - 1)  # all blocks of all stages are `full`
    policies = ["none", "none", "full", "selective", *([f"full:{random_.randint(1, most)}"] if most else [])]
    words.append(f"recompute={random_.choice(policies)}")
    if stack.residencies and random_.random() < 0.15:
        words.append(f"offload={random_.choice(stack.residencies)}")
    return " ".join(words)


def _layers(random_: random.Random, blocks: int, stages: int) -> tuple[int, ...]:
    """Even, or as even as they divide, or with some moved from stage to stage."""
    layers = list(even_layers(blocks, stages))
    if stages > 1 and random_.random() < 0.4:
        for _ in range(random_.randint(1, 3)):
            giver, taker = random_.sample(range(stages), 2)
            if layers[giver] > 1:
                layers[giver] -= 1
                layers[taker] += 1
    return tuple(layers)
