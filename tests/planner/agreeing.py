"""The search held against brute force over all layouts of a question."""

from __future__ import annotations

import math

import numpy as np
import pytest
from brute import EVERY_POLICY, everything
from questions import Query

from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.question import Question
from planner.placement.leaf import TOLERANCE
from planner.search.branching import SearchResult
from planner.search.search import search


def require_brute_force(question: Question) -> None:
    """Check that the search finds the three fastest of all placements, proved, or that none fits."""
    found = everything(question)
    exact = found.best(np.arange(len(found)), EVERY_POLICY, math.inf)[0]
    if not len(exact):
        with pytest.raises(DoesNotFitError):
            search(question, top=3)
        return
    result = search(question, top=3)
    seconds = [one.step_seconds for one in result.estimates]
    assert seconds == pytest.approx(exact[:3], rel=10 * TOLERANCE)
    assert (result.certificate.gap, result.certificate.undecided) == (0, 0)


def require_query(query: Query) -> SearchResult | None:
    """Check that the search has brute force's answer to a query, proved; returns it, or None where nothing fits."""
    if not query.seconds:
        with pytest.raises(InfeasibleError):
            search(query.question, top=query.top, restrictions=query.restrictions)
        return None
    result = search(query.question, top=query.top, restrictions=query.restrictions)
    found = [one.compared_seconds for one in result.estimates]
    assert found == pytest.approx(query.seconds[: query.top], rel=10 * TOLERANCE)
    proof = result.certificate
    assert (proof.layouts, proof.undecided, proof.gap) == (query.layouts, 0, 0)
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    assert proof.bound == pytest.approx(query.seconds[0], rel=10 * TOLERANCE)
    return result
