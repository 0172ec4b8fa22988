"""What is measured on one GPU, in the order of what it teaches, and about how long each takes.

The first eight plans are of eight kinds. The seconds are guesses after what an H200 took; `took_seconds` of
results.json is what it really took.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import Precision

_LOSS_CHUNK = 2048
_START_SECONDS, _RUN_SECONDS, _COMPILE_SECONDS, _FP8_SECONDS = 12.0, 10.0, 40.0, 15.0
_CALIBRATION_SECONDS, _TABLES_SECONDS, _RELOAD_SECONDS, _HOST_SECONDS = 165.0, 80.0, 40.0, 40.0
PATIENCE = 3.0
"""What takes so many times what was expected is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The curves of this GPU, which the profile `measured` is made of."""

    name: str = "calibration"

    def seconds(self, runs_done: int = 0) -> float:
        """That are worth a start."""
        return _CALIBRATION_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run, of two microbatches of `mbs` sequences a step unless a global batch is given."""

    model: str
    """Catalogue name."""
    sequence: int
    mbs: int
    recompute: str = "none"
    compile: bool = False
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    layers: int | None = None
    """Fewer blocks than the model has, so that the states of its shape fit one GPU."""
    loss_chunk: int | None = _LOSS_CHUNK
    """Tokens whose logits exist at a time; None: all."""
    global_batch: int | None = None
    offload: str = ""
    """Words of a layout: what of the blocks is in host memory."""
    loaded: bool = False
    """After the steps all is saved, and another engine loads it and goes on."""
    attention: str = ""
    """The attention backend that torch is to take first; empty: its own choice."""
    narrow: bool = False
    """As narrow as a CPU's test, whatever the model."""

    @property
    def name(self) -> str:
        """All that tells it from others."""
        words = [
            self.model,
            f"{self.layers}-blocks" if self.layers else "",
            f"s{self.sequence}",
            f"mbs{self.mbs}",
        ]
        words += [f"gbs{self.global_batch}" if self.global_batch else "", self.recompute]
        words += ["compiled" if self.compile else "", self.precision, self.optimizer]
        words += ["whole-loss" if self.loss_chunk is None else "", self.offload.replace(" ", "-")]
        words += ["loaded" if self.loaded else "", self.attention, "narrow" if self.narrow else ""]
        return "/".join(word for word in words if word)

    def seconds(self, runs_done: int = 0) -> float:
        """In a process of its own."""
        more = _COMPILE_SECONDS * self.compile + _FP8_SECONDS * (self.precision == "fp8")
        more += _RELOAD_SECONDS * self.loaded + _HOST_SECONDS * bool(self.offload)
        return _START_SECONDS + _RUN_SECONDS + more


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A job whose microbatch and recomputation the planner is to choose."""

    job: Case
    """Whose own choice of both does not count; it has a global batch."""

    @property
    def name(self) -> str:
        """By its job."""
        return f"sweep/{self.job.model}/s{self.job.sequence}/gbs{self.job.global_batch}"

    def seconds(self, runs_done: int = 0) -> float:
        """All choices but those `runs_done`, in one process."""
        return _START_SECONDS + _RUN_SECONDS * (len(self.choices) - runs_done)

    @property
    def choices(self) -> list[Case]:
        """All there are of one policy for all blocks; the planner may mix them."""
        batch = self.job.global_batch or 1
        sizes = [mbs for mbs in range(1, batch + 1) if batch % mbs == 0]
        return [
            replace(self.job, mbs=mbs, recompute=policy) for mbs in sizes for policy in RECOMPUTE_POLICIES
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A recommender: `recommender.py` beside this, whose largest case is a row here."""

    name: str = "recommender"

    def seconds(self, runs_done: int = 0) -> float:
        """All its cases."""
        return _TABLES_SECONDS


Job = Calibration | Case | Sweep | Tables

_EIGHT = Case(model="llama3.1-8b", sequence=4096, mbs=1, layers=12)
_EIGHT_PLANS: tuple[Job, ...] = (
    _EIGHT,
    Case(model="qwen3-30b-a3b", sequence=4096, mbs=1, layers=4),
    replace(_EIGHT, compile=True, precision="fp8"),
    replace(_EIGHT, layers=6, recompute="full", offload="offload=streamed ring=2"),
    replace(_EIGHT, compile=True),
    Case(model="llama3.2-1b", sequence=32768, mbs=1, recompute="full"),
    Case(model="llama3.2-1b", sequence=2048, mbs=4, loaded=True),
    Tables(),
)
"""Dense, a mixture, fp8, offload, compiled, a long sequence, weights that were loaded, a recommender."""
_JOBS: tuple[Job, ...] = (
    Calibration(),
    *_EIGHT_PLANS,
    # which attention kernel is faster; torch takes cuDNN's on Hopper by itself where that is new enough
    replace(_EIGHT, attention="cudnn"),
    replace(_EIGHT, attention="flash"),
    # prediction beside measurement
    Case(model="llama3.2-3b", sequence=4096, mbs=1),
    Case(model="llama3.1-8b", sequence=2048, mbs=1, recompute="full", optimizer="sgd"),
    # what the planner's choice costs beside the best
    Sweep(job=Case(model="llama3.2-3b", sequence=4096, mbs=1, global_batch=4)),
    # compiled, fp8, the loss whole
    Case(model="llama3.2-3b", sequence=4096, mbs=2, compile=True),
    Case(model="llama3.2-1b", sequence=2048, mbs=4, compile=True),
    Case(model="llama3.2-3b", sequence=4096, mbs=2),
    Case(model="llama3.2-3b", sequence=4096, mbs=2, loss_chunk=None),
    # all else: longer sequences, recomputation, other sweeps
    Case(model="llama3.2-3b", sequence=8192, mbs=2, recompute="selective"),
    Case(model="llama3.2-3b", sequence=8192, mbs=2, recompute="selective", loss_chunk=None),
    Case(model="llama3.2-3b", sequence=4096, mbs=1, compile=True, precision="fp8"),
    Case(model="llama3.2-3b", sequence=4096, mbs=1, recompute="full"),
    Case(model="llama3.2-3b", sequence=8192, mbs=1, recompute="selective"),
    Case(model="llama3.2-1b", sequence=8192, mbs=1),
    Case(model="llama3.2-1b", sequence=8192, mbs=1, recompute="selective"),
    Case(model="llama3.2-1b", sequence=2048, mbs=1),
    Case(model="llama3.1-8b", sequence=8192, mbs=1, recompute="full", optimizer="sgd"),
    Sweep(job=Case(model="llama3.2-1b", sequence=2048, mbs=1, global_batch=8)),
    Sweep(job=Case(model="llama3.1-8b", sequence=8192, mbs=1, layers=12, global_batch=2)),
)


def _narrow(job: Job) -> Job:
    """The same job as a CPU does it in seconds."""
    if not isinstance(job, Case):
        return job
    precision: Precision = "fp8" if job.precision == "fp8" else "fp32"
    sequence, layers = max(32, job.sequence // 256), min(job.layers or 2, 4)
    return replace(job, narrow=True, precision=precision, sequence=sequence, layers=layers, loss_chunk=48)


_DRY_JOBS: tuple[Job, ...] = (
    Calibration(),
    *map(_narrow, _EIGHT_PLANS),
    _narrow(replace(_EIGHT, attention="flash")),
    Sweep(job=Case(model="llama-nano", sequence=32, mbs=1, precision="fp32", global_batch=2, loss_chunk=24)),
    Case(model="no-such-model", sequence=32, mbs=1, precision="fp32"),
)


def jobs(*, dry: bool) -> dict[str, Job]:
    """By name, in order."""
    return {job.name: job for job in (_DRY_JOBS if dry else _JOBS)}
