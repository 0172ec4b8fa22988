"""The configuration of a run beyond its plan: one record, which the launcher writes as JSON and every rank reads.

A flag of `meshwright run` is a field here, an option of the command line, and a line where it is used. No torch here:
the command line makes the record before it starts any rank. Names of files that several processes of a run share are
here, too; those of one rank have its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, inf, pi
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from cost_models.base import Spec
from cost_models.errors import InputError, Problem
from cost_models.files.whole import file_obstacle, folder_obstacle
from cost_models.flags import Flag

PROGRESS = "progress.jsonl"
"""File with a line for every step and every note of a run, as they happen."""
ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""Environment variable with settings of torch's allocator on a GPU."""
REPORT = "run-report.json"
STOP = "stop"
"""File that asks the ranks to stop after the step they are in."""
STOPPED = "stopped.json"
"""File that names the step after which ranks stopped."""
LOCK = ".lock"
"""File that is locked while a run writes to the folder; it holds the address where the run's nodes meet."""
FAILED_CHECKS = "failed-checks.jsonl"
"""File with a line for each time that a node came back with wrong results (`executor.launch.rendezvous`)."""
OWNERS = "started-by.json"
"""File that names who started the ranks that write to the folder (`executor.launch.rendezvous`)."""

MOST_STEPS = 512
"""Steps that each rank lists in a report, so that a report does not grow with ranks times steps."""
BACKENDS = ("gloo", "nccl")
TEXT, RANDOM = "text", "random"
"""Data that no folder holds: a made-up text, and tokens drawn at random."""
NO_TARGET = -100
"""Target of tokens that the loss does not count, as torch and transformers write it."""
_PathLike = Annotated[Path, Field(strict=False)]
_Count = Annotated[int, Field(ge=1)]
_PER_NODE = {"backend", "out", "drive", "restarts", "nodes", "rendezvous", "weights"}
"""Flags that nodes of one run may set differently, such as the place where a folder is mounted."""


_FLOOR = 0.1
"""Share of the peak learning rate at which the cosine ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Learning rate schedule; steps count from 0."""

    peak: float = 3e-4
    warm_up: int = 0
    """Steps of linear warm-up; the last one has the peak rate."""
    decay: int | None = None
    """Step from which on the rate stays at its floor; None: it stays at its peak."""

    def at(self, step: int) -> float:
        """Learning rate of one step."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        if self.decay is None:
            return self.peak
        fallen = min(1.0, (step - self.warm_up) / (self.decay - self.warm_up))
        return self.peak * (_FLOOR + (1.0 - _FLOOR) * (1.0 + cos(pi * fallen)) / 2.0)


CONSTANT_RATE = Rate()
"""Default learning rate schedule."""


def require_descent(rate: Rate, clip: float | None) -> None:
    """Raise InputError, with all problems, where a learning rate schedule or clipping norm is impossible."""
    problems = []
    if not 0.0 < rate.peak < inf:
        problems.append(Problem("", f"a learning rate of {rate.peak} is not above zero"))
    if rate.warm_up < 0:
        problems.append(Problem("", f"a warm-up of {rate.warm_up} steps is shorter than none"))
    if rate.decay is not None and rate.decay <= max(0, rate.warm_up):
        problems.append(Problem("", f"a decay by step {rate.decay} ends before its start at {rate.warm_up}"))
    if clip is not None and not 0.0 < clip < inf:
        problems.append(Problem("", f"a largest gradient norm of {clip} is not above zero"))
    if problems:
        raise InputError("the optimizer cannot step like that", problems=problems)


class RunConfig(Spec):
    """How to train, for how long, on what, and what to do about faults. Fields are named as flags are."""

    steps: Annotated[_Count, Flag("N", kind=int, minimum=1)] = 20
    """Optimizer steps to train.

    They are measured, after the warm-up.
    """
    backend: Annotated[str | None, Flag("")] = None
    """nccl or gloo; default: as the cluster."""
    seed: Annotated[int, Flag("N", kind=int)] = 0
    """Seed of the weights and of the order of the data."""
    learning_rate: Annotated[float, Flag("RATE", kind=float)] = CONSTANT_RATE.peak
    """Learning rate at its peak."""
    rate_warm_up: Annotated[int, Flag("N", kind=int)] = 0
    """Steps in which the learning rate rises to its peak."""
    rate_decay: Annotated[int | None, Flag("N", kind=int)] = None
    """Step by which the rate has fallen to a tenth, as a cosine; default: it stays constant."""
    clip: Annotated[float | None, Flag("NORM", kind=float)] = None
    """Largest norm of a step's gradient."""
    compile: Annotated[bool, Flag("", kind=bool)] = False
    """Compile each block with torch.compile."""
    out: Annotated[
        _PathLike | None, Flag("DIR", kind=Path, names=("-o", "--out"), command_default=Path("run"))
    ] = None
    """Folder of run-report.json.

    It also holds `progress.jsonl`; None: nothing is written.
    """
    trace: Annotated[_PathLike | None, Flag("FILE.json", kind=Path)] = None
    """Chrome trace of a step: every rank as predicted and as measured."""
    profiler: Annotated[_PathLike | None, Flag("DIR", kind=Path)] = None
    """torch.profiler's trace of a step, one file a rank, for measure."""
    drive: Annotated[_PathLike | None, Flag("DIR", kind=Path)] = None
    """Folder for states that the plan has on the drive; default: --out."""
    data: Annotated[
        str, BeforeValidator(lambda given: str(given) if isinstance(given, Path) else given), Flag("DIR")
    ] = TEXT
    """A token folder; also: text, random.

    `meshwright tokens` makes such a folder.
    """
    weights: Annotated[_PathLike | None, Flag("DIR", kind=Path)] = None
    """Start from the safetensors of a Hugging Face folder.

    None: weights are drawn.
    """
    save_weights: Annotated[_PathLike | None, Flag("DIR", kind=Path)] = None
    """Write the weights at the end, as such a folder."""
    checkpoint: Annotated[_PathLike | None, Flag("DIR", kind=Path)] = None
    """Save the training state here.

    Folder of checkpoints; None: none are written, and lost ranks are not started again.
    """
    every: Annotated[_Count, Flag("N", command_default="100")] = 100
    """Steps from checkpoint to checkpoint; auto: the best.

    Optimizer steps from one checkpoint to the next; there is one more at the end.
    """
    keep: Annotated[_Count, Flag("N", kind=int, minimum=1)] = 3
    """Newest checkpoints that stay."""
    resume: Annotated[bool, Flag("", kind=bool)] = False
    """Go on from the newest whole checkpoint, on this plan.

    Go on from the newest checkpoint that is whole; start at the beginning where there is none.
    """
    restarts: Annotated[int, Field(ge=0), Flag("N", kind=int, minimum=0)] = 3
    """With --checkpoint: how often to replace lost ranks."""
    timeout: Annotated[
        float, Field(gt=0, allow_inf_nan=False), Flag("SECONDS", kind=float, minimum=1, command_default=600)
    ] = 600.0
    """A rank without progress for so long counts as hung.

    Seconds without progress after which a rank is taken to hang; several nodes wait as long for one another.
    """
    nodes: Annotated[int, Flag("N", kind=int, minimum=1)] = 1
    """Nodes to run on; start it on each of them.

    Number of nodes, which share the ranks evenly; the run is started on each.
    """
    rendezvous: Annotated[str | None, Flag("HOST:PORT")] = None
    """Where nodes meet: one of them."""

    # without a flag
    warm_up: Annotated[int, Field(ge=0)] = 2
    """Steps before those that are measured."""
    waiting_steps: Annotated[int, Field(ge=0)] = 3
    """More steps, slower, in which every pass and every wait for other ranks is timed, and then one in which torch's
    profiler tells what operators compute; 0: none of it."""
    measure_memory: bool = True
    """One more step, slower, in which every storage is followed."""

    @property
    def engine(self) -> EngineOptions:
        """Options of the engine that follow from these flags."""
        shared = {name: getattr(self, name) for name in ("seed", "rate", "clip", "compile")}
        return EngineOptions(**shared, drive=self.drive or self.out)

    @property
    def rate(self) -> Rate:
        """Learning rate schedule that follows from these flags."""
        return Rate(peak=self.learning_rate, warm_up=self.rate_warm_up, decay=self.rate_decay)

    def of_all_nodes(self) -> dict[str, object]:
        """Fields on which all nodes of a run must agree."""
        return self.model_dump(mode="json", exclude=_PER_NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of an engine that the plan does not have."""

    seed: int = 0
    rate: Rate = CONSTANT_RATE
    clip: float | None = None
    """Largest global gradient norm; None does not clip."""
    compile: bool = False
    """Compile each block with `torch.compile`."""
    sgd: bool = False
    """Whether to use plain gradient descent, under which gradients of a wrong scale cannot hide."""
    drive: Path | None = None
    """Folder of the drive for optimizer states; None is the folder of temporary files."""
    emulate_fp8: bool = False
    """Whether to multiply operands rounded to fp8 in fp32, for devices without fp8 products."""


def require_places(config: RunConfig) -> None:
    """Raise InputError if a run could not write its output files, or is to resume but names no checkpoint folder.

    Of several nodes any may have rank 0, which writes the trace.
    """
    if config.checkpoint is None and config.resume:
        raise InputError("--resume needs --checkpoint", hint="the folder to go on from")
    folders = {"-o": config.out, "--profiler": config.profiler, "--checkpoint": config.checkpoint}
    folders["--save-weights"] = config.save_weights
    obstacles = {
        f"{flag} {folder}": folder_obstacle(folder, made=True)
        or (file_obstacle(folder / REPORT) if flag == "-o" and folder.exists() else "")
        for flag, folder in folders.items()
        if folder is not None
    }
    if config.trace is not None and config.nodes == 1:
        obstacles[f"--trace {config.trace}"] = file_obstacle(config.trace)
    if problems := [Problem(place, what) for place, what in obstacles.items() if what]:
        raise InputError("what the run makes cannot be written", problems=problems)
