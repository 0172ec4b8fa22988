"""Documents of unlike length, and how sequences are made of them.

    pack     several documents a sequence, each attending to itself alone, none cut: the longest first, each into the
             sequence that it fills best (best fit decreasing)
    pad      one a sequence, which is computed to its end
    bucket   one a sequence, in microbatches of documents of like length, which are as long as those

Lengths are drawn evenly: as many documents of a distribution's every quantile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from functools import lru_cache
from math import log
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import Ints
from cost_models.base import LargeInt, Spec
from cost_models.specs.model.blocks import LISTED

Packing = Literal["pack", "pad", "bucket"]
MOST_DOCUMENTS = 1024
"""Lengths that a file is brought down to: means of as many equal groups of its sorted lengths."""
_DRAWN, _MOST_DRAWN = 2048, 32_768
_SEQUENCES = 256
"""Sequences that are packed at least, where that takes no more documents than are drawn at most."""


class LengthsSpec(Spec):
    """How long documents are, and what is made of them."""

    packing: Packing = "pack"
    """How sequences are made of documents."""
    lognormal: (
        tuple[
            Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)],
            Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)],
        ]
        | None
    ) = Field(default=None, strict=False)
    """Mean of the lengths in tokens, and standard deviation of their logarithms; longer ones than a sequence are
    cut to it."""
    documents: Annotated[tuple[LargeInt, ...], LISTED] = ()
    """Lengths in tokens, each as frequent as every other."""

    def __str__(self) -> str:
        return {
            "pack": "packed into sequences of",
            "pad": "each padded to",
            "bucket": "in microbatches of like length up to",
        }[self.packing]


@dataclass(frozen=True, slots=True)
class Sequences:
    """What a job computes, drawn once; D documents, S sequences."""

    documents: Ints
    """(D,) tokens of each, in the order in which they lie in sequences."""
    places: Ints
    """(D,) the sequence that each lies in."""

    @property
    def number(self) -> int:
        """Sequences, S."""
        return int(self.places[-1]) + 1

    @property
    def counted(self) -> float:
        """Tokens of documents in a sequence, on average: what is trained on."""
        return float(self.documents.sum()) / self.number

    @property
    def mean(self) -> float:
        """Tokens of a document."""
        return float(self.documents.mean())


@lru_cache(maxsize=64)
def sequences_of(lengths: LengthsSpec, longest: int) -> Sequences:
    """Sequences of at most `longest` tokens."""
    length_D = _drawn(lengths, longest)
    if lengths.packing != "pack":
        return Sequences(length_D, np.arange(len(length_D)))
    packed = _best_fit(length_D, longest)
    np.random.default_rng(0).shuffle(packed)
    of_D = np.repeat(np.arange(len(packed)), [len(one) for one in packed])
    return Sequences(np.concatenate(packed), of_D)


def share_cut(lengths: LengthsSpec, longest: int) -> float:
    """Share of the documents of a distribution that are longer than a sequence."""
    mean, sigma = lengths.lognormal or (1.0, 0.0)
    return 1.0 - NormalDist(log(mean) - sigma**2 / 2, sigma).cdf(log(longest)) if sigma else 0.0


def brought_down(lengths: list[int]) -> tuple[int, ...]:
    """At most as many lengths as a job keeps, of the same mean."""
    if len(lengths) <= MOST_DOCUMENTS:
        return tuple(lengths)
    groups = np.array_split(np.sort(np.array(lengths)), MOST_DOCUMENTS)
    return tuple(max(1, round(float(one.mean()))) for one in groups)


def _drawn(lengths: LengthsSpec, longest: int) -> Ints:
    """(D,) lengths; of documents that are given each as often as every other."""
    if lengths.lognormal is None:
        given = np.array(lengths.documents or (longest,), dtype=np.int64)
        return np.tile(given, -(-_DRAWN // len(given)))
    mean, sigma = lengths.lognormal
    wanted = int(np.clip(_SEQUENCES * longest / mean, _DRAWN, _MOST_DRAWN))
    normal = [NormalDist().inv_cdf((one + 0.5) / wanted) for one in range(wanted)]
    drawn = mean * np.exp(np.minimum(sigma * np.array(normal) - sigma**2 / 2, log(longest)))
    return np.clip(np.rint(drawn), 1, longest).astype(np.int64)


def _best_fit(length_D: Ints, longest: int) -> list[list[int]]:
    """Documents of each sequence."""
    found: list[list[int]] = []
    room: list[tuple[int, int]] = []  # left of a sequence, and its number
    for length in sorted(length_D.tolist(), reverse=True):
        place = bisect_left(room, (length, -1))
        left, number = room.pop(place) if place < len(room) else (longest, len(found))
        if number == len(found):
            found.append([])
        found[number].append(length)
        insort(room, (left - length, number))
    return found
