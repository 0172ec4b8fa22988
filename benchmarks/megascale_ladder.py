"""MegaScale's ladder of techniques (Jiang et al. 2024, table 3), predicted beside published.

    python benchmarks/megascale_ladder.py

175B on 256 A100, batch 256 (768 with LAMB), and the headline on 12,288: each step is one fact of the model or of the
software stack changed, on top of those before. The hardware profile is that of the baseline's stack until `misc`, where
the two are not told apart by any mechanism: from there it is MegaScale's own.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question, nearest_profile
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.estimating import estimate
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

GPUS, MOST_GPUS = 256, 12288
MODEL_PARALLEL = 64
BATCH, LAMB_BATCH, HEADLINE_BATCH = 256, 768, 6144
WINDOW = 1024
"""Tokens; the paper does not print it, its FLOP counts imply about half the sequence."""
MODEL = TransformerSpec.model_validate(
    {
        "name": "gpt-175b-128-heads",
        "num_layers": 96,
        "hidden_size": 12288,
        "num_heads": 128,
        "head_dim": 96,
        "ffn_hidden_size": 49152,
        "vocab_size": 64000,
        "max_positions": 2048,
    }
)
LADDER: tuple[tuple[str, float, dict[str, object], dict[str, object]], ...] = (
    ("baseline", 47.7, {}, {"fused_elementwise": False}),
    ("+ parallel block", 52.3, {"parallel_block": True}, {}),
    ("+ sliding window", 53.3, {"attention_window": WINDOW}, {}),
    ("+ tensor overlap", 55.5, {}, {"overlap_tensor_parallel": 0.9}),
    ("+ pipeline overlap", 58.0, {}, {"overlap_pipeline_sends": True}),
    ("+ data overlap", 59.5, {}, {"overlap_gradient_reduce": True, "overlap_parameter_gather": True}),
    ("+ efficient operators", 61.2, {}, {"fused_elementwise": True}),
)
"""What was added, the published MFU in per cent, and what it changes of the model and of the stack."""


def mfu(model: TransformerSpec, changes: dict[str, object], batch: int, gpus: int, profile: str) -> float:
    """Of the ladder's layout on `gpus`, with the baseline's stack changed by `changes`."""
    stack = catalog.load_stack("megatron-2023").model_copy(update=changes)
    training = TrainingSpec(global_batch=batch, sequence_length=2048)
    asked = complete_question(model, resolve_cluster("dgx-a100-80gb", gpus), training, stack=stack)
    question = replace(asked, hardware=nearest_profile(asked.cluster.gpu, profile))
    layout = parse_layout(f"tp8 pp8 vpp6 dp{gpus // MODEL_PARALLEL} mbs1 zero1 sp")
    return estimate(question, layout).mfu


def main() -> None:
    """Print the ladder."""
    model, changes = MODEL, dict[str, object]()
    print(f"{'technique':24}{'predicted':>10}{'published':>10}")

    def show(name: str, published: float, batch: int, profile: str) -> None:
        print(f"{name:24}{mfu(model, changes, batch, GPUS, profile):10.1%}{published:9.1f} %")

    for name, published, of_model, of_stack in LADDER:
        model = model.model_copy(update=of_model)
        changes |= of_stack
        show(name, published, BATCH, "megatron-2023")
    show("+ misc", 62.3, BATCH, "megascale")
    show("+ LAMB (3 x batch)", 65.3, LAMB_BATCH, "megascale")
    before = mfu(MODEL, {}, HEADLINE_BATCH, MOST_GPUS, "megatron-2023")
    after = mfu(model, changes, HEADLINE_BATCH, MOST_GPUS, "megascale")
    print(f"\n{MOST_GPUS} GPUs, batch {HEADLINE_BATCH}")
    print(f"{'Megatron-LM':24}{before:10.1%}{41.2:9.1f} %")
    print(f"{'MegaScale':24}{after:10.1%}{55.2:9.1f} %")
    print(f"{'ratio':24}{after / before:10.2f}{1.34:9.2f}")


if __name__ == "__main__":
    main()
