"""What a GPU's compute stream waits for is told apart by what it waits for, and what computes from what copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from executor.measure.parts import _kernels
from executor.timing import CopiedEvent, Wait, Waits

COMPUTE, SIDE = object(), object()


class Stream:
    """A stream that only knows whether it computes."""

    def __init__(self, kind: object) -> None:
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.kind is self.kind

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("stream", "kind", "cause"),
    [
        (COMPUTE, CopiedEvent, "offload"),
        (COMPUTE, object, "dp"),
        (SIDE, CopiedEvent, None),
        (SIDE, object, None),
    ],
)
def test_waits_are_of_the_compute_stream_and_have_their_cause(
    stream: object, kind: type, cause: str | None, monkeypatch
) -> None:
    """A stream of copies that waits behind compute keeps nothing from computing."""
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(COMPUTE))
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda stream, event: None)
    waits = Waits.__new__(Waits)
    waits._device, waits._spans, waits._works = torch.device("cpu"), [], {}
    monkeypatch.setattr(Waits, "__enter__", lambda self: self)
    monkeypatch.setattr(Waits, "__exit__", lambda self, *error: None)
    with waits.watching():
        wait_event: Any = torch.cuda.Stream.wait_event
        wait_event(Stream(stream), object.__new__(kind))
    found: list[Wait] = waits._spans
    assert [one.axis for one in found] == ([] if cause is None else [cause])


def test_copies_to_and_from_the_host_are_no_compute() -> None:
    def event(name: str, start: float, end: float) -> Any:
        return SimpleNamespace(
            name=name, device_type=DeviceType.CUDA, time_range=SimpleNamespace(start=start, end=end)
        )

    events = [
        event("ampere_bf16_s16816gemm", 0, 100),
        event("Memcpy HtoD (Pinned -> Device)", 50, 300),
        event("Memcpy DtoD (Device -> Device)", 300, 320),
        event("ncclDevKernel_AllGather", 320, 900),
        event("Memcpy DtoH (Device -> Pinned)", 900, 950),
        event("Memset (Device)", 950, 951),
    ]
    assert _kernels(events) == pytest.approx(121e-6)
