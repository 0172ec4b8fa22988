"""What the executor does not do, timed beside what it does, in Llama 3.1 8B's shapes: is it worth doing?

    queries, keys, values   three products forward and backward, against one of matrices side by side; likewise gate, up
    loss of a chunk         eagerly, against torch's compiler (`--compile` does that)
    added gradients         a product in 16 bits and a sum in fp32, against one product that adds to fp32 itself

Rows of fusions.csv: name, seconds of each way, what failed. Gradients of what lies side by side are joined by a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from executor.microbenchmarks.stopwatch import Stopwatch
from executor.models.ends import ChunkOfLogits

Row = dict[str, Any]
_TOKENS, _WIDTH, _INNER, _WORDS = 4096, 4096, 14336, 128256
_KEYS = 1024
_SHRINK = 64
"""Of every side on a CPU."""
_SHORT = 120


def timed(watch: Stopwatch, dtype: torch.dtype) -> list[Row]:
    """A row for each; on a CPU narrow ones."""
    by = 1 if watch.device.type == "cuda" else _SHRINK
    tokens, width = _TOKENS // by, _WIDTH // by

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=watch.device, dtype=dtype)

    def columns(*outputs: int) -> tuple[Callable[[], object], Callable[[], object]]:
        x, together = normal(tokens, width).requires_grad_(), normal(sum(outputs), width).requires_grad_()
        apart = [one.detach().clone().requires_grad_() for one in torch.split(together, outputs)]
        given = [normal(tokens, out) for out in outputs]

        def one_by_one() -> object:
            return torch.autograd.grad([x @ one.t() for one in apart], [x, *apart], given)

        def side_by_side() -> object:
            return torch.autograd.grad(torch.split(x @ together.t(), outputs, dim=-1), [x, together], given)

        return one_by_one, side_by_side

    x, head = normal(2048 // by, width), normal(_WORDS // by, width)
    targets = torch.randint(len(head), (len(x),), device=watch.device)
    eager, compiled = ChunkOfLogits(), torch.compile(ChunkOfLogits(), fullgraph=True)
    gradient, entered = normal(tokens, _INNER // by), normal(tokens, width)
    sums = torch.zeros(_INNER // by, width, device=watch.device)

    def inside() -> object:
        return torch.addmm(sums, gradient.t(), entered, out_dtype=torch.float32, out=sums)

    pairs = {
        "queries, keys, values": columns(width, _KEYS // by, _KEYS // by),
        "gate, up": columns(_INNER // by, _INNER // by),
        "loss of a chunk": (lambda: eager(x, head, targets), lambda: compiled(x, head, targets)),
        "added gradients": (lambda: sums.add_(gradient.t() @ entered), inside),
    }
    return [_row(watch, name, *ways) for name, ways in pairs.items()]


def _row(watch: Stopwatch, name: str, as_it_is: Callable[[], object], instead: Callable[[], object]) -> Row:
    row: Row = {"name": name, "seconds": None, "instead_seconds": None, "failed": ""}
    try:
        row["seconds"] = watch.compute(as_it_is).seconds
        row["instead_seconds"] = watch.compute(instead).seconds
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:_SHORT]
    return row
