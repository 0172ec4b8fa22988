"""The price of one placed layout: step time, MFU and memory, each with the parts it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cost_models.axes.layout import Layout
from cost_models.breakdown import Breakdown
from cost_models.units import counted

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """How far a prediction may be believed."""

    tier: str
    """`datasheet`, `profile` or `measured`."""
    profile: str
    """Name of the hardware profile the constants came from."""
    error: float | None
    """Median relative error of step time this tier has shown; None where nobody has measured it."""
    runs: int
    """On how many runs."""
    elsewhere: str = ""
    """What those runs differ in: another GPU of the same die, another software stack."""

    unseen_error: float | None = None
    """Median relative error of step time on sources that were left out of every fit; None where GPU and software
    stack are the profile's own, or where nobody knows."""
    memory_error: float = 0.1
    """Share by which nine in ten peaks of the software stack's published runs were missed at most."""

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.profile} ({self.tier}, never compared with a run)"
        shown = (
            f"{self.profile} ({self.tier}, median error {_whole(self.error)} over {counted(self.runs, 'run')}"
        )
        if self.elsewhere:
            shown += f" of {self.elsewhere}"
        if self.unseen_error is not None:
            shown += f"; {_whole(self.unseen_error)} on sources it never saw"
        return f"{shown})"


def _whole(share: float) -> str:
    """0.031 → "3 %"."""
    return f"{share:.0%}".replace("%", " %")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one placed layout will take. Times in seconds, memory in bytes, per step."""

    layout: Layout
    microbatches: int
    step_seconds: float
    time: Breakdown
    """Parts of the busiest rank: compute, recompute, tp_comm, cp_comm, ep_comm, pp_comm, dp_comm, optimizer,
    host, jitter, bubble. Communication is what is exposed; they sum to `step_seconds`."""
    hidden_comm: Breakdown
    """Communication behind compute, not part of the step: tp_comm, cp_comm, ep_comm, dp_comm."""
    rank_memory: tuple[Breakdown, ...]
    """For each pipeline rank: weights, gradients, optimizer, activations, working, buffers, reserved."""
    memory_limit: float
    """Bytes of one device that a plan may fill; with several pools, of a device of the fullest rank."""
    mfu: float
    """Model FLOPs of the step / (step time × peak × GPUs); recompute does not count."""
    hfu: float
    """The same with what is recomputed counted."""
    tokens_per_second: float
    """Over all GPUs."""
    bound_by: str
    """The largest part that is not compute, or `compute`."""
    trust: Trust
    rank_limits: tuple[float, ...] = ()
    """With several pools: what a device of each pipeline rank may fill. Empty: `memory_limit` everywhere."""

    @property
    def peak_bytes(self) -> float:
        """Peak of the fullest rank."""
        return self.rank_memory[self.fullest_rank].total

    @property
    def fullest_rank(self) -> int:
        """Pipeline rank with the highest peak; with several pools, as a share of what its device may fill."""
        return _fullest(self.rank_memory, self.rank_limits)

    def within(self, limit: float) -> Estimate:
        """The same where a plan may fill no more than `limit` bytes of any device."""
        limits = tuple(min(own, limit) for own in self.rank_limits)
        own = limits[_fullest(self.rank_memory, limits)] if limits else self.memory_limit
        return replace(self, memory_limit=min(own, limit), rank_limits=limits)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the price is not to be believed, in sentences; usually nothing."""
        name, share = ("MFU", self.mfu) if self.mfu > 1 else ("HFU", self.hfu)
        if share <= 1:
            return ()
        return (
            f"{name} {100 * share:.1f} % is more than the hardware can do: profile `{self.trust.profile}` has products"
            " or attention faster than the peak; calibrate again while nothing else runs",
        )

    @property
    def verdict(self) -> Verdict:
        """Whether the step fits, or is too close to the limit to tell: within the error that peaks have shown."""
        off = abs(self.peak_bytes / self.memory_limit - 1)
        if off <= self.trust.memory_error:
            return "tight"
        return "fits" if self.fits else "does not fit"

    @property
    def fits(self) -> bool:
        """Every rank stays within the limit."""
        return self.peak_bytes <= self.memory_limit


def _fullest(rank_memory: Sequence[Breakdown], limits: Sequence[float]) -> int:
    """The rank whose peak is the largest share of its limit; without limits, the largest."""

    def fullness(rank: int) -> float:
        return rank_memory[rank].total / (limits[rank] if limits else 1.0)

    return max(range(len(rank_memory)), key=fullness)
