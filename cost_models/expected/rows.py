"""Timed runs as rows beside which a question is placed: features of model, job and layout, and how far each was off.

`data/errors/steps.csv` holds one row for each shipped run that was timed, priced with the profile that is shipped for
its GPU and stack (`benchmarks/fit_errors.py` writes it). A distance is over features, most of them binary logarithms.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Bools
from cost_models.axes.layout import Layout
from cost_models.defaults import die_of
from cost_models.operators.flops import model_flops
from cost_models.operators.parameters import total_parameters
from cost_models.question import Question

SHAPE = ("parameters", "flops_per_token", "hidden", "layers", "sequence", "gpus", "microbatches")
SPLIT = ("tp", "pp", "vpp", "cp", "ep", "mbs")
SWITCHES = ("sharded", "recomputed", "bits")
FEATURES = (*SHAPE, *SPLIT, *SWITCHES)
NAMES = ("gpu", "die", "stack", "family", "experts")
_BITS = {"fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "fp4": 4}
_RECOMPUTED = {"none": 0.0, "full": 1.0}
_PARTLY = 0.5


def features_of(question: Question, layout: Layout) -> dict[str, float]:
    """Feature → value; sizes and degrees as binary logarithms, sharding and recomputation as shares."""
    model, training = question.model, question.training
    policies = [mix.partition(":")[0] for mix in layout.stage_recompute]
    counts = {
        "parameters": total_parameters(model),
        "flops_per_token": model_flops(model, training, layout.tp) / training.tokens_per_step,
        "hidden": model.hidden_size,
        "layers": model.num_layers,
        "sequence": training.sequence_length,
        "gpus": layout.num_gpus,
        "microbatches": layout.microbatches(training.global_batch),
        **{axis: getattr(layout, axis) for axis in SPLIT},
        "bits": _BITS[training.precision],
    }
    return {
        **{name: float(np.log2(value)) for name, value in counts.items()},
        "sharded": float(layout.zero >= 2),
        "recomputed": float(np.mean([_RECOMPUTED.get(one, _PARTLY) for one in policies])),
    }


def names_of(question: Question) -> dict[str, str]:
    """GPU, die, stack, family of stacks, and whether the model has experts."""
    gpu, stack = question.cluster.gpu.name, question.stack
    return {
        "gpu": gpu,
        "die": die_of(gpu),
        "stack": stack.name,
        "family": stack.family or stack.name,
        "experts": "yes" if question.model.has_experts else "no",
    }


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """N runs or questions: what they are, and of runs how long they took."""

    features: Array
    """(N, F), in the order of `FEATURES`."""
    names: dict[str, npt.NDArray[np.str_]]
    """Name of `NAMES`, or "source" → (N,)."""
    spread: Array
    """(N,) how far its step moves with the constants that timed runs leave open: a deviation of its logarithm."""
    told: tuple[dict[str, str], ...] = ()
    """Of runs: source, model, layout and measured seconds, as written."""

    def __len__(self) -> int:
        return len(self.features)

    def column(self, feature: str) -> Array:
        """(N,) one feature."""
        values: Array = self.features[:, FEATURES.index(feature)]
        return values

    def some(self, which: Any) -> Rows:
        """Some of the rows, by numbers or mask."""
        places = np.arange(len(self))[which]
        told = tuple(self.told[place] for place in places) if self.told else ()
        names = {name: values[places] for name, values in self.names.items()}
        return Rows(self.features[places], names, self.spread[places], told)

    def alike(self, other: Rows, name: str) -> Bools:
        """(N, M) whether a name is the same."""
        same: Bools = self.names[name][:, None] == other.names[name][None]
        return same


def row_of(question: Question, layout: Layout, spread: float) -> Rows:
    """One question with its layout as a row, of no source."""
    found, names = features_of(question, layout), names_of(question)
    return Rows(
        features=np.array([[found[name] for name in FEATURES]]),
        names={name: np.array([value]) for name, value in {**names, "source": ""}.items()},
        spread=np.array([spread]),
    )


@cache
def timed_rows() -> tuple[Rows, Array]:
    """Every shipped run that was timed, and (N,) ln(measured / predicted) of each."""
    text = (files("cost_models") / "data" / "errors" / "steps.csv").read_text(encoding="utf-8")
    table = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    rows = Rows(
        features=np.array([[float(row[name]) for name in FEATURES] for row in table]),
        names={name: np.array([row[name] for row in table]) for name in (*NAMES, "source")},
        spread=np.array([float(row["spread"]) for row in table]),
        told=tuple(
            {
                name: row[name]
                for name in ("run", "source", "model", "layout", "seconds", "gpu", "stack", "batch")
            }
            for row in table
        ),
    )
    return rows, np.array([float(row["log_ratio"]) for row in table])
