"""CPU seconds to build a rank and of its first step beside later ones, by layout and blocks; and to draw an element.

`weights.py OUT.csv`: tiny blocks, so that what is timed is Python and torch's host side, one rank alone in a fake
process group, each case in a process of its own. Without OUT one case: `weights.py --one LAYOUT BLOCKS`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from cost_models.files.whole import write_whole
from meshwright.terminal.output import as_csv

LAYOUTS = (
    "dp1 mbs1 zero0",
    "dp2 mbs1 zero1",
    "dp2 mbs1 zero3",
    "tp2 sp dp1 mbs1 zero0",
    "tp2 sp dp2 mbs1 zero3",
)
BLOCKS = (8, 32, 64)
DRAWN = 1 << 22


def one(text: str, blocks: int) -> dict[str, object]:
    import torch

    from cost_models.axes.layout import parse_layout
    from cost_models.defaults import OWN_STACK, complete_question
    from cost_models.files.loading import resolve_cluster
    from cost_models.pipeline.pricing import estimate
    from cost_models.specs.training import TrainingSpec
    from cost_models.specs.transformer import TransformerSpec
    from executor.boxes import Box
    from executor.emulate.stand_ins import fake_process_group
    from executor.engine.engine import Engine
    from executor.models.initial import InitialValues
    from executor.run_config import EngineOptions
    from planner.plan import make_plan

    torch.set_num_threads(1)
    layout = parse_layout(text)
    model = TransformerSpec(
        num_layers=blocks,
        hidden_size=32,
        num_heads=2,
        num_kv_heads=2,
        head_dim=16,
        ffn_hidden_size=128,
        vocab_size=64,
        max_positions=16,
    )
    job = TrainingSpec(global_batch=2 * layout.dp, sequence_length=16, precision="fp32")
    question = complete_question(model, resolve_cluster("local", layout.num_gpus), job, stack=OWN_STACK)
    plan = make_plan(question, estimate(question, layout))
    tokens, steps = torch.zeros(2, 16, dtype=torch.long), []
    with fake_process_group(0, layout.num_gpus):
        began = time.process_time()
        engine = Engine(plan, torch.device("cpu"), EngineOptions())
        built = time.process_time() - began
        for _ in range(6):
            began = time.process_time()
            engine.step(tokens, tokens)
            steps.append(time.process_time() - began)
    values, side = torch.empty(DRAWN // 1024, 1024), (DRAWN // 1024, 1024)
    began = time.process_time()
    InitialValues(seed=0, tied=False).fill("up.weight", side, Box((0, 0), side), values)
    draw = (time.process_time() - began) / DRAWN
    return {
        "layout": text,
        "blocks": blocks,
        "build_seconds": round(built, 3),
        "first_step_seconds": round(steps[0], 3),
        "later_step_seconds": round(sorted(steps[1:])[2], 3),
        "draw_ns": round(1e9 * draw, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--one", nargs=2)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one[0], int(options.one[1]))))
        return
    rows = []
    for layout in LAYOUTS:
        for blocks in BLOCKS:
            command = [sys.executable, __file__, "--one", layout, str(blocks)]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rows.append(json.loads(told.splitlines()[-1]))
            print(rows[-1], flush=True)
    write_whole(options.out, as_csv(rows))


if __name__ == "__main__":
    main()
