"""Why a rank failed: written by the rank, read by whoever started it, and told to a person.

A `final` failure would happen again: the run is not started again for it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cost_models.errors import HostError, InputError, MeshwrightError, Problem, RunError
from cost_models.units import format_bytes
from executor.checkpoints.folder import Folder
from executor.heartbeat import LAUNCH, PHASES, Sign, read_signs

_FAILURE = "failure-{rank}.json"
_LAST_LINES = 5
_PEER_LOST = re.compile(
    r"connection (closed|reset|refused|timed)|broken pipe|remote process|socket|NCCL", re.IGNORECASE
)
"""What a rank says that failed because another one was gone."""
_KINDS: dict[str, type[MeshwrightError]] = {kind.__name__: kind for kind in (InputError, HostError, RunError)}
_ON = "the same command with --resume goes on; with fewer GPUs, make another plan and resume with that"
_ON_WITHOUT = "with --checkpoint FOLDER a run goes on when ranks are lost"

Failure = dict[str, Any]


def write_failure(folder: Path, rank: int, reason: str, *, final: bool, **more: Any) -> None:
    """Leave word of what happened; nothing where even that cannot be written, as on a full disk."""
    partial = folder / f".failure-{rank}"
    try:
        word = {"rank": rank, "reason": reason, "final": final, "launch": os.environ.get(LAUNCH, ""), **more}
        word["local"] = int(os.environ.get("LOCAL_RANK", rank))
        partial.write_text(json.dumps(word), "utf-8")
        os.replace(partial, folder / _FAILURE.format(rank=rank))
    except OSError:
        partial.unlink(missing_ok=True)


def told(error: MeshwrightError) -> dict[str, Any]:
    """An error a user can meet, as fields of a failure."""
    kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
    problems = [[problem.where, problem.what] for problem in error.problems]
    return {"kind": kind, "headline": error.headline, "problems": problems, "hint": error.hint}


def raised(failure: Failure) -> MeshwrightError:
    """The error of which `told` made fields."""
    problems = [Problem(where, what) for where, what in failure["problems"]]
    return _KINDS[failure["kind"]](failure["headline"], problems=problems, hint=failure["hint"])


def read_failures(folder: Path) -> list[Failure]:
    """Of all ranks that left word, by rank; ranks that start again may be clearing them away meanwhile."""
    found: list[Failure] = []
    for path in folder.glob(_FAILURE.format(rank="*")):
        with suppress(OSError, ValueError):
            found.append(json.loads(path.read_text("utf-8")))
    return sorted(found, key=lambda failure: int(failure["rank"]))


def forget_failures(folder: Path) -> None:
    """Before the ranks start, or start again."""
    for path in folder.glob(_FAILURE.format(rank="*")):
        path.unlink(missing_ok=True)


def is_peer_lost(reason: str) -> bool:
    """Whether a rank that says so failed because another one was gone."""
    return _PEER_LOST.search(reason) is not None


def what_happened(folder: Path, ranks: int, answered: Container[int] = ()) -> str:
    """One sentence, from what the ranks left; those of launchers that `answered` are not lost, whatever they left."""
    failures = read_failures(folder)
    if final := [failure for failure in failures if failure["final"]]:
        return str(final[0].get("headline", final[0]["reason"]))
    if any("step" in failure for failure in failures):
        return _hang(folder, failures, ranks)
    own = [failure for failure in failures if not is_peer_lost(failure["reason"])]
    if own:
        return f"rank {own[0]['rank']} failed: {own[0]['reason']}"
    if silent := _lost(failures, ranks, answered):
        return _without(read_signs(folder), silent)
    if failures:
        return f"rank {failures[0]['rank']} failed: {failures[0]['reason']}"
    return "a rank was ended from outside, perhaps because the host ran out of memory"


def _lost(failures: list[Failure], ranks: int, answered: Container[int]) -> list[int]:
    """Ranks that left no word where others did; nobody where none did, as then nothing tells them apart."""
    spoke = {int(failure["rank"]) for failure in failures}
    silent = [rank for rank in range(ranks) if rank not in spoke and rank not in answered]
    return silent if len(silent) < ranks else []


def worded_failure(
    folder: Path,
    logs: Path,
    ranks: int,
    *,
    launch: str | None = None,
    answered: Container[int] = (),
    saved: Path | None = None,
) -> MeshwrightError:
    """What a person is told: memory part by part, an error as it was raised, else the last lines of who failed.

    `saved` is where checkpoints go; the newest is named where ranks hang or are gone. `logs` are those of ranks that
    this `launch` started, of all where it is None.
    """
    failures = read_failures(folder)
    for failure in failures:
        if "allocated" in failure:
            return memory_failure(failure)
    for failure in failures:
        if "headline" in failure:
            return raised(failure)
    headline = what_happened(folder, ranks, answered)
    if hung := [failure for failure in failures if "step" in failure]:
        problems = [
            Problem(f"rank {failure['rank']}", f"{failure['reason']}: {' > '.join(failure['frames'])}")
            for failure in hung
        ]
        problems += [_last_checkpoint(saved)] * (saved is not None)
        return RunError(headline, problems=problems, hint="--timeout is how long a rank may stand still")
    if all(is_peer_lost(failure["reason"]) for failure in failures) and _lost(failures, ranks, answered):
        return RunError(
            headline, problems=[_last_checkpoint(saved)], hint=_ON_WITHOUT if saved is None else _ON
        )
    if headline.startswith("rank") and failures and "ended from outside" not in headline:
        failed = next((one for one in failures if not is_peer_lost(one["reason"])), failures[0])
        elsewhere = launch is not None and failed.get("launch") != launch
        own = failed.get("local", failed["rank"])
        lines = [] if elsewhere else last_lines(logs.rglob(f"{own}/stderr.log"))
    else:
        lines = last_lines([*logs.rglob("stderr.log"), logs / "torchrun.log"])
    return RunError(headline, problems=[Problem("", line) for line in lines])


def _last_checkpoint(saved: Path | None) -> Problem:
    newest = Folder(saved).complete()[:1] if saved is not None else []
    kept = f"of step {newest[0]}" if newest else "none yet"
    return Problem("last checkpoint", f"{kept}, in {saved}" if saved is not None else "none is kept")


def _hang(folder: Path, failures: list[Failure], ranks: int) -> str:
    """The rank that says nothing hangs; where all speak, the one that came least far."""
    hung = [failure for failure in failures if "step" in failure]
    silent = sorted(set(range(ranks)) - {int(failure["rank"]) for failure in failures})
    if silent:
        signs = read_signs(folder)
        hang = f"{_ranks(silent)} hang{'s' * (len(silent) == 1)}{_last_seen(signs, silent)}"
        nodes = _whole_nodes(signs, silent)
        return f"{', '.join(nodes)} answer{'s' * (len(nodes) == 1)} no longer: {hang}" if nodes else hang
    least = min(_place(failure) for failure in hung)
    behind = [int(failure["rank"]) for failure in hung if _place(failure) == least]
    step, phase = least[0], PHASES[least[1]]
    if len(behind) == ranks:
        return f"all ranks stand still in step {step} ({phase})"
    return f"{_ranks(behind)} hang{'s' * (len(behind) == 1)} in step {step} ({phase})"


def _without(signs: dict[int, Sign], silent: list[int]) -> str:
    """Ranks that are gone, by their nodes where no rank of these is left."""
    seen = _last_seen(signs, silent)
    if nodes := _whole_nodes(signs, silent):
        were, them = ("was", "it") if len(nodes) == 1 else ("were", "them")
        return f"{', '.join(nodes)} {were} lost, and with {them} {_ranks(silent)}{seen}"
    return f"{_ranks(silent)} {'was' if len(silent) == 1 else 'were'} ended from outside{seen}"


def _whole_nodes(signs: dict[int, Sign], silent: Sequence[int]) -> list[str]:
    """Of several nodes those that these ranks are all of; nothing where they are some of a node's."""
    members: dict[tuple[object, object], set[int]] = {}
    for rank, sign in signs.items():
        members.setdefault((sign.get("node"), sign.get("host")), set()).add(rank)
    whole = {node: its for node, its in members.items() if its <= set(silent)}
    if len(members) == 1 or set().union(*whole.values()) != set(silent):
        return []
    return [f"node {number} ({host})" for number, host in sorted(whole, key=str)]


def _place(failure: Failure) -> tuple[int, int]:
    return int(failure["step"]), PHASES.index(failure["phase"])


def _last_seen(signs: dict[int, Sign], ranks: list[int]) -> str:
    sign = signs.get(ranks[0])
    return f" in step {sign['step']} ({sign['phase']})" if sign else ""


def _ranks(ranks: list[int]) -> str:
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(words)}"


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


def last_lines(paths: Iterable[Path]) -> list[str]:
    """Of what was written there, without blank ones."""
    lines = [
        line
        for path in paths
        if path.exists()
        for line in path.read_text("utf-8", errors="replace").splitlines()
    ]
    return [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
