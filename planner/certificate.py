"""The proof that a plan is the best, or how far it got."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from cost_models.base import Spec
from cost_models.risk import Risk

Proof = Literal["search", "ilp"]
PROOFS: tuple[Proof, ...] = get_args(Proof)
"""What proves an answer: the search, or one integer program over all layouts."""
Effort = Literal[Proof, "bounds", "any"]
"""How far a search goes: to a proof; to one without the closing integer program, as curves of many searches have it; or
to the first plan that fits."""


class Settled(Spec):
    """Optimum of the integer program over the layouts whose bounds are below the best step time."""

    solver: str
    layouts: int
    """Number of layouts in the program."""
    columns: int
    """Number of its binary variables for blocks on stages."""
    objective: float
    """Its optimum in seconds: the best step time."""


class Certificate(Spec):
    """The proof that no other covered layout is better. How it was come by (k, what each layout was ruled out by, the
    prover) is no part of a plan file: it depends on what the search knew before, so nobody could check it."""

    top: int = Field(default=1, ge=1)
    """How many of the best layouts were searched for; k below."""

    space: str
    """The covered space, in words."""
    layouts: int
    """Legal layouts enumerated."""
    infeasible: int = 0
    """Discarded because no placement fits in memory."""
    pruned: int = 0
    """Discarded because their lower bound cannot beat the k-th best."""
    solved: int = 0
    """Decided exactly: by the ILP, or by a placement that meets its lower bound."""
    undecided: int = 0
    """Left open when the search was stopped; 0 where it ended."""
    bound: float
    """Proven lower bound on the step time of any covered layout, seconds."""
    gap: float
    """(best − bound) / best; 0 proves that the plan is optimal."""
    minimised: Risk = "none"
    """What was minimised: the step on paper, or what this risk weighs of it over `scenarios`."""
    scenarios: int = 0
    """How many scenarios make up the mean that was minimised; 0: none."""
    settled: Settled | None = None
    """Optimum of the closing integer program; None where the search was stopped before."""
    proved_by: Proof = Field(default="search", exclude_if=lambda prover: prover == "search")
    """Prover; written only where it is not the search."""
    seconds: float = 0.0
    """Search time."""
