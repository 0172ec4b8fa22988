"""The number of inputs, dealt out over the tests, and the seed they are drawn from."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
from effort import THOROUGH
from hypothesis import HealthCheck, Phase, settings

USUAL, MANY = 300, 50_000
ASKED = int(os.environ.get("FUZZ_EXAMPLES", MANY if THOROUGH else USUAL))
_SAID = os.environ.get("FUZZ_SEED", "random")
SEED = (
    (random.SystemRandom().randrange(2**31) if _SAID == "random" else int(_SAID))
    if THOROUGH or {"FUZZ_EXAMPLES", "FUZZ_SEED"} & os.environ.keys()
    else None
)
"""None: the same inputs every time."""
_SLOWEST = 3.0
"""Seconds that an input takes at most on average, on a busy machine."""

Test = Callable[..., None]


def inputs(share: float) -> Callable[[Test], Test]:
    """Draw this share of all inputs for a test."""

    def drawing(test: Test) -> Test:
        examples = max(1, round(ASKED * share))
        chosen = settings(
            max_examples=examples,
            derandomize=SEED is None,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=SEED is not None,
        )
        drawn: Any = chosen(test)
        if SEED is not None:
            drawn = hypothesis.seed(SEED)(drawn)
        return pytest.mark.timeout(300 + examples * _SLOWEST)(drawn)

    return drawing
