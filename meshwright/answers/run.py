"""Train with a plan from Python, and the answer: measured beside predicted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from cost_models.errors import InputError, UnknownNameError
from executor.checkpoints.saving import EVERY, KEEP, Saving
from executor.data.tokens import TEXT
from executor.launch.launch import RESTARTS, Backend, run_plan
from executor.launch.nodes import Nodes
from executor.launch.torchrun import OnNote, OnStep
from executor.measure.report import RunReport
from executor.rate import CONSTANT_RATE, Rate
from executor.run_options import TIMEOUT_SECONDS
from meshwright.answers.estimated import Estimated
from meshwright.answers.planned import Planned
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.run import comparison_rows, comparison_table
from planner.plan import Plan

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Ran:
    """What a run measured; notebooks show it beside what was predicted."""

    report: RunReport

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""
        return self.report.losses

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units, and `noise`, the share of `measured`
        that the middle half of the steps spans."""
        import pandas as pd

        return pd.DataFrame([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        return str(comparison_table(comparison(self.report)))

    def _repr_html_(self) -> str:
        html: str = self._in_words().to_html(index=False, border=0)
        return html

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright run`."""
        import pandas as pd

        rows = comparison_rows(comparison(self.report))
        return pd.DataFrame(rows, columns=["", "predicted", "measured", "error", "noise"])


def run(
    plan: Planned | Estimated | Plan | str | Path,
    *,
    steps: int = 20,
    backend: str | None = None,
    seed: int = 0,
    learning_rate: float = CONSTANT_RATE.peak,
    rate_warm_up: int = 0,
    rate_decay: int | None = None,
    clip: float | None = None,
    compile: bool = False,
    out: str | Path | None = None,
    trace: str | Path | None = None,
    data: str | Path = TEXT,
    checkpoint: str | Path | None = None,
    every: int = EVERY,
    keep: int = KEEP,
    resume: bool = False,
    restarts: int = RESTARTS,
    timeout: float = TIMEOUT_SECONDS,
    nodes: int = 1,
    rendezvous: str | None = None,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
) -> Ran:
    """Train `steps` measured steps with a plan or a plan file on this machine, each rank in its own process.

    What can be asked for is what `meshwright run` has flags for, by the same names. `out` is a folder that keeps
    `run-report.json`, `trace` a file for the Chrome trace of one step. `data` is `text`, `random`, or a folder that
    `meshwright tokens` made.

    The learning rate rises to `learning_rate` over `rate_warm_up` steps and, with `rate_decay`, falls to a tenth by
    that step. Gradients whose norm over the whole model is above `clip` are scaled down to it. `compile` has
    `torch.compile` compile each block.

    With `checkpoint`, a folder, the state is saved `every` so many steps and the newest `keep` stay; `resume` goes on
    from there, on this plan or on another, and lost ranks are started again, at most `restarts` times. A rank that
    stands still for `timeout` seconds hangs. Several `nodes` meet at `rendezvous`, `host:port`, and each calls it.

    `on_step` is called with step, loss, gradient_norm, seconds and measured (False in the warm-up), `on_note` with what
    a person should know: a resume, a restart. Errors call the plan by `name`, or by its file's.

    Raises:
        InputError: the plan cannot be trained, or not so, or the checkpoint is another run's.
        HostError: this machine has too few devices.
        RunError: a rank failed, was lost or ran out of memory.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    report = run_plan(
        plan.plan if isinstance(plan, (Planned, Estimated)) else plan,
        steps=steps,
        backend=_backend(backend),
        seed=seed,
        rate=Rate(peak=learning_rate, warm_up=rate_warm_up, decay=rate_decay),
        clip=clip,
        compile=compile,
        out_dir=out,
        trace=trace,
        data=data,
        saving=_saving(checkpoint, every=every, keep=keep, resume=resume),
        restarts=restarts,
        timeout=timeout,
        nodes=Nodes(count=nodes, rendezvous=rendezvous),
        on_step=on_step,
        on_note=on_note,
        name=name,
    )
    return Ran(report=report)


def _saving(checkpoint: str | Path | None, *, every: int, keep: int, resume: bool) -> Saving | None:
    """None without a folder. Raises InputError where what else was asked for needs one."""
    if checkpoint is None:
        if resume:
            raise InputError("--resume needs --checkpoint", hint="the folder to go on from")
        return None
    if Path(checkpoint).exists() and not Path(checkpoint).is_dir():
        raise InputError(f"--checkpoint {checkpoint}: is no folder")
    return Saving(folder=Path(checkpoint), every=every, keep=keep, resume=resume)


def _backend(name: str | None) -> Backend | None:
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]  # get_args forgets that they are literals
    if name is not None:
        raise UnknownNameError("backend", name, get_args(Backend), hint="nccl for GPUs, gloo for CPUs")
    return None
