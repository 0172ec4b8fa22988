"""Why a rank failed: written by the rank, read by whoever started it, and told to a person.

A `final` failure would happen again: the run is not started again for it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cost_models.errors import HostError, InputError, MeshwrightError, Problem, RunError
from cost_models.units import format_bytes
from executor.heartbeat import PHASES, read_signs

_FAILURE = "failure-{rank}.json"
_LAST_LINES = 5
_PEER_LOST = re.compile(r"connection (closed|reset)|broken pipe|remote process|NCCL", re.IGNORECASE)
"""What a rank says that failed because another one was gone."""
_KINDS: dict[str, type[MeshwrightError]] = {kind.__name__: kind for kind in (InputError, HostError, RunError)}

Failure = dict[str, Any]


def write_failure(folder: Path, rank: int, reason: str, *, final: bool, **more: Any) -> None:
    """Leave word of what happened; nothing where even that cannot be written, as on a full disk."""
    partial = folder / f".failure-{rank}"
    try:
        partial.write_text(json.dumps({"rank": rank, "reason": reason, "final": final, **more}), "utf-8")
        os.replace(partial, folder / _FAILURE.format(rank=rank))
    except OSError:
        partial.unlink(missing_ok=True)


def told(error: MeshwrightError) -> dict[str, Any]:
    """An error a user can meet, as fields of a failure."""
    kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
    problems = [[problem.where, problem.what] for problem in error.problems]
    return {"kind": kind, "headline": error.headline, "problems": problems, "hint": error.hint}


def read_failures(folder: Path) -> list[Failure]:
    """Of all ranks that left word, by rank."""
    found = [json.loads(path.read_text("utf-8")) for path in folder.glob(_FAILURE.format(rank="*"))]
    return sorted(found, key=lambda failure: int(failure["rank"]))


def forget_failures(folder: Path) -> None:
    """Before the ranks start, or start again."""
    for path in folder.glob(_FAILURE.format(rank="*")):
        path.unlink(missing_ok=True)


def what_happened(folder: Path, ranks: int) -> str:
    """One sentence, from what the ranks left."""
    failures = read_failures(folder)
    if final := [failure for failure in failures if failure["final"]]:
        return str(final[0].get("headline", final[0]["reason"]))
    if any("step" in failure for failure in failures):
        return _hang(folder, failures, ranks)
    own = [failure for failure in failures if not _PEER_LOST.search(failure["reason"])]
    if own:
        return f"rank {own[0]['rank']} failed: {own[0]['reason']}"
    silent = sorted(set(range(ranks)) - {int(failure["rank"]) for failure in failures})
    if silent and len(silent) < ranks:
        were = "was" if len(silent) == 1 else "were"
        return f"{_ranks(silent)} {were} ended from outside{_last_seen(read_signs(folder), silent)}"
    if failures:
        return f"rank {failures[0]['rank']} failed: {failures[0]['reason']}"
    return "a rank was ended from outside, perhaps because the host ran out of memory"


def worded_failure(folder: Path, logs: Path, ranks: int) -> MeshwrightError:
    """What a person is told: memory part by part, an error as it was raised, else the last lines of who failed."""
    failures = read_failures(folder)
    for failure in failures:
        if "allocated" in failure:
            return memory_failure(failure)
    for failure in failures:
        if "headline" in failure:
            problems = [Problem(where, what) for where, what in failure["problems"]]
            return _KINDS[failure["kind"]](failure["headline"], problems=problems, hint=failure["hint"])
    headline = what_happened(folder, ranks)
    if hung := [failure for failure in failures if "step" in failure]:
        problems = [
            Problem(f"rank {failure['rank']}", f"{failure['reason']}: {' > '.join(failure['frames'])}")
            for failure in hung
        ]
        return RunError(headline, problems=problems, hint="--timeout is how long a rank may stand still")
    if headline.startswith("rank") and failures and "ended from outside" not in headline:
        lines = _last_lines(logs.rglob(f"{failures[0]['rank']}/stderr.log"))
    else:
        lines = _last_lines([*logs.rglob("stderr.log"), logs / "torchrun.log"])
    return RunError(headline, problems=[Problem("", line) for line in lines])


def _hang(folder: Path, failures: list[Failure], ranks: int) -> str:
    """The rank that says nothing hangs; where all speak, the one that came least far."""
    hung = [failure for failure in failures if "step" in failure]
    silent = sorted(set(range(ranks)) - {int(failure["rank"]) for failure in failures})
    if silent:
        return f"{_ranks(silent)} hang{'s' * (len(silent) == 1)}{_last_seen(read_signs(folder), silent)}"
    least = min(_place(failure) for failure in hung)
    behind = [int(failure["rank"]) for failure in hung if _place(failure) == least]
    step, phase = least[0], PHASES[least[1]]
    if len(behind) == ranks:
        return f"all ranks stand still in step {step} ({phase})"
    return f"{_ranks(behind)} hang{'s' * (len(behind) == 1)} in step {step} ({phase})"


def _place(failure: Failure) -> tuple[int, int]:
    return int(failure["step"]), PHASES.index(failure["phase"])


def _last_seen(signs: dict[int, dict[str, object]], ranks: list[int]) -> str:
    sign = signs.get(ranks[0])
    return f" in step {sign['step']} ({sign['phase']})" if sign else ""


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def memory_failure(failure: Failure) -> RunError:
    """Predicted beside allocated, part by part."""
    predicted, allocated = failure["predicted"], failure["allocated"]
    widest = max(map(len, predicted))
    problems = [
        Problem(
            part,
            f"{'':{widest - len(part)}}predicted {format_bytes(size):>9}, allocated"
            f" {format_bytes(allocated[part]) if part in allocated else '-':>9}",
        )
        for part, size in predicted.items()
    ]
    return RunError(
        f"rank {failure['rank']} (stage {failure['stage']}) ran out of memory at"
        f" {format_bytes(sum(allocated.values()))}; predicted {format_bytes(sum(predicted.values()))}",
        problems=problems,
        hint="plan again with a smaller --max-memory",
    )


def _last_lines(paths: Iterable[Path]) -> list[str]:
    lines = [
        line
        for path in paths
        if path.exists()
        for line in path.read_text("utf-8", errors="replace").splitlines()
    ]
    return [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
