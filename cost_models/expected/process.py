"""A Gaussian process over the logarithm of measured / predicted step seconds.

With a the amplitude of a row (how far its constants, and so its step, may be off) two rows covary by

    k(x, y) = a(x) · a(y) · s(x, y) · e^{−d} · (h(x) · h(y) · e^{−Td} + g(x) · g(y) · [same source])
              + S² [same source] + N² [x = y]                                h² = max(0, 1 − r²/a²),  g² = 1 − h²

d is a distance over features (`rows`), s what other GPUs, stacks and kinds of models leave of it, S how far one
publisher's cluster is from another's. Publishers of one question have all in common but the deviation r; what they have
in common is lost within a T-th of the lengths over which one publisher's runs resemble each other. A question is of no
source: what its own cluster adds stays open. Constants: `data/errors/steps.yaml`, those of the greatest
likelihood of sources that were left out of every fit (Rasmussen and Williams 2006, equation 5.10, by source).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.expected.rows import FEATURES, SHAPE, SPLIT, SWITCHES, Rows
from cost_models.files import read_data

LARGEST = 0.3
"""Errors beyond which a run counts as if it were so far off: it may be mistranscribed."""
_USUAL = 0.08
"""Spread of an ordinary step, in units of which amplitudes are written."""
_HARDLY = 0.2
"""Distance within which a run is of the same question: a vocabulary, one chunk of a stage more or less."""
_LEAST, _MOST = 0.03, 0.4
"""Spreads are taken to lie between these."""
_HALF_SHAPE = ("gpus", "microbatches")
"""Features that count half in the distance of shapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The constants of the process."""

    amplitude: float
    """Of a row of the usual spread, relative to it."""
    power: float
    """a ∝ spread^power."""
    experts: float
    """Logarithm of what experts multiply an amplitude by."""
    narrow: float
    """The same of fp8 and fp4."""
    sharded: float
    """The same of ZeRO 2 and 3."""
    shape: float
    """Length of the distance over shapes."""
    split: float
    """The same over degrees."""
    switches: float
    """The same over switches."""
    same: float
    """r: no two shipped sources timed one question, so it is the noise floor that publishers show elsewhere."""
    sharpness: float
    """T."""
    publisher: float
    """S."""
    noise: float
    """N."""
    other_gpu: float
    """What is left of a covariance on another GPU of the same die."""
    other_die: float
    other_stack: float
    """The same of another stack of one family."""
    other_family: float
    other_kind: float
    """The same between dense models and mixtures of experts."""

    def amplitudes(self, rows: Rows) -> Array:
        """(N,) a."""
        spread = np.clip(rows.spread, _LEAST, _MOST) / _USUAL
        logarithm = (
            self.experts * (rows.names["experts"] == "yes")
            + self.narrow * (rows.column("bits") < 4)
            + self.sharded * rows.column("sharded")
        )
        found: Array = self.amplitude * _USUAL * spread**self.power * np.exp(logarithm)
        return found

    def likeness(self, one: Rows, other: Rows) -> Array:
        """(N, M) 1 of the same question, less the further away and where GPU, stack or kind is another."""
        gpu, die, stack, family = (one.alike(other, name) for name in ("gpu", "die", "stack", "family"))
        left = np.where(gpu, 1.0, np.where(die, self.other_gpu, self.other_die * self.other_gpu))
        left = left * np.where(
            stack, 1.0, np.where(family, self.other_stack, self.other_family * self.other_stack)
        )
        left = left * np.where(one.alike(other, "experts"), 1.0, self.other_kind)
        found: Array = left * np.exp(-self.distance(one, other))
        return found

    def covariance(self, one: Rows, other: Rows) -> Array:
        """(N, M) covariances of what rows share, without their own noise."""
        source = one.alike(other, "source") & (one.names["source"] != "")[:, None]
        scale = self.amplitudes(one)[:, None] * self.amplitudes(other)[None]
        away = self.distance(one, other)
        shared, own = (
            x[:, None] * y[None] for x, y in zip(self._parts(one), self._parts(other), strict=True)
        )
        beyond = shared * np.exp(-self.sharpness * away) + own * source
        near = scale * self.likeness(one, other) * beyond
        found: Array = near + self.publisher**2 * source
        return found

    def _parts(self, rows: Rows) -> tuple[Array, Array]:
        """(N,) h and g: roots of what the same question shares, and of what a source keeps to itself."""
        own = np.minimum(1.0, self.same**2 / self.amplitudes(rows) ** 2)
        return np.sqrt(1 - own), np.sqrt(own)

    def distance(self, one: Rows, other: Rows) -> Array:
        """(N, M) distances over features."""
        scales = np.array([self._scale(name) for name in FEATURES])
        x, y = one.features * scales, other.features * scales
        total: Array = (x**2).sum(1)[:, None] + (y**2).sum(1)[None] - 2 * x @ y.T
        return np.sqrt(np.maximum(total, 0.0))

    def _scale(self, feature: str) -> float:
        length = self.shape if feature in SHAPE else self.split if feature in SPLIT else self.switches
        assert feature in (*SHAPE, *SPLIT, *SWITCHES)
        return (0.5**0.5 if feature in _HALF_SHAPE else 1.0) / length

    def prior(self, rows: Rows) -> Array:
        """(N,) variances of rows of a new source of which nothing is known."""
        return self.amplitudes(rows) ** 2 + self.publisher**2 + self.noise**2

    def posterior(self, asked: Rows, known: Rows, errors: Array) -> tuple[float, float]:
        """Mean and deviation of the logarithm of one asked row, given the errors (N,) of known ones.

        Rows of the same question count once more, as what it took with the deviation r of publishers: the process takes
        part of it for their own clusters, of which nobody knows more.
        """
        between = self.covariance(asked, known)[0]
        inside = self.covariance(known, known)
        inside[np.diag_indices(len(known))] += self.noise**2
        solved = np.linalg.solve(inside, np.stack([between, np.clip(errors, -LARGEST, LARGEST)], axis=1))
        mean, variance = float(between @ solved[:, 1]), float(self.prior(asked)[0] - between @ solved[:, 0])
        variance = max(variance, self.noise**2)
        if (same := self.same_question(asked, known)).any():
            own, weight = float(np.mean(errors[same])), variance / (variance + self.same**2)
            mean, variance = mean + weight * (own - mean), variance * (1 - weight)
        return mean, variance**0.5

    def same_question(self, asked: Rows, known: Rows) -> Bools:
        """(N,) known rows of the asked question: on its GPU, under its family of stacks, hardly any distance away."""
        alike = asked.alike(known, "gpu") & asked.alike(known, "family") & asked.alike(known, "experts")
        found: Bools = alike[0] & (self.distance(asked, known)[0] < _HARDLY)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Ends of an interval in deviations from the mean, where nine in ten runs of left-out sources lay."""

    faster: float
    slower: float


@cache
def fitted() -> tuple[Kernel, dict[str, Reach], dict[str, Any]]:
    """The shipped constants; the reach by how much was timed; everything else that the file says."""
    told = read_data("errors/steps")
    own = {field.name for field in fields(Kernel)}
    kernel = Kernel(**{name: value for name, value in told.items() if name in own})
    return kernel, {name: Reach(**ends) for name, ends in told["reach"].items()}, told
