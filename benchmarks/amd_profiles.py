"""Profiles of AMD's GPUs: those of H100, each constant times the ratio of what tests published for both reach.

    python benchmarks/amd_profiles.py        a second; writes `cost_models/data/profiles/amd/`

No table of timed training steps on these GPUs is one that a fit could use, but kernels and collectives of both were
measured by the same tests (`RATIOS`). What training keeps of such rates, hosts and stragglers are as on H100. Products
and attention have no ratio, as the GPU's entry names their published rates. The intervals of H100's constants widen by
`WIDER`: how far those tests, their releases and a stack of its own leave each constant open.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cost_models.arrays import Array
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.step_time_fit import with_covariance
from cost_models.specs.hardware import GemmTile, Scenarios

FOLDER = Path(__file__).parents[1] / "cost_models" / "data" / "profiles" / "amd"
FROM = "h100-sxm"

STREAM = {"h100": 2.97 / 3.35, "mi300x": 4.09 / 5.3, "mi250x-gcd": 1.15 / 1.638}
"""Share of memory bandwidth in BabelStream's triad: Azure AI benchmarking guide, ND H100 v5 and MI300X v5 (ROCm 6.2);
copies and sums of AMD's acceptance criteria for MI250X (ROCm/system-acceptance-docs, 1.2 and 1.1 TB/s)."""
ALL_REDUCE = {"h100": 370 / 450, "mi300x": 317 / 448, "mi355x": 304 / 537.6, "mi250x-gcd": 1.0}
"""Share of a node's links in an all-reduce of 8 GB over eight GPUs: Austin et al. 2025, How to scale your model (H100
without SHARP, which trainers seldom have); Kolla et al. 2025, Understanding RCCL bandwidth (MI300X; the same in
Azure's guide); the least that AMD accepts for MI355X (ROCm/system-acceptance-docs). On MI250X AMD accepts 125 GB/s, and
the links named for it carry 100."""
GPUS = {"mi300x": ("mi325x",), "mi355x": (), "mi250x-gcd": ()}
"""GPU → others of its die."""
STACKS = ("", "-megatron-core", "-fsdp", "-jax")
"""Those that H100 has a profile for; hosts and launches follow the stack. The first is of all stacks."""
WIDER = {
    "gemm_efficiency": 0.10,  # 620 on shapes of language models, 668 and 708 TFLOP/s at best; 450 under ROCm 6.1
    "attention_forward_efficiency": 0.30,
    "attention_backward_efficiency": 0.30,
    "memory_efficiency": 0.10,  # 3.9 (AMD's limit) to 4.3 TB/s (arXiv:2511.17127)
    "kernel_seconds": 0.50,
    "link_efficiency": 0.15,
    "network_efficiency": 0.25,  # no test of both over a network is known
    "step_seconds": 0.30,
    "jitter_per_doubling": 0.50,
}
"""Deviations of logarithms beyond those of H100's constants."""
MOST = 0.8
"""Most deviation of one constant: sources on H100 whose hosts never held them up leave a launch open a thousandfold."""
UNEXPLAINED = 0.10
"""The same of a step whatever its constants."""


def main() -> None:
    """Write every profile."""
    for gpu, others in GPUS.items():
        for stack in STACKS:
            _write(gpu, others, stack)


def _write(gpu: str, others: tuple[str, ...], stack: str) -> None:
    own = catalog.load_profile(f"h100{stack}")
    assert own.scenarios is not None
    memory = STREAM.get(gpu, STREAM["mi300x"]) / STREAM["h100"]
    links = ALL_REDUCE[gpu] / ALL_REDUCE["h100"]
    tiles = (
        GemmTile(rows=256, columns=256, efficiency=1.0),
        *own.gemm_tiles,
    )  # AMD's largest, as measured at best
    changed = {
        "name": f"{gpu}{stack}",
        "gpu": gpu,
        "also_for": others,
        "borrowed_from": FROM,
        "gemm_tiles": tiles,
        "memory_efficiency": round(own.memory_efficiency * memory, 4),
        "optimizer_efficiency": round(own.optimizer_efficiency * memory, 4),
        "link_efficiency": round(min(1.0, own.link_efficiency * links), 4),
        "median_error": None,
        "validated_runs": 0,
        "unseen_error": None,
        "pair_error": None,
        "scenarios": _wider(own.scenarios),
        "timed": (),
        "source": (
            f"Constants of profile `{own.name}`, memory's times {memory:.3f} and links' times {links:.3f}: what"
            " published tests reach on this GPU over what they reach on an H100 (benchmarks/amd_profiles.py names"
            " them). No training step was compared."
        ),
    }
    FOLDER.mkdir(exist_ok=True)
    save_spec(own.model_copy(update=changed), FOLDER / f"{gpu}{stack}.yaml")


def _wider(told: Scenarios) -> Scenarios:
    """The scenarios with `WIDER` added to their covariance."""
    names = tuple(told.by_constant)
    logs: Array = np.log(np.array([told.by_constant[name] for name in names]))
    own = logs @ logs.T / logs.shape[1]
    less = np.minimum(1.0, MOST / np.sqrt(np.diag(own)))
    more = np.diag([WIDER.get(name, 0.0) ** 2 for name in names])
    found = with_covariance(names, own * np.outer(less, less) + more)
    update = {"factors": found, "unexplained": round(float(np.hypot(told.unexplained, UNEXPLAINED)), 4)}
    return told.model_copy(update=update)


if __name__ == "__main__":
    main()
