"""Sends JSON between ranks. Torch's own object collectives use pickles, which run code where they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import Problem, RunError


def gather_json(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Gather a JSON value from each rank of the group, in rank order; every rank of the group calls it."""
    own_letters = _letters(value, group)
    own_length = torch.tensor([len(own_letters)], device=own_letters.device)
    lengths = [torch.empty_like(own_length) for _ in range(dist.get_world_size(group))]
    dist.all_gather(lengths, own_length, group=group)
    longest = int(max(lengths))
    padded = torch.nn.functional.pad(own_letters, (0, longest - len(own_letters)))
    messages = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(messages, padded, group=group)
    return [_value(letters[: int(length)]) for letters, length in zip(messages, lengths, strict=True)]


def on_all_ranks(
    compute: Callable[[], Any], headline: str, group: dist.ProcessGroup | None = None
) -> list[Any]:
    """Call a function on every rank of the group, and gather its JSON results in rank order.

    Raises:
        RunError: it failed on a rank, with this headline and the reason of each such rank; on every rank.
    """
    result, reason, cause = None, "", None
    try:
        result = compute()
    except Exception as error:
        reason, cause = _reason(error), error
    results = gather_json((result, reason), group)
    if problems := [Problem(f"rank {rank}", reason) for rank, (_, reason) in enumerate(results) if reason]:
        raise RunError(headline, problems=problems) from cause
    return [result for result, _ in results]


def _reason(error: Exception) -> str:
    """Text of an error for people: `[Errno 28] No space left on device: 'x'` → "x: no space left on device"."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    return f"{type(error).__name__}: {error}"


def json_from_first(value: Any, group: dist.ProcessGroup | None = None) -> Any:
    """JSON value of rank 0, on every rank; every rank calls it."""
    letters = _letters(value if dist.get_rank() == 0 else None, group)
    length = torch.tensor([len(letters)], device=letters.device)
    dist.broadcast(length, src=0, group=group)
    if dist.get_rank() != 0:
        letters = letters.new_empty(int(length))
    dist.broadcast(letters, src=0, group=group)
    return _value(letters)


def _letters(value: Any, group: dist.ProcessGroup | None) -> torch.Tensor:
    """JSON text of a value as bytes, (N,), on the device that the group's backend sends from."""
    text = bytearray(json.dumps(value).encode())
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    return torch.frombuffer(text, dtype=torch.uint8).to(device)


def _value(letters: torch.Tensor) -> Any:
    """JSON value of the bytes of its text."""
    return json.loads(letters.cpu().numpy().tobytes())
