"""Memory of fine-tuning, priced and as torch holds it: `python benchmarks/tuning_memory/run.py`.

One rank of each plan runs through all operators of a step on fake tensors at the model's real width, and every storage
that is alive is followed (`meshwright emulate --fake`); the price is that of the same operators on the same device.
States of 8 bits are those of torchao's AdamW (`torchao.optim`), made for a parameter of every size. Writes
`results.csv` beside itself and prints the table of `tuning_memory_cpu2_202611.md`.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.memory.states import moment_bytes
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec, TuningSpec
from executor.emulate.one_rank import emulate
from planner.plan import make_plan

HERE = Path(__file__).parent
MIB = 2**20
LAYOUTS = ("mbs2", "mbs2 recompute=full", "tp2 mbs2 sp", "dp2 mbs2 zero3")
MODELS = {"llama3.2-1b": (1024, LAYOUTS)}
"""Model → tokens of a sequence, layouts."""
JOBS: dict[str, TuningSpec | None] = {
    "full": None,
    "LoRA, all": TuningSpec(rank=16),
    "LoRA, q and v": TuningSpec(rank=16, targets=("q", "v")),
    "QLoRA, nf4": TuningSpec(rank=16, base="nf4"),
    "QLoRA, int8": TuningSpec(rank=16, base="int8"),
}
PARTS = ("weights", "gradients", "optimizer", "rest")


def rows(model: str, job: str, layout: str) -> dict[str, Any]:
    """Parts of the first rank's peak, MiB, priced and held."""
    parsed, tuning = parse_layout(layout), JOBS[job]
    training = TrainingSpec(global_batch=4, sequence_length=MODELS[model][0], precision="bf16", tuning=tuning)
    spec = resolve_model(model).spec
    cluster = resolve_cluster("dgx-h100", parsed.num_gpus)
    question = complete_question(spec, cluster, training, stack=OWN_STACK)
    report = emulate(make_plan(question, estimate(question, parsed)), 0, fake=True)
    priced, held = report.memory_as_run, report.memory
    assert priced is not None
    found: dict[str, Any] = {"model": model, "job": job, "layout": layout}
    for part in PARTS:
        found |= {f"{part} priced": priced[part] / MIB, f"{part} held": held[part] / MIB}
    total = [sum(one[part] for part in PARTS) for one in (priced, held)]
    return found | {"priced": total[0] / MIB, "held": total[1] / MIB, "error": total[0] / total[1] - 1}


def states_of_8_bits() -> tuple[float, float]:
    """Bytes of both moments for each parameter of a Llama block of 1B: priced, and as torchao keeps them."""
    import torch
    from torchao.optim.subclass_8bit import OptimState8bit

    training = TrainingSpec(global_batch=8, sequence_length=64, optimizer="adamw-8bit")
    spec = resolve_model("llama3.2-1b").spec
    question = complete_question(spec, resolve_cluster("dgx-h100", 1), training, stack=OWN_STACK)
    h, kv, inner = spec.hidden_size, spec.kv_size, spec.ffn_hidden_size
    held = elements = 0
    for shape in ((h, h), (kv, h), (kv, h), (h, h), (inner, h), (inner, h), (h, inner)):
        for signed in (True, False):
            state = OptimState8bit.zeros(shape, signed, 256, torch.device("meta"))
            held += state.codes.nbytes + state.scale.nbytes
        elements += shape[0] * shape[1]
    return moment_bytes(question), held / elements


def line(one: dict[str, Any]) -> str:
    """Of the table: priced, held."""
    cells = [f"{one[f'{part} priced']:,.0f}, {one[f'{part} held']:,.0f}" for part in PARTS]
    total, error = f"{one['priced']:,.0f}, {one['held']:,.0f}", f"{one['error']:+.1%}".replace("%", " %")
    layout = f"`{one['layout']}`"
    return f"| {' | '.join([one['model'], one['job'], layout, *cells, total, error])} |"


def main() -> None:
    """Run all, print the table, write the file."""
    print("| model | job | layout | weights | gradients | states | rest | all, MiB | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for model in MODELS:
        for job in JOBS:
            for layout in MODELS[model][1]:
                found.append(rows(model, job, layout))
                print(line(found[-1]), flush=True)
    with (HERE / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        for one in found:
            numbers = {
                name: round(value, 3 if name == "error" else 0)
                for name, value in one.items()
                if isinstance(value, float)
            }
            writer.writerow(one | numbers)
    priced, held = states_of_8_bits()
    print(
        f"\nStates of 8 bits: {priced:.5f} bytes a parameter priced, {held:.5f} held ({priced / held - 1:+.2%})."
    )


if __name__ == "__main__":
    main()
