"""The search and one integer program prove the same answers; CPU seconds, median of three where they are short.

python benchmarks/solvers/run.py                     every case: table on stdout, results.csv beside this file
python benchmarks/solvers/run.py gpt3-64 llama8b-16  these cases; writes nothing
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from planner.objectives import Proof
from planner.search.branching import SearchResult
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions

RESULTS = Path(__file__).parent / "results.csv"
REPEATS = 3
TIME_LIMIT = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One question that both prove."""

    name: str
    model: str
    cluster: str
    gpus: int | None = None
    batch: int
    sequence: int
    fix: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    max_memory: float | None = None
    stack: str | None = None
    top: int = 1

    @property
    def question(self) -> Question:
        """What both are asked."""
        training = TrainingSpec(global_batch=self.batch, sequence_length=self.sequence)
        cluster = resolve_cluster(self.cluster, self.gpus)
        return complete_question(catalog.load_model(self.model), cluster, training, stack=self.stack)

    @property
    def limits(self) -> Restrictions:
        """What keeps it to 20,000 layouts."""
        return parse_restrictions(self.fix, allow=self.allow, max_memory=self.max_memory)

    @property
    def subject(self) -> str:
        """In words, for the table."""
        place = self.cluster if self.gpus is None else f"{self.gpus:,} x {self.cluster}"
        words = [self.model, place, f"batch {self.batch:,} x {self.sequence:,}", *self.fix]
        words += [f"--allow {one}" for one in self.allow] + ([self.stack] if self.stack else [])
        words += [f"top {self.top}"] if self.top > 1 else []
        return ", ".join(words + ([f"{self.max_memory / 2**30:g} GiB"] if self.max_memory else []))


_LLAMA8B = Case(name="llama8b-8", model="llama3-8b", cluster="dgx-h100", gpus=8, batch=64, sequence=8192)
_LLAMA70B = replace(_LLAMA8B, model="llama3-70b", batch=256)
_GPT3 = Case(name="gpt3", model="gpt3-175b", cluster="dgx-a100-80gb", gpus=64, batch=256, sequence=2048)
_POOLS = replace(_LLAMA8B, name="two-pools-16", cluster="dgx-a100-80gb:8+dgx-h100:8", gpus=None)
CASES = (
    _LLAMA8B,
    replace(_LLAMA8B, name="llama8b-8-top5", top=5),
    replace(_LLAMA8B, name="llama8b-8-30gib", max_memory=30 * 2**30),
    replace(_LLAMA8B, name="llama8b-16", gpus=16, fix=("order=tp-pp-cp-dp",)),
    replace(
        _LLAMA8B,
        name="llama8b-8-offload",
        allow=("offload",),
        fix=("tp=4", "dp=2", "mbs=1"),
        stack="meshwright",
    ),
    replace(_LLAMA70B, name="llama70b-64", gpus=64, fix=("tp=4", "order=tp-pp-cp-dp")),
    replace(_LLAMA70B, name="llama70b-256", gpus=256, batch=512, fix=("tp=8", "cp=1")),
    replace(_GPT3, name="gpt3-64", fix=("tp=8",)),
    replace(_GPT3, name="gpt3-512", gpus=512, batch=1536, fix=("tp=8", "cp=1")),
    replace(_GPT3, name="gpt3-1024-plain", gpus=1024, batch=1536, fix=("vpp=1", "tp=4,8", "cp=1")),
    replace(_GPT3, name="gpt3-1152-uneven", gpus=1152, batch=1152, fix=("tp=8", "pp=9,18,36", "cp=1")),
    replace(_GPT3, name="1t-3072", model="megatron-1t", gpus=3072, batch=3072, fix=("tp=8", "cp=1")),
    replace(_GPT3, name="mixtral-64", model="mixtral-8x7b", sequence=4096, fix=("tp=2", "cp=1", "etp=1")),
    _POOLS,
    replace(
        _POOLS,
        name="two-pools-256",
        model="gpt3-175b",
        cluster="dgx-a100-80gb:128+dgx-h100:128",
        fix=("tp=8",),
    ),
)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    asked = parser.parse_args().cases
    rows = []
    for case in CASES:
        if not asked or case.name in asked:
            rows.append(_row(case))
            print("| " + " | ".join(str(value) for value in rows[-1].values()) + " |", flush=True)
    if not asked:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


def _row(case: Case) -> dict[str, Any]:
    """Both answers of a case, and the median of their times."""
    (found, searched), (solved, took) = (_measured(case, proof) for proof in ("search", "ilp"))
    one, other = found.best.step_seconds, solved.best.step_seconds
    return {
        "case": case.name,
        "question": case.subject,
        "layouts": found.certificate.layouts,
        "step s": f"{one:.6g}",
        "same": "yes" if abs(one - other) <= 1e-8 * one else f"no: {other:.6g}",
        "gap %": f"{100 * solved.certificate.gap:.3g}",
        "search CPU s": f"{searched:.2f}",
        "ilp CPU s": f"{took:.2f}",
        "ratio": f"{took / searched:.1f}",
        "best": found.best.layout.brief,
    }


def _measured(case: Case, proof: Proof) -> tuple[SearchResult, float]:
    """The answer by one of both, and the median of its CPU seconds."""
    spent = []
    for _ in range(REPEATS):
        question, start = case.question, time.process_time()
        found = search(question, top=case.top, restrictions=case.limits, time_limit=TIME_LIMIT, proof=proof)
        spent.append(time.process_time() - start)
        if spent[-1] > 2.0:
            break
    return found, statistics.median(spent)


if __name__ == "__main__":
    main()
