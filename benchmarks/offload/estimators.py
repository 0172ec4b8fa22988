"""Compare DeepSpeed's estimates of memory for model states with ours, on the example of its documentation.

    python benchmarks/offload/estimators.py

DeepSpeed's are counted by its own rules (deepspeed/runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs).
"""

from __future__ import annotations

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout, Offload
from cost_models.axes.offload.residency import host_bytes
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

GIB = 2.0**30
GPUS = 8
PARAMETERS, LARGEST = 2851e6, 32128 * 1024.0
"""T5 of 3 B: its largest layer is the embedding."""
BUFFERS = 1.5
"""`additional_buffer_factor`."""


def estimated(*, parameters: float, states: float, whole_on_every_rank: bool = False) -> tuple[float, float]:
    """DeepSpeed's bytes on the host and on a GPU of one node, with so many a parameter on either."""
    on_host = max(4.0 * GPUS, states) if whole_on_every_rank else states
    return PARAMETERS * on_host * BUFFERS, 4 * LARGEST + parameters * PARAMETERS / GPUS


THEIRS = {
    "weights and states, zero.Init": estimated(parameters=0, states=18),
    "weights and states": estimated(parameters=0, states=18, whole_on_every_rank=True),
    "states, zero.Init": estimated(parameters=2, states=16),
}


def asked() -> Question:
    """A decoder with T5's shape and as many parameters, on one DGX V100."""
    model = TransformerSpec.model_validate(
        {
            "name": "as large as t5-3b",
            "num_layers": 56,
            "hidden_size": 1024,
            "num_heads": 32,
            "head_dim": 128,
            "ffn_hidden_size": 16384,
            "vocab_size": 32128,
            "max_positions": 512,
            "positions": "rotary",
            "tied_embeddings": True,
        }
    )
    training = TrainingSpec(global_batch=GPUS, sequence_length=512, precision="fp16", recompute=("full",))
    return complete_question(
        model, catalog.load_cluster("dgx-v100"), training, stack=catalog.load_stack("deepspeed")
    )


def ours(offload: Offload) -> tuple[float, float, float]:
    """Bytes on the host, of states on a GPU, and its peak."""
    question = asked()
    layout = Layout(dp=GPUS, zero=3, layers=(56,), offload=offload, recompute=("full",))
    found = estimate(question, layout)
    parts = dict(found.rank_memory[0])
    states = sum(parts[part] for part in ("weights", "gradients", "optimizer"))
    return float(host_bytes(question, LayoutColumns.of([layout]))[0]), states, found.peak_bytes


def main() -> None:
    """Print the table of estimators.md."""
    print(f"{total_parameters(asked().model) / 1e6:.0f} M parameters, {GPUS} GPUs of one node, ZeRO-3; GiB\n")
    print("| on the host | DeepSpeed: host | a GPU | here: host | states of a GPU | its peak |")
    print("|--|--|--|--|--|--|")
    streamed, states = Offload(streamed=EVERY), Offload(states=EVERY)
    for name, offload in zip(THEIRS, (streamed, streamed, states), strict=True):
        host, held, peak = (each / GIB for each in ours(offload))
        theirs = " | ".join(f"{each / GIB:.2f}" for each in THEIRS[name])
        print(f"| {name} | {theirs} | {host:.1f} | {held:.2f} | {peak:.2f} |")
    host, held, peak = (each / GIB for each in ours(NOWHERE))
    nothing = (4 * LARGEST * GPUS * BUFFERS / GIB, (4 * LARGEST + 18 * PARAMETERS / GPUS) / GIB)
    print(
        f"| nothing, zero.Init | {nothing[0]:.2f} | {nothing[1]:.2f} | {host:.1f} | {held:.2f} | {peak:.2f} |"
    )


if __name__ == "__main__":
    main()
