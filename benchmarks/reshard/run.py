"""Save under one plan, resume under another: a matrix of plans, each pair trained by gloo processes.

    python benchmarks/reshard/run.py OUT [--mixture] [--layouts "mbs2;tp2 pp2 mbs2;..."]

Every plan trains 8 steps without interruption and leaves a checkpoint of step 4. Then every plan resumes from every
such checkpoint and trains steps 5 to 8; their losses and gradient norms are compared with those of the plan that saved.
Writes OUT/results.csv, a row for each pair as it ends, and prints the matrix. `--mixture` trains a mixture of experts
with latent attention, under plans of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from small_plans import MIXTURE, MODEL, plan_for

from cost_models.files.whole import write_whole
from cost_models.specs.transformer import TransformerSpec
from executor.checkpoints.manifest import Folder
from executor.run_config import RunConfig
from meshwright.terminal.output import as_csv
from planner.plan import Plan

LAYOUTS = (
    "mbs2",
    "tp2 pp2 mbs2",
    "dp4 mbs2 zero1",
    "dp4 mbs2 zero3",
    "pp2 mbs2 zero1",
    "tp2 dp2 sp mbs2 zero3",
    "pp2 dp2 mbs1 zero1 schedule=zbv",
    "cp2 dp2 mbs2 zero1",
    "dp4 mbs2 zero2 shard2",
)
MIXTURE_LAYOUTS = ("dp4 ep4 mbs2 zero1", "tp2 ep2 etp1 mbs2", "tp2 dp2 ep2 sp mbs2 zero3")
STEPS, SAVED_AT = 8, 4
PRELOAD = [
    "torch",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "executor.transformer.train",
]
TOLERANCE = 1e-4
"""Relative; what layouts that add up in another order may differ by under AdamW (test_parity.py)."""


def main() -> None:
    """All pairs; exits 1 where one differs by more than the tolerance, or a plan's own resume at all."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    model = MIXTURE if options.mixture else MODEL
    layouts = list(MIXTURE_LAYOUTS if options.mixture else LAYOUTS)
    if options.layouts:
        layouts = options.layouts.split(";")
    rows: list[dict[str, object]] = []
    for saved in layouts:
        folder = options.out / "saved"
        shutil.rmtree(folder, ignore_errors=True)
        whole = _train(model, saved, folder, resume=False)
        Folder(folder).delete(STEPS)
        for resumed in layouts:
            rows.append({"saved": saved, "resumed": resumed} | _pair(model, whole, resumed, folder))
            write_whole(options.out / "results.csv", as_csv(rows))
            print(rows[-1], flush=True)
    print(_matrix(rows, layouts))
    if any(_wrong(row) for row in rows):
        sys.exit(1)


Curve = tuple[list[float], list[float], int]
"""Losses, gradient norms, and the step of the first of them."""


def _train(model: TransformerSpec, layout: str, folder: Path, *, resume: bool) -> Curve:
    """On as many processes as the layout has ranks; rank 0 answers."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    ours, theirs = context.Pipe()
    plan = plan_for(layout, model)
    ranks = plan.layout.num_gpus
    with tempfile.TemporaryDirectory() as meeting:
        place = Path(meeting, "rendezvous").as_uri()
        started = [
            context.Process(target=_rank, args=(rank, place, plan, folder, resume, theirs))
            for rank in range(ranks)
        ]
        for process in started:
            process.start()
        curve: Curve = ours.recv()
        for process in started:
            process.join()
    assert all(process.exitcode == 0 for process in started)
    return curve


def _rank(rank: int, place: str, plan: Plan, folder: Path, resume: bool, answers: Connection) -> None:
    import torch
    import torch.distributed as dist

    from executor.checkpoints.checkpointer import Checkpointer
    from executor.data.batches import Batches, SharedBatches
    from executor.engine.engine import Engine
    from executor.run_config import EngineOptions, Rate
    from executor.steps import Stopped, Watcher, follow_steps
    from executor.transformer.train import TrainedTransformer, TransformerState

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=plan.layout.num_gpus)
    engine = Engine(plan, torch.device("cpu"), EngineOptions(rate=Rate(peak=1e-3)))
    batches = Batches(plan.training, vocabulary=plan.model.vocab_size, seed=0)
    saving = RunConfig(checkpoint=folder, every=SAVED_AT, resume=resume)
    config = RunConfig(steps=STEPS, warm_up=0)
    checkpointer = Checkpointer(TransformerState(engine), saving, batches.name)
    trained = TrainedTransformer(engine, SharedBatches(batches, engine, plan.layout.num_stages, STEPS - 1))
    curve = follow_steps(trained, config, checkpointer, Watcher(), lambda: False)
    assert not isinstance(curve, Stopped)
    if rank == 0:
        answers.send((curve.losses, curve.norms, curve.first_step))
    dist.destroy_process_group()


def _pair(model: TransformerSpec, whole: Curve, resumed: str, folder: Path) -> dict[str, object]:
    """Resume on a copy, as the run goes on saving."""
    copy = folder.with_name("resumed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    started = time.perf_counter()
    losses, norms, first = _train(model, resumed, copy, resume=True)
    assert first == SAVED_AT + 1
    return {
        "loss_difference": _difference(losses, whole[0][SAVED_AT:]),
        "norm_difference": _difference(norms, whole[1][SAVED_AT:]),
        "exact": losses == whole[0][SAVED_AT:] and norms == whole[1][SAVED_AT:],
        "seconds": round(time.perf_counter() - started, 1),
    }


def _difference(got: list[float], expected: list[float]) -> float:
    """The largest relative one."""
    return max(abs(mine - theirs) / theirs for mine, theirs in zip(got, expected, strict=True))


def _wrong(row: dict[str, object]) -> bool:
    same = row["saved"] == row["resumed"]
    apart = max(float(str(row["loss_difference"])), float(str(row["norm_difference"])))
    return apart > TOLERANCE or (same and not row["exact"])


def _matrix(rows: list[dict[str, object]], layouts: list[str]) -> str:
    """Largest relative difference of loss, in Markdown."""
    lines = ["| saved / resumed | " + " | ".join(f"`{layout}`" for layout in layouts) + " |"]
    lines.append("| --- |" + " --- |" * len(layouts))
    for saved in layouts:
        mine = [row for row in rows if row["saved"] == saved]
        cells = ["exact" if row["exact"] else f"{row['loss_difference']:.0e}" for row in mine]
        lines.append(f"| `{saved}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--mixture", action="store_true")
    parser.add_argument("--layouts", help="default: all of the model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
