"""Segments of a training job (steps from one checkpoint to the next), which are repeated after a failure.

Failures come at random (exponential, mean M). A segment trains for τ and saves for δ, in which training waits; a
restart takes R, in which failures come as well; a checkpoint can be read f after it was saved, so a failure costs the
work of f besides what came since. From one readable checkpoint to the next

    E[segment] = M · e^{(R + f)/M} · (e^{(τ + δ)/M} − 1)              goodput = τ / E

(Daly 2006, equation 13, with f = 0; the same argument holds for any f ≤ τ + δ, as after a failure R + f + τ + δ must
pass without another). First order: τ = √(2δM) (Young 1974), √(2δM) − δ (Daly 2006).

Spare nodes: nodes leave one at a time and are back after a repair, on average ρ = repair / M of them are away. With S
spares the job stands still while S + 1 are away; failures do not come while it stands. That is a system of S + 1
servers whose calls are lost when all are busy (Erlang 1917): the share of time with n away is ρⁿ/n! of the sum over
0 ≤ n ≤ S + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Training from one checkpoint to the next, in seconds of work, saving, restart and mean time between
    failures."""

    work: float
    """Seconds of training from one checkpoint to the next, τ."""
    saving: float
    """Seconds for which training waits at each checkpoint, δ."""
    restart: float
    """Seconds from a failure until training continues, R."""
    mtbf: float
    """Mean seconds between failures of the entire job, M."""
    lag: float = 0.0
    """Seconds from saving a checkpoint until it can be read, f."""

    @property
    def length(self) -> float:
        """Seconds from one checkpoint to the next without failures, L = τ + δ."""
        return self.work + self.saving

    @property
    def expected(self) -> float:
        """Expected seconds from one checkpoint to the next, failures and restarts included."""
        m = self.mtbf
        return m * _exp((self.restart + self.lag) / m) * math.expm1(min(self.length / m, _MAX_EXPONENT))

    @property
    def goodput(self) -> float:
        """Share of the expected time between checkpoints spent on training steps that are not lost."""
        return self.work / self.expected

    @property
    def failures(self) -> float:
        """Expected number of failures between one checkpoint and the next, those during restarts included."""
        return self.expected / self.mtbf

    @property
    def restarting(self) -> float:
        """Expected seconds of restarts between one checkpoint and the next."""
        return self.failures * self.mtbf * -math.expm1(-self.restart / self.mtbf)

    @property
    def lost(self) -> float:
        """Expected seconds of training and saving between checkpoints that failures waste and that are repeated."""
        return max(0.0, self.expected - self.length - self.restarting)

    @property
    def failure_probability(self) -> float:
        """Probability that a failure occurs before the work and the saving of one checkpoint interval are done."""
        return -math.expm1(-self.length / self.mtbf)

    @property
    def retry_seconds(self) -> float:
        """Seconds that must pass without a failure to complete a segment after a failure. They are restart,
        unreadable checkpoint, segment."""
        return self.restart + self.lag + self.length

    @property
    def variance(self) -> float:
        """Variance (s²) of the time from one checkpoint to the next.

        Without a failure it takes L; else the time to the first, T < L, and then trials that need W = R + f + L without
        one: mean m(e^{W/m} − 1), variance m²e^{2W/m} − 2mWe^{W/m} − m².
        """
        m, p = self.mtbf, self.failure_probability
        length, need = self.length, self.retry_seconds
        grown = _exp(need / m)
        trials = m * (grown - 1)
        spread = max(0.0, m * m * (grown * grown - 1) - 2 * m * need * grown)
        first, square = truncated(m, length)
        of_square = (1 - p) * length**2 + p * (square + 2 * first * trials + spread + trials**2)
        return max(0.0, of_square - self.expected**2)


_MAX_EXPONENT = 350.0
"""Maximum exponent of `exp`, beyond which a time is practically infinite; the square of the result is still
finite."""


def _exp(value: float) -> float:
    return math.exp(min(value, _MAX_EXPONENT))


def truncated(mean: float, threshold: float) -> tuple[float, float]:
    """Mean and mean square of an exponential time with mean `mean`, conditioned to be shorter than `threshold`."""
    x = threshold / mean
    if x < 1e-4:  # uniform: what follows loses all its digits
        return threshold / 2, threshold**2 / 3
    survival, share = math.exp(-x), -math.expm1(-x)
    first = mean - threshold * survival / share
    return first, 2 * mean * first - threshold**2 * survival / share


def young(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints by Young's first-order formula √(2δM) (Young 1974)."""
    return math.sqrt(2 * saving * mtbf)


def daly(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints by Daly's formula √(2δM) − δ, or M where saving takes too long for
    it (Daly 2006)."""
    return young(saving, mtbf) - saving if saving < mtbf / 2 else mtbf


def best_work(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints, which minimise the expected time per work E/τ. The zero of
    e^{−(τ+δ)/M} − 1 + τ/M."""
    low, high = 0.0, mtbf  # at M the slope is e^{−(M+δ)/M} > 0
    for _ in range(200):
        middle = (low + high) / 2
        slope = math.exp(-(middle + saving) / mtbf) - 1 + middle / mtbf
        low, high = (middle, high) if slope < 0 else (low, middle)
    return (low + high) / 2


def first_order_ratio(segment: Segment) -> float:
    """Share of time spent training (ETTR), to first order in the failure rate. It is (1 − (R + τ/2)/M) / (1 +
    δ/τ) (Kokolis et al. 2024, ETTR)."""
    wasted = (segment.restart + segment.lag + segment.work / 2) / segment.mtbf
    return max(0.0, 1 - wasted) / (1 + segment.saving / segment.work)


class Waiting(NamedTuple):
    """Probability and mean seconds of waiting for a spare node after a failure."""

    chance: float
    """Probability that no spare node is free at a failure."""
    seconds: float
    """Mean seconds of waiting for a spare node if none is free, exponentially distributed."""

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of waiting for a spare node per failure, failures without a wait included."""
        return self.chance * self.seconds


def waiting(spares: int | None, repair: float, mtbf: float) -> Waiting:
    """Compute probability and mean seconds of waiting for one of `spares` spare nodes after a failure; no waits
    if `spares` is None. A node fails every `mtbf` seconds of running."""
    if spares is None:
        return Waiting(chance=0.0, seconds=0.0)
    return Waiting(chance=blocked(spares, repair / mtbf), seconds=repair / (spares + 1))


def blocked(servers: int, load: float) -> float:
    """Probability that all servers are busy at an offered load, by Erlang's B formula."""
    blocking = 1.0
    for busy in range(1, servers + 1):
        blocking = load * blocking / (busy + load * blocking)
    return blocking
