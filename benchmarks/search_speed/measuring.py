"""One case in a process of its own: how long its searches take, what they prove, and what they keep in memory."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from cases import Case

from cost_models.errors import InfeasibleError, RunError
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from planner.objectives import Certificate
from planner.search.search import search
from planner.space.restrictions import parse_restrictions
from planner.space.space import legal_space

REPEATS = 5
PRICED = 1_000_000
"""Layouts written out and priced for the rate, where the space has so many."""

Row = dict[str, object]


def measure(case: Case, time_limit: float, *, quick: bool = False) -> Row:
    """A row of `results.csv`.

    The first search of the process is `first_seconds`; the median is over those that follow. What its limit stopped
    is not repeated.
    """
    questions = case.questions()
    first = _Run(case, questions, time_limit)
    repeated = [] if quick or first.stopped else [_Run(case, questions, time_limit) for _ in range(REPEATS)]
    runs = repeated or [first]
    wall = statistics.median(run.wall for run in runs)
    row: Row = {
        "case": case.name,
        "group": case.group,
        "at": case.at,
        "label": case.label,
        "subject": case.subject,
        "top": case.top,
        "forbidden": " ".join(case.forbid),
        "questions": len(questions),
        **first.counts(),
        "aim_seconds": case.aim,
        "first_seconds": round(first.wall, 4),
        "proven_seconds": round(wall, 4),
        "cpu_seconds": round(statistics.median(run.cpu for run in runs), 4),
        "decided_per_second": round(first.decided / wall),
        "repeats": len(runs),
        "peak_rss_mib": round(_peak_rss_bytes() / 2**20),
        "step_seconds": first.step_seconds,
        "layout": first.layout,
    }
    return row | _priced(case, questions[0])


class _Run:
    """The searches of a case, once."""

    def __init__(self, case: Case, questions: list[Question], time_limit: float) -> None:
        self.proofs: list[Certificate] = []
        self.infeasible = self.nothing_found = 0
        self.step_seconds: float | None = None
        self.layout = ""
        restrictions = parse_restrictions(case.fix, case.forbid)
        wall, cpu = time.perf_counter(), time.process_time()
        for question in questions:
            try:
                found = search(question, top=case.top, restrictions=restrictions, time_limit=time_limit)
            except InfeasibleError:
                self.infeasible += 1
                continue
            except RunError:
                self.nothing_found += 1
                continue
            self.proofs.append(found.certificate)
            self.step_seconds, self.layout = found.best.step_seconds, str(found.best.layout)
        self.wall, self.cpu = time.perf_counter() - wall, time.process_time() - cpu

    @property
    def stopped(self) -> bool:
        """Whether something was left open."""
        return self.nothing_found > 0 or any(proof.undecided for proof in self.proofs)

    @property
    def decided(self) -> int:
        """Layouts that are done with."""
        return sum(proof.layouts - proof.undecided for proof in self.proofs)

    def counts(self) -> Row:
        """The certificates, added up; of the gaps the widest."""
        names = ("layouts", "infeasible", "pruned", "solved", "undecided")
        gaps = [proof.gap for proof in self.proofs] + [1.0] * self.nothing_found
        return {
            **{name: sum(getattr(proof, name) for proof in self.proofs) for name in names},
            "gap": max(gaps, default=0.0),
            "questions_without_answer": self.infeasible + self.nothing_found,
        }


def _priced(case: Case, question: Question) -> Row:
    """Layouts written out and priced a second by `stage_costs` alone, the best of three; none on several pools."""
    if question.has_pools or case.group != "search":
        return {"priced_layouts": None, "priced_per_second": None}
    space = legal_space(question, parse_restrictions(case.fix, case.forbid))
    every = max(1, len(space) // PRICED)
    some = np.arange(0, len(space.cores), every)
    part = replace(
        space, cores=space.cores.rows(some), family=space.family[some], pipeline=space.pipeline[some]
    )
    columns = part.all_rows()
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        for begin in range(0, len(columns), TOGETHER):
            stage_costs(question, columns.rows(slice(begin, begin + TOGETHER)))
        seconds.append(time.perf_counter() - start)
    return {"priced_layouts": len(columns), "priced_per_second": round(len(columns) / min(seconds))}


TOGETHER = 50_000
"""Rows priced at once: what the search prices at once too."""


def _peak_rss_bytes() -> int:
    """The most memory this process has held (Linux)."""
    status = Path("/proc/self/status").read_text("ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
