"""The executor beside a loop written by hand, in one process: `run.py OUT.csv [--rounds 40]`.

Both train the same model from the same values on the same windows of text, in turn, some steps each; losses and
gradient norms are compared, so that the work is known to be the same. The executor's steps are those of a run: data,
gradients, norm, clipping, update, the loss known to all ranks, heartbeat and progress; without checkpoints.
The quotient of each round is of times minutes apart at most; CPU time is of the whole process on one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import torch
import torch.distributed as dist

from benchmarks.overhead.by_hand import Gpt, Llama, Loop
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from executor.data.batches import Batches, SharedBatches, text_tokens
from executor.engine.engine import Engine
from executor.run_config import EngineOptions, RunConfig
from executor.steps import Watcher, follow_steps
from executor.transformer.train import TrainedTransformer
from meshwright.terminal.formats import as_csv
from planner.plan import make_plan

BATCH, MBS, CLIP = 8, 4, 1.0
CASES = {("gpt2-nano", 64): 10, ("gpt2-tiny", 256): 2, ("llama-tiny", 256): 2, ("gpt2-mini", 256): 1}
"""(model, tokens of a sequence) → steps of one turn; the first has the most host work for its compute."""

Curve = list[tuple[float, float]]
"""Loss and gradient norm of steps."""


def by_hand(name: str, tokens: int) -> Loop:
    """The same shape, written without the executor."""
    spec = resolve_model(name).spec
    shape = {"layers": spec.num_layers, "width": spec.hidden_size, "heads": spec.num_heads}
    model: Gpt | Llama
    if spec.gated_mlp:
        model = Llama(
            **shape,
            kv_heads=spec.num_kv_heads or spec.num_heads,
            inner=spec.ffn_hidden_size,
            vocabulary=spec.vocab_size,
        )
    else:
        model = Gpt(**shape, vocabulary=spec.vocab_size, positions=spec.max_positions)
    return Loop(model, text_tokens(), batch=BATCH, mbs=MBS, tokens=tokens, clip=CLIP)


def executed(name: str, tokens: int) -> tuple[Engine, Batches]:
    """The executor's rank 0 of 1."""
    training = TrainingSpec(global_batch=BATCH, sequence_length=tokens, precision="fp32")
    question = complete_question(resolve_model(name).spec, resolve_cluster("local", 1), training)
    plan = make_plan(question, estimate(question, parse_layout(f"mbs{MBS}")))
    engine = Engine(plan, torch.device("cpu"), EngineOptions(clip=CLIP))
    return engine, Batches(training, vocabulary=plan.model.vocab_size, seed=0)


def compare(name: str, tokens: int, steps: int, rounds: int) -> dict[str, object]:
    """A row: seconds of a step and their quotient, medians over the rounds after a first one that warms up."""
    engine, batches = executed(name, tokens)
    loop = by_hand(name, tokens)
    values = {key: value.clone() for key, value in engine.parts[0].state_dict().items()}
    loop.model.load_state_dict(values)
    config = RunConfig(steps=steps, warm_up=0, measure_memory=False, waiting_steps=0)

    def hand() -> Curve:
        return [loop.step(index) for index in range(steps)]

    def executor() -> Curve:
        shared = SharedBatches(batches, engine, engine.plan.layout.num_stages, steps - 1)
        curve = follow_steps(TrainedTransformer(engine, shared), config, None, Watcher(), lambda: False)
        return list(zip(curve.losses, curve.norms, strict=True))

    farthest = 0.0
    spent: dict[Callable[[], Curve], list[tuple[float, ...]]] = {hand: [], executor: []}
    for turn in range(rounds + 1):
        curves = {}
        for who in (hand, executor) if turn % 2 else (executor, hand):
            seconds, curves[who] = _timed(who)
            if turn:
                spent[who].append(tuple(one / steps for one in seconds))
        farthest = max(farthest, _distance(curves[hand], curves[executor]))
    cpu = [theirs[1] / mine[1] for mine, theirs in zip(spent[hand], spent[executor], strict=True)]
    wall = [theirs[0] / mine[0] for mine, theirs in zip(spent[hand], spent[executor], strict=True)]
    low, _, high = quantiles(cpu, n=4)
    return {
        "model": name,
        "tokens": tokens,
        "by_hand_cpu_seconds": median(one[1] for one in spent[hand]),
        "executor_cpu_seconds": median(one[1] for one in spent[executor]),
        "cpu_quotient": median(cpu),
        "cpu_quotient_quartiles": f"{low:.4f} {high:.4f}",
        "wall_quotient": median(wall),
        "rounds": rounds,
        "steps_a_round": steps,
        "largest_difference_of_losses_and_norms": farthest,
    }


def _distance(one: Curve, other: Curve) -> float:
    """Of losses and norms, relative, the largest."""
    ratios = [b / a for pairs in zip(one, other, strict=True) for a, b in zip(*pairs, strict=True)]
    return max(abs(ratio - 1) for ratio in ratios)


def _timed(what: Callable[[], Curve]) -> tuple[tuple[float, float], Curve]:
    """Wall and process CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    curve = what()
    return (time.perf_counter() - wall, time.process_time() - cpu), curve


def main() -> None:
    """Write a row for every case, and say it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    rows = []
    for (name, tokens), steps in CASES.items():
        rows.append(compare(name, tokens, steps, given.rounds))
        print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
        write_whole(given.out, as_csv(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
