"""The time that several searches of one answer share, and what ends them early: a limit or Ctrl-C."""

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
from planner.search.search import Terms, faster_than, search_on, settled
from planner.space.layouts import Space
from planner.space.restrictions import Restrictions
from planner.space.shared import Spaces

OnStatus = Callable[[str], None]
"""Called with what is being searched now, in a few words."""


MOST_PROVEN = 2
"""Answers that are remembered: each holds as much memory as its search."""


class Proven(NamedTuple):
    """A proved answer, and what it answers."""

    asked: tuple[Question, Restrictions, int, float, Effort]
    """With how many of the fastest, the time to beat and the effort."""
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
    """Which solver settles the answers; None: the usual one."""
    proof: Effort = "search"
    """What proves them, and how far the searches go."""
    spaces: Spaces = field(default_factory=Spaces, repr=False, compare=False)
    """Spaces that the searches share."""
    proven: list[Proven] = field(default_factory=list, repr=False, compare=False)
    """The last answers that were proved, which are not searched for twice."""
    start: float = field(default_factory=lambda: time.monotonic())  # looked up when called, as tests slow it
    ended: bool = False
    """True once time ran out or the user interrupted."""
    interrupted: bool = False
    failure: RunError | None = None
    """Why the last search that found nothing found nothing; None where none did, or only because nothing fits."""
    searches: int = 0

    @property
    def seconds_left(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return math.inf if self.time_limit is None else self.time_limit - (time.monotonic() - self.start)

    def tell(self, doing: str) -> None:
        """Say what is done now, to whoever listens."""
        if self.on_status is not None:
            self.on_status(doing)

    def share(self, parts: int) -> Budget:
        """A budget of its own for one part of the answer: an even share, of `parts`, of the time that is left."""
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
        below: float = math.inf,
        settles: bool = True,
        effort: Effort | None = None,
    ) -> SearchResult | None:
        """The best layouts of a question; None where the search ended before it had any.

        `seconds` limits this search alone; when they run out, the budget has not ended. The answer holds only layouts
        that take less than `below` seconds, perhaps none; unless it `settles`, no integer program closes the proof.
        `effort` is how far it goes, if not to the budget's proof.

        Raises:
            InfeasibleError: nothing fits, which is proven.
            KeyboardInterrupt: before anything was found, unless interrupts are kept.
        """
        if self.ended or self.seconds_left <= 0:
            self.ended = True
            return None
        proof = effort or self.proof
        settles, asked = settles and proof in PROOFS, (question, restrictions, top, below, proof)
        if known := next((one.result for one in self.proven if one.asked == asked), None):
            return settled(known, self.solver) if settles and not known.certificate.settled else known
        limit, start = min(self.seconds_left, seconds), time.monotonic()
        self.searches += 1
        found: SearchResult | None = None
        try:
            with self.spaces.shared():
                terms = Terms(
                    top=top,
                    below=below,
                    time_limit=None if math.isinf(limit) else limit,
                    on_progress=self.on_progress,
                    keep_on_interrupt=self.keep_on_interrupt,
                    settles=settles,
                    solver=self.solver,
                    proof=proof,
                )
                found = search_on(terms, question, restrictions)
        except RunError as error:
            self.failure = error
        except KeyboardInterrupt:
            if not self.keep_on_interrupt:
                raise
            self.interrupted = True
        self.interrupted = self.interrupted or (found is not None and found.interrupted)
        proven = found is not None and not found.certificate.undecided
        if proven and found is not None and not found.interrupted:
            self.proven[MOST_PROVEN - 1 :] = []
            self.proven.insert(0, Proven(asked, found))
        by_choice = limit < self.seconds_left and time.monotonic() - start >= limit
        self.ended = self.interrupted or (not proven and self.seconds_left <= 0)
        if by_choice and isinstance(self.failure, NothingPlacedError) and found is None:
            self.failure = out_of_own_time(seconds)
        return found

    def faster_than(
        self,
        below: float,
        question: Question,
        restrictions: Restrictions,
        *,
        seconds: float = math.inf,
        space: Space | None = None,
    ) -> Estimate | None:
        """The fastest layout that takes less than `below` seconds (`planner.search.search.faster_than`), searched for
        no longer than `seconds`; None where none was found.

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
                most = None if math.isinf(limit) else limit
                return faster_than(below, question, restrictions, time_limit=most, space=space)
        except KeyboardInterrupt:
            if not self.keep_on_interrupt:
                raise
            self.interrupted = self.ended = True
            return None

    @property
    def why_ended(self) -> str:
        """Why the searches ended early, in words."""
        return "interrupted" if self.interrupted else "time ran out"

    def nothing_found(self) -> RunError:
        """The error to raise where searches ended before there was any plan.

        Raises:
            KeyboardInterrupt: the user ended it.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self.failure or out_of_time()
