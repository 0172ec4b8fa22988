"""Time real transformer blocks in one process and set each part beside what a calibrated profile predicts.

    python benchmarks/local_blocks.py profile.yaml [--csv blocks.csv]

Blocks are written in plain torch.nn, GPT style and Llama style; clocks are thread CPU time. Parts are
predicted with the profile's constants and curves from the table of
docs/decisions/0005-what-the-executor-runs-and-keeps.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cost_models.files.catalog import load_profile
from cost_models.files.whole import write_whole
from cost_models.specs.hardware import HardwareProfile, attention_head_seconds, curve_seconds
from meshwright.terminal.formats import as_csv

_BLOCKS, _REPEATS, _WARM_UP = 3, 12, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One block to time."""

    style: str
    batch: int
    sequence: int
    hidden: int
    heads: int
    dropout: float = 0.0


CASES = [
    Case(style="gpt", batch=1, sequence=128, hidden=128, heads=4),
    Case(style="gpt", batch=4, sequence=128, hidden=128, heads=4),
    Case(style="gpt", batch=2, sequence=256, hidden=256, heads=4),
    Case(style="gpt", batch=1, sequence=512, hidden=256, heads=8),
    Case(style="gpt", batch=4, sequence=256, hidden=512, heads=8),
    Case(style="gpt", batch=2, sequence=128, hidden=256, heads=4, dropout=0.1),
    Case(style="llama", batch=1, sequence=128, hidden=128, heads=4),
    Case(style="llama", batch=2, sequence=256, hidden=256, heads=4),
    Case(style="llama", batch=2, sequence=512, hidden=512, heads=8),
]


class GptBlock(nn.Module):
    """LayerNorm, fused query-key-value projection, GELU, biases."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        h = case.hidden
        self.case = case
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv, self.projection = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.drop = nn.Dropout(case.dropout)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = x_BSD.shape
        q, k, v = (
            part.view(batch, sequence, self.case.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norms[0](x_BSD)).split(width, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BSD = x_BSD + self.drop(self.projection(mixed.transpose(1, 2).reshape(batch, sequence, width)))
        return x_BSD + self.drop(self.down(F.gelu(self.up(self.norms[1](x_BSD)))))


class LlamaBlock(nn.Module):
    """RMSNorm, separate projections, rotary positions, SwiGLU with inner width 8/3, no biases."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        h, f = case.hidden, llama_inner(case.hidden)
        self.case = case
        self.norms = nn.ModuleList(nn.RMSNorm(h) for _ in range(2))
        self.query, self.key, self.value, self.projection = (nn.Linear(h, h, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False)
        self.down = nn.Linear(f, h, bias=False)
        angles = torch.randn(case.sequence, 1, h // case.heads // 2)
        self.cosine, self.sine = angles.cos(), angles.sin()

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        batch, sequence, width = x_BSD.shape
        normed = self.norms[0](x_BSD)
        q, k, v = (
            layer(normed).view(batch, sequence, self.case.heads, -1)
            for layer in (self.query, self.key, self.value)
        )
        q, k, v = (part.transpose(1, 2) for part in (self._rotate(q), self._rotate(k), v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BSD = x_BSD + self.projection(mixed.transpose(1, 2).reshape(batch, sequence, width))
        normed = self.norms[1](x_BSD)
        return x_BSD + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def _rotate(self, x_BSHK: torch.Tensor) -> torch.Tensor:
        left, right = x_BSHK.float().chunk(2, dim=-1)
        turned = (left * self.cosine - right * self.sine, right * self.cosine + left * self.sine)
        return torch.cat(turned, dim=-1).type_as(x_BSHK)


def llama_inner(hidden: int) -> int:
    """8/3 of the hidden size, rounded up to 32."""
    return -(-8 * hidden // 3 // 32) * 32


def measured(case: Case) -> tuple[float, float]:
    """(forward, backward) quiet thread CPU seconds of one block, gradients accumulating."""
    blocks = nn.Sequential(*((GptBlock if case.style == "gpt" else LlamaBlock)(case) for _ in range(_BLOCKS)))
    x_BSD = torch.randn(case.batch, case.sequence, case.hidden, requires_grad=True)
    forward, backward = [], []
    for repeat in range(_WARM_UP + _REPEATS):
        start = time.thread_time()
        out = blocks(x_BSD)
        middle = time.thread_time()
        out.backward(out.detach())
        end = time.thread_time()
        if repeat >= _WARM_UP:
            forward.append(middle - start)
            backward.append(end - middle)
    return min(forward) / _BLOCKS, min(backward) / _BLOCKS


def predicted(case: Case, profile: HardwareProfile) -> dict[str, tuple[float, float]]:
    """Part → (forward, backward) seconds of one block."""
    tokens, h = case.batch * case.sequence, case.hidden
    f = 4 * h if case.style == "gpt" else llama_inner(h)
    weights = (4 * h * h + 2 * h * f) if case.style == "gpt" else (4 * h * h + 3 * h * f)
    shapes = (
        [(3 * h, h), (h, h), (f, h), (h, f)]
        if case.style == "gpt"
        else [(h, h)] * 4 + [(f, h)] * 2 + [(h, f)]
    )
    products = sum(product_seconds(profile, tokens, n, k) for n, k in shapes)
    heads = attention_head_seconds(profile.attention, np.array(float(case.sequence)), h // case.heads)
    count = case.batch * case.heads
    n, wide = tokens * h, tokens * f
    if case.style == "gpt":
        forward = [("layernorm", n, 2), ("gelu", wide, 1), ("add", n, 2)]
        backward = [("layernorm", n, 2), ("gelu", wide, 1)]
        extra = [("add", n, 2), ("copy", 3 * n, 1), ("bias-gradient", 5 * n + wide, 1)]
        if case.dropout:
            forward += [("dropout", n, 2)]
            backward += [("dropout", n, 2)]
    else:
        backward = [("rmsnorm", n, 2), ("rotary", n, 2), ("silu", wide, 1), ("multiply", wide, 1)]
        forward = [*backward, ("add", n, 2)]
        extra = [("add", n, 5)]
    extra += [("add", weights, 1)]
    curves = {curve.operator: curve for curve in profile.operators}

    def seconds(points: Callable[[str], tuple], operators: list[tuple[str, int, int]]) -> float:
        return sum(
            times * float(curve_seconds(points(name), np.array(size))) for name, size, times in operators
        )

    def forwards(name: str) -> tuple:
        return curves[name].forward

    return {
        "products": (products, 2 * products),
        "attention": (count * float(heads[0]), count * float(heads[1])),
        "element-wise": (
            seconds(forwards, forward),
            seconds(lambda name: curves[name].backward, backward) + seconds(forwards, extra),
        ),
        "host": (profile.host_layer_seconds, profile.host_layer_seconds),
    }


def product_seconds(profile: HardwareProfile, m: int, n: int, k: int) -> float:
    """One of a linear layer's three products; all three have the same size and the same operands."""
    assert profile.measured_peak
    assert profile.gemm_operand_bandwidth
    operand_bytes = 4 * (m * k + n * k + m * n)
    arithmetic = 2.0 * m * n * k / (profile.measured_peak * profile.gemm_efficiency)
    return arithmetic + operand_bytes / profile.gemm_operand_bandwidth


def main() -> None:
    """One line a case; a CSV with the parts on request."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", help="YAML written by `meshwright calibrate`")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    profile = load_profile(arguments.profile)
    rows = []
    print(f"{'case':42} {'forward':>20} {'backward':>20}  {'error':>6}")
    for case in CASES:
        forward, backward = measured(case)
        parts = predicted(case, profile)
        sums = [sum(part[i] for part in parts.values()) for i in (0, 1)]
        error = sum(sums) / (forward + backward) - 1
        name = f"{case.style} b{case.batch} s{case.sequence} h{case.hidden} a{case.heads} drop{case.dropout}"
        print(
            f"{name:42} {sums[0] * 1e3:8.2f} of {forward * 1e3:6.2f} ms {sums[1] * 1e3:8.2f} of"
            f" {backward * 1e3:6.2f} ms  {error:+6.1%}  "
            + " ".join(f"{part} {1e3 * f:.2f}+{1e3 * b:.2f}" for part, (f, b) in parts.items())
        )
        flat = {
            f"{part}_{way}": value[i]
            for part, value in parts.items()
            for i, way in enumerate(("forward", "backward"))
        }
        rows.append(
            asdict(case) | {"forward_seconds": forward, "backward_seconds": backward, "error": error} | flat
        )
    if arguments.csv:
        write_whole(arguments.csv, as_csv(rows))


if __name__ == "__main__":
    main()
