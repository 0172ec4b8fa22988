"""`--risk` beside `--allow offload`: the search equals brute force in every scenario."""

from __future__ import annotations

import numpy as np
import pytest
from brute import everything
from effort import some_of
from test_offload_search import OPEN, drawn
from weighed_brute import Weighed, with_scenarios

from cost_models.errors import InfeasibleError
from cost_models.pipeline.pricing import scenarios_of
from cost_models.risk import RISKS
from planner.placement.leaf import TOLERANCE
from planner.search.search import search


@pytest.mark.parametrize("seed", some_of(range(40), 3))
def test_search_is_brute_force_where_scenarios_are_weighed(seed: int) -> None:
    plain, rng = drawn(seed), np.random.default_rng(seed + 1_000_000)
    question = with_scenarios(plain.question, rng, RISKS[1 + seed % 2])
    each = [everything(one, offload=True) for one in scenarios_of(question)]
    found = Weighed(question=question, columns=plain.columns, placed=plain.placed, each=each)
    rows = np.flatnonzero(found.columns.tp % found.columns.etp == 0)
    wanted, _ = found.best(rows, 0b111, np.inf)
    if not wanted:
        with pytest.raises(InfeasibleError):
            search(question, top=1, restrictions=OPEN)
        return
    answer = search(question, top=1, restrictions=OPEN)
    assert answer.certificate.gap == 0
    assert answer.best.weighed_seconds == pytest.approx(wanted[0], rel=10 * TOLERANCE)
