"""What a run is asked for beyond its plan, and how that reaches each rank's command line; no torch here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from executor.checkpoints.saving import EVERY, KEEP, Saving
from executor.rate import CONSTANT_RATE, Rate

TIMEOUT_SECONDS = 600.0
PROGRESS, REPORT = "progress.jsonl", "run-report.json"
STOP, STOPPED = "stop", "stopped.json"
"""The file that asks a run to stop, and the one that says where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How long, on what, and what to do about faults."""

    steps: int
    """Measured steps, after the warm-up."""
    warm_up: int = 2
    seed: int = 0
    rate: Rate = CONSTANT_RATE
    clip: float | None = None
    data: str = "text"
    compile: bool = False
    saving: Saving | None = None
    timeout: float = TIMEOUT_SECONDS
    """Seconds a rank may stand still before it is taken to hang."""
    measure_memory: bool = True
    trace: Path | None = None
    """File for the Chrome trace of a step of its own."""

    def arguments(self) -> list[str]:
        """For a rank's command line; `read` is the inverse."""
        words = ["--steps", str(self.steps), "--warm-up", str(self.warm_up), "--seed", str(self.seed)]
        words += ["--learning-rate", repr(self.rate.peak), "--rate-warm-up", str(self.rate.warm_up)]
        words += ["--rate-decay", str(self.rate.decay)] * (self.rate.decay is not None)
        words += ["--data", self.data]
        words += ["--timeout", repr(self.timeout)]
        words += ["--clip", repr(self.clip)] * (self.clip is not None)
        words += ["--compile"] * self.compile + ["--no-memory"] * (not self.measure_memory)
        words += ["--trace", str(self.trace)] * (self.trace is not None)
        if self.saving is not None:
            words += ["--checkpoint", str(self.saving.folder), "--every", str(self.saving.every)]
            words += ["--keep", str(self.saving.keep)] + ["--resume"] * self.saving.resume
        return words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `Asked.arguments`."""
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--rate-warm-up", type=int, default=0)
    parser.add_argument("--rate-decay", type=int)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--data", default="text")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS)
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--keep", type=int, default=KEEP)
    parser.add_argument("--resume", action="store_true")


def read(given: argparse.Namespace) -> Asked:
    """What `add_arguments` made of a command line."""
    saving = None
    if given.checkpoint is not None:
        saving = Saving(folder=given.checkpoint, every=given.every, keep=given.keep, resume=given.resume)
    return Asked(
        steps=given.steps,
        warm_up=given.warm_up,
        seed=given.seed,
        rate=Rate(peak=given.learning_rate, warm_up=given.rate_warm_up, decay=given.rate_decay),
        clip=given.clip,
        data=given.data,
        compile=given.compile,
        saving=saving,
        timeout=given.timeout,
        measure_memory=not given.no_memory,
        trace=given.trace,
    )
