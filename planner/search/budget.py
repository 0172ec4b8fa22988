"""Time budget that several searches of one answer share; a limit or Ctrl-C ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from cost_models.errors import NothingPlacedError, RunError
from cost_models.estimate import Estimate
from cost_models.question import Question
from planner.certificate import PROOFS, Effort
from planner.exact.ilp.solvers import SolverName
from planner.search.branching import Progress
from planner.search.result import SearchResult, out_of_own_time, out_of_time
from planner.search.search import SearchSettings, close_proof, faster_than, search_on
from planner.space.layouts import Space
from planner.space.restrictions import Restrictions
from planner.space.shared import SpaceCache

OnStatus = Callable[[str], None]
"""Called with a few words on the search that is running."""


MAX_PROVEN = 2
"""Maximum number of cached answers: each holds as much memory as its search."""


class Proven(NamedTuple):
    """A proved answer and its query."""

    query: tuple[Question, Restrictions, int, float, Effort]
    """Question, restrictions, number of layouts, seconds to beat and effort."""
    result: SearchResult


@dataclass(slots=True, kw_only=True)
class Budget:
    """Time and settings for all searches of one answer; once `ended`, no more are started."""

    time_limit: float | None = None
    """Seconds for all searches together; None: no limit."""
    on_progress: Progress | None = None
    on_status: OnStatus | None = None
    keep_on_interrupt: bool = False
    solver: SolverName | None = None
    """Solver of the integer program that closes proofs; None: the default."""
    proof: Effort = "search"
    """Method of proof, and how far the searches go."""
    spaces: SpaceCache = field(default_factory=SpaceCache, repr=False, compare=False)
    """SpaceCache that the searches share."""
    proven: list[Proven] = field(default_factory=list, repr=False, compare=False)
    """Cache of the last proved answers."""
    start: float = field(default_factory=lambda: time.monotonic())  # looked up when called, as tests slow it
    ended: bool = False
    """True once time ran out or the user interrupted."""
    interrupted: bool = False
    failure: RunError | None = None
    """Error of the last search that found nothing; None without such a search, or if only nothing fits."""
    searches: int = 0

    @property
    def seconds_left(self) -> float:
        """Seconds left; infinite without a limit."""
        return math.inf if self.time_limit is None else self.time_limit - (time.monotonic() - self.start)

    def tell(self, doing: str) -> None:
        """Report the current activity to `on_status`."""
        if self.on_status is not None:
            self.on_status(doing)

    def share(self, parts: int) -> Budget:
        """Budget for one of `parts` parts of the answer, with an even share of the time left."""
        limit = None if self.time_limit is None else self.seconds_left / parts
        return replace(self, time_limit=limit, start=time.monotonic(), ended=False, failure=None, searches=0)

    @property
    def seconds_spent(self) -> float:
        """Seconds since this budget was started."""
        return time.monotonic() - self.start

    def search(
        self,
        question: Question,
        restrictions: Restrictions,
        *,
        top: int = 1,
        seconds: float = math.inf,
        must_beat_seconds: float = math.inf,
        closes_with_ilp: bool = True,
        effort: Effort | None = None,
    ) -> SearchResult | None:
        """Best layouts of a question; None if the search ended before it had any.

        `seconds` limits this search alone and does not end the budget. The answer holds only layouts faster than
        `must_beat_seconds`, and may be empty. With `closes_with_ilp` an integer program closes the proof.
        `effort` overrides the budget's `proof`.

        Raises:
            InfeasibleError: nothing fits, which is proven.
            KeyboardInterrupt: before anything was found, unless interrupts are kept.
        """
        if self.ended or self.seconds_left <= 0:
            self.ended = True
            return None
        proof = effort or self.proof
        query = (question, restrictions, top, must_beat_seconds, proof)
        closes_with_ilp = closes_with_ilp and proof in PROOFS
        if cached := next((answer.result for answer in self.proven if answer.query == query), None):
            needs_ilp = closes_with_ilp and not cached.certificate.settled
            return close_proof(cached, self.solver) if needs_ilp else cached
        limit, start = min(self.seconds_left, seconds), time.monotonic()
        self.searches += 1
        result: SearchResult | None = None
        try:
            with self.spaces.shared():
                settings = SearchSettings(
                    top=top,
                    must_beat_seconds=must_beat_seconds,
                    time_limit=None if math.isinf(limit) else limit,
                    on_progress=self.on_progress,
                    keep_on_interrupt=self.keep_on_interrupt,
                    closes_with_ilp=closes_with_ilp,
                    solver=self.solver,
                    proof=proof,
                )
                result = search_on(settings, question, restrictions)
        except RunError as error:
            self.failure = error
        except KeyboardInterrupt:
            if not self.keep_on_interrupt:
                raise
            self.interrupted = True
        self.interrupted = self.interrupted or (result is not None and result.interrupted)
        proven = result is not None and not result.certificate.undecided
        if proven and result is not None and not result.interrupted:
            self.proven[MAX_PROVEN - 1 :] = []
            self.proven.insert(0, Proven(query, result))
        by_choice = limit < self.seconds_left and time.monotonic() - start >= limit
        self.ended = self.interrupted or (not proven and self.seconds_left <= 0)
        if by_choice and isinstance(self.failure, NothingPlacedError) and result is None:
            self.failure = out_of_own_time(seconds)
        return result

    def faster_than(
        self,
        must_beat_seconds: float,
        question: Question,
        restrictions: Restrictions,
        *,
        seconds: float = math.inf,
        space: Space | None = None,
    ) -> Estimate | None:
        """Fastest layout that beats `must_beat_seconds` (`planner.search.search.faster_than`), searched for at most
        `seconds`; None if none was found.

        Raises:
            InfeasibleError: nothing fits, which is proven.
            KeyboardInterrupt: unless interrupts are kept.
        """
        limit = min(self.seconds_left, seconds)
        if self.ended or limit <= 0:
            self.ended = True
            return None
        self.searches += 1
        try:
            with self.spaces.shared():
                time_limit = None if math.isinf(limit) else limit
                return faster_than(
                    must_beat_seconds, question, restrictions, time_limit=time_limit, space=space
                )
        except KeyboardInterrupt:
            if not self.keep_on_interrupt:
                raise
            self.interrupted = self.ended = True
            return None

    @property
    def why_ended(self) -> str:
        """Reason why the searches ended early, in words."""
        return "interrupted" if self.interrupted else "time ran out"

    def nothing_found(self) -> RunError:
        """The error to raise where searches ended before there was any plan.

        Raises:
            KeyboardInterrupt: the user ended it.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self.failure or out_of_time()
